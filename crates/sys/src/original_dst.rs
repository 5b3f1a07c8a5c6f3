//! TCP sockets that show where a redirected connection was meant to go.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::{Ip6tOriginalDst, OriginalDst, ReuseAddr, ReusePort};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage, bind, connect, getsockopt,
    listen, setsockopt, socket,
};

/// A listener that shares its port with others who ask for the same.
///
/// # Errors
/// When the port cannot be listened on.
pub fn listen_shared(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = stream_socket(address)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    setsockopt(&socket, ReusePort, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// Connects from this local address, any port.
///
/// # Errors
/// When the connection fails.
pub fn connect_from(source: IpAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = stream_socket(target)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(target))?;
    Ok(socket.into())
}

/// Where the peer of an accepted connection wanted to go, before rules redirected it.
///
/// # Errors
/// When connection tracking knows nothing about the connection.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    Ok(match stream.peer_addr()? {
        SocketAddr::V4(_) => SocketAddrV4::from(SockaddrIn::from(getsockopt(stream, OriginalDst)?)).into(),
        SocketAddr::V6(_) => SocketAddrV6::from(SockaddrIn6::from(getsockopt(stream, Ip6tOriginalDst)?)).into(),
    })
}

fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_can_be_listened_on_by_two_and_is_reached_from_the_chosen_address() {
        let first = listen_shared("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let _second = listen_shared(address).unwrap();
        let stream = connect_from("127.0.0.2".parse().unwrap(), address).unwrap();
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), "127.0.0.2");
        assert_eq!(stream.peer_addr().unwrap(), address);
    }
}
