//! One GET over HTTP/1.1, blocking, with one deadline for all of it: name, connection, TLS, answer.

mod body;

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use thiserror::Error;

use super::url::Server;

/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// Headers of an answer that are looked at.
const MAX_HEADERS: usize = 64;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The name of the server has no address.
    #[error("the name {host} cannot be resolved: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        reason: String,
    },
    /// No connection.
    #[error("no connection to {address}: {source}")]
    Connect {
        /// The last address tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The TLS handshake failed or TLS was violated.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The deadline passed.
    #[error("no complete answer in time")]
    TimedOut,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The answer is not HTTP.
    #[error("the answer is not HTTP: {0}")]
    NotHttp(String),
    /// The answer ended early.
    #[error("the answer is incomplete")]
    Incomplete,
    /// The answer is larger than any pod.
    #[error("the answer is larger than {MAX_ANSWER} bytes")]
    TooLarge,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Asks `server` for `path`.
pub(super) fn get(
    server: &Server,
    trust: Arc<ClientConfig>,
    path: &str,
    token: &str,
    deadline: Instant,
) -> Result<Answer, HttpError> {
    let tcp = connect(server, deadline)?;
    let mut request = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        request,
        "GET {}{path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: istio-cni/{}\r\nAccept: application/json\r\n\
         Authorization: Bearer {token}\r\nConnection: close\r\n\r\n",
        server.prefix,
        server.authority,
        env!("CARGO_PKG_VERSION"),
    );
    if !server.tls {
        return exchange(tcp, &request);
    }
    let name = ServerName::try_from(server.host.clone())
        .map_err(|error| HttpError::Resolve { host: server.host.clone(), reason: error.to_string() })?;
    let connection = ClientConnection::new(trust, name).map_err(HttpError::Tls)?;
    exchange(StreamOwned::new(connection, tcp), &request)
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Result<Answer, HttpError> {
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(stream_error)?;
    let mut received = Received { stream, bytes: Vec::with_capacity(16 * 1024), ended: false };
    let (status, start, framing) = loop {
        if let Some(head) = parse_head(&received.bytes)? {
            break head;
        }
        received.more()?;
        if received.ended {
            return Err(HttpError::Incomplete);
        }
    };
    let body = body::read(&mut received, start, framing)?;
    Ok(Answer { status, body })
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Status, start of the body, and framing; `None` while the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(u16, usize, Framing)>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let start = match answer.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(HttpError::NotHttp(error.to_string())),
    };
    let value = |name: &str| {
        let header = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
    };
    let framing = match (value("transfer-encoding"), value("content-length")) {
        (Some(encoding), _) if encoding == "chunked" => Framing::Chunked,
        (Some(encoding), _) => return Err(HttpError::NotHttp(format!("unknown transfer encoding `{encoding}`"))),
        (None, Some(length)) => {
            Framing::Length(length.parse().map_err(|_| HttpError::NotHttp(format!("content length `{length}`")))?)
        }
        (None, None) => Framing::UntilClose,
    };
    Ok(Some((answer.code.unwrap_or_default(), start, framing)))
}

/// What has come so far.
struct Received<S> {
    stream: S,
    bytes: Vec<u8>,
    ended: bool,
}

impl<S: Read> Received<S> {
    /// Waits for more bytes or the end.
    fn more(&mut self) -> Result<(), HttpError> {
        if self.bytes.len() > MAX_ANSWER {
            return Err(HttpError::TooLarge);
        }
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => self.bytes.extend(buffer.iter().take(count)),
            Err(error) => return Err(stream_error(error)),
        }
        Ok(())
    }
}

fn stream_error(error: io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => return HttpError::TimedOut,
        io::ErrorKind::UnexpectedEof => return HttpError::Incomplete,
        _ => {}
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => HttpError::Tls(tls.clone()),
        None => HttpError::Broken(error),
    }
}

fn connect(server: &Server, deadline: Instant) -> Result<Deadlined, HttpError> {
    let mut last = HttpError::Resolve { host: server.host.clone(), reason: "it has no address".to_owned() };
    for address in resolve(server, deadline)? {
        let patience = remaining(deadline).map_err(|_| HttpError::TimedOut)?;
        match TcpStream::connect_timeout(&address, patience) {
            Ok(tcp) => {
                // One small request: it should not wait for more to send. Slower if refused, not wrong.
                let _ = tcp.set_nodelay(true);
                return Ok(Deadlined { tcp, deadline });
            }
            Err(source) => last = HttpError::Connect { address, source },
        }
    }
    Err(last)
}

/// The addresses of the server. Only a name takes a look-up, on a thread that is left behind when it takes too long.
fn resolve(server: &Server, deadline: Instant) -> Result<Vec<SocketAddr>, HttpError> {
    if let Ok(ip) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, server.port)]);
    }
    let failed = |reason: String| HttpError::Resolve { host: server.host.clone(), reason };
    let (sender, receiver) = mpsc::channel();
    let name = (server.host.clone(), server.port);
    std::thread::Builder::new()
        .name("resolve".to_owned())
        // Nobody listens any more when the time was up.
        .spawn(move || drop(sender.send(name.to_socket_addrs().map(Iterator::collect))))
        .map_err(|error| failed(error.to_string()))?;
    let patience = remaining(deadline).map_err(|error| failed(error.to_string()))?;
    match receiver.recv_timeout(patience) {
        Ok(addresses) => addresses.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed("no answer from the resolver in time".to_owned())),
    }
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A connection on which no operation outlasts the deadline.
struct Deadlined {
    tcp: TcpStream,
    deadline: Instant,
}

impl Read for Deadlined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.tcp.read(buffer)
    }
}

impl Write for Deadlined {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.tcp.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}
