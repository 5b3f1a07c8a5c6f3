//! A tiny HTTP server and client that tell whom they saw.
//!
//! The server answers every request with its caller's address, so that a test knows which way a connection came. Used
//! inside the pods (binary `guest`) and, for machines outside the cluster, by the demo itself. Not a web server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

/// Listens on `port` for IPv4 and IPv6; for IPv4 alone where the kernel has no IPv6.
///
/// # Errors
/// When the port is taken.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// Answers requests for ever, each with the address it came from and a line break.
///
/// # Errors
/// When the listener itself fails; a broken connection is the client's matter.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept()?;
        std::thread::spawn(move || drop(answer(stream, plain(peer))));
    }
}

/// What a client learns from one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Our end of the connection.
    pub local: SocketAddr,
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: String,
}

/// Sends one request to `server` and waits for the answer.
///
/// # Errors
/// When nobody answers, or not in HTTP.
pub fn ask(method: &str, server: SocketAddr, path: &str) -> io::Result<Reply> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let local = stream.local_addr()?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) =
        text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other(format!("no HTTP answer: {text}")))?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in the answer: {head}")))?;
    Ok(Reply { local, status, body: body.to_owned() })
}

/// An IPv4 address that an IPv6 socket saw, as IPv4.
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(address, |ip| SocketAddr::new(ip.into(), address.port())),
        IpAddr::V4(_) => address,
    }
}

fn answer(stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let body = format!("{peer}\n");
    write!(&stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_told_its_own_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener));
        let reply = ask("GET", server, "/").unwrap();
        assert_eq!((reply.status, reply.body), (200, format!("{}\n", reply.local)));
    }

    #[test]
    fn an_ipv4_client_of_an_ipv6_socket_is_named_by_its_ipv4_address() {
        assert_eq!(plain("[::ffff:10.0.0.1]:5".parse().unwrap()), "10.0.0.1:5".parse().unwrap());
        assert_eq!(plain("[2001:db8::1]:5".parse().unwrap()), "[2001:db8::1]:5".parse().unwrap());
    }
}
