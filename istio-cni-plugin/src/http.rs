//! HTTP/1.1 as a client: one request on a connection, one answer, and no surprise can take longer than the connection's
//! deadline or more memory than the caller allows. Over Unix sockets here; [`crate::pod_get`] brings TCP and TLS.

mod body;

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

use sys::interrupt::Stopped;
use sys::stream::Stream;
use thiserror::Error;

/// Headers of an answer that are looked at.
const MAX_HEADERS: usize = 64;
/// Longest part of an unexpected answer that a message quotes, in bytes.
const MAX_EXCERPT: usize = 2000;

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
        /// The last address tried, or the path of the socket.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The TLS handshake failed or TLS was violated.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The deadline passed.
    #[error("no complete answer in time")]
    TimedOut,
    /// A signal came.
    #[error(transparent)]
    Stopped(Stopped),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The answer is not HTTP.
    #[error("the answer is not HTTP: {0}")]
    NotHttp(String),
    /// The answer ended early.
    #[error("the answer is incomplete")]
    Incomplete,
    /// The answer is larger than it may be.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body, without its framing.
    pub body: Vec<u8>,
}

/// What a request goes over.
pub trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

/// Posts `body`, JSON, to `path` on the Unix socket `socket`, and reads an answer of at most `limit` bytes.
pub(crate) fn post(
    socket: &Path,
    path: &str,
    body: &str,
    limit: usize,
    deadline: Instant,
) -> Result<Answer, HttpError> {
    let mut stream = connect(socket, deadline)?;
    exchange(&mut stream, &post_request(path, body), limit)
}

/// Posts `body` and does not wait for the answer. Who listens gets it even when this process has ended by then.
pub(crate) fn post_and_leave(socket: &Path, path: &str, body: &str, deadline: Instant) -> Result<(), HttpError> {
    connect(socket, deadline)?.write_all(post_request(path, body).as_bytes()).map_err(stream_error)
}

fn connect(socket: &Path, deadline: Instant) -> Result<Stream, HttpError> {
    Stream::unix(socket, deadline).map_err(|source| connect_error(socket.display().to_string(), source))
}

fn post_request(path: &str, body: &str) -> String {
    let length = body.len();
    // The host is a placeholder: a socket has none, and the protocol wants one.
    format!(
        "POST {path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// The beginning of a body, for a message: one line of printable text.
pub(crate) fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..MAX_EXCERPT).unwrap_or(body));
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Sends `request` and reads an answer of at most `limit` bytes.
///
/// # Errors
/// There is none, or none that is whole and HTTP.
pub fn exchange(stream: &mut dyn Connection, request: &str, limit: usize) -> Result<Answer, HttpError> {
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(stream_error)?;
    let mut received = Received { stream, bytes: Vec::with_capacity(4 * 1024), ended: false, limit };
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
struct Received<'a> {
    stream: &'a mut dyn Read,
    bytes: Vec<u8>,
    ended: bool,
    /// Most bytes that an answer may have.
    limit: usize,
}

impl Received<'_> {
    /// The end of `length` bytes that begin at `start`, if an answer may be so large.
    fn end_of(&self, start: usize, length: usize) -> Result<usize, HttpError> {
        start.checked_add(length).filter(|&end| end <= self.limit).ok_or(HttpError::TooLarge(self.limit))
    }

    /// Waits for more bytes or the end.
    fn more(&mut self) -> Result<(), HttpError> {
        if self.bytes.len() > self.limit {
            return Err(HttpError::TooLarge(self.limit));
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

/// What an error of connecting to `address` means.
pub(crate) fn connect_error(address: String, source: io::Error) -> HttpError {
    match Stopped::behind(&source) {
        Some(stopped) => HttpError::Stopped(stopped),
        None => HttpError::Connect { address, source },
    }
}

fn stream_error(error: io::Error) -> HttpError {
    if let Some(stopped) = Stopped::behind(&error) {
        return HttpError::Stopped(stopped);
    }
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
