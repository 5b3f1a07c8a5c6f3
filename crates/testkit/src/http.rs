//! What stand-in HTTP/1.1 servers share, whatever they listen on: reading a request, and every way to misbehave.
//!
//! A server reads a request, makes the answer that a well-behaved one would give, and lets [`Behaviour`] send it. Used
//! by the stand-in API server and the stand-in agent.

use std::io::{self, Read, Write};

/// Largest request that is read, in bytes.
const MAX_REQUEST: usize = 4 << 20;

/// A whole request.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) method: String,
    /// With query, as sent.
    pub(crate) path: String,
    /// The bearer token, if it has one.
    pub(crate) token: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Incoming {
    /// Reads a request; `None` when the client left before sending a whole one.
    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let n = stream.read(&mut buffer)?;
            if n == 0 || bytes.len() > MAX_REQUEST {
                return Ok(None);
            }
            bytes.extend_from_slice(&buffer[..n]);
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut parsed = httparse::Request::new(&mut headers);
            let httparse::Status::Complete(head) = parsed.parse(&bytes).map_err(io::Error::other)? else { continue };
            let header = |name: &str| {
                let header = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
                header.and_then(|header| std::str::from_utf8(header.value).ok())
            };
            let length: usize = header("content-length").unwrap_or("0").parse().map_err(io::Error::other)?;
            if let Some(body) = bytes.get(head..head.saturating_add(length)) {
                return Ok(Some(Self {
                    method: parsed.method.unwrap_or_default().to_owned(),
                    path: parsed.path.unwrap_or_default().to_owned(),
                    token: header("authorization").and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned),
                    body: body.to_vec(),
                }));
            }
        }
    }
}

/// How the server treats requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// As Kubernetes does.
    #[default]
    Normal,
    /// Every request is answered with this HTTP status.
    Status(u16),
    /// The first `n` requests from now on are answered with `status`, later ones normally.
    FailFirst {
        /// How many requests fail.
        n: usize,
        /// With which HTTP status.
        status: u16,
    },
    /// The request is read and never answered.
    Hang,
    /// The connection is closed once the request has been read.
    Close,
    /// The answer is not HTTP.
    Garbage,
    /// 200 with a body that is not JSON.
    BadJson,
    /// 200 with a body that ends before its announced length.
    Truncated,
    /// Normal, with the body sent in chunks.
    Chunked,
    /// Normal, with neither length nor chunks: the end of the connection ends the body.
    UntilClose,
    /// 200 with a body of this many bytes.
    Huge(usize),
}

impl Behaviour {
    /// The status that request number `seen` (from 1) gets whatever it asks for, if there is one.
    pub(crate) fn forced_status(&self, seen: usize) -> Option<u16> {
        match *self {
            Self::Status(status) => Some(status),
            Self::FailFirst { n, status } if seen <= n => Some(status),
            _ => None,
        }
    }

    /// Sends an answer, or what this behaviour has in place of it. False when the connection is not to be closed in an
    /// orderly way, since the client was never answered.
    pub(crate) fn answer(
        &self,
        stream: &mut (impl Read + Write),
        content_type: &str,
        (status, body): (u16, &[u8]),
    ) -> io::Result<bool> {
        match self {
            Self::Hang => {
                // Until the client leaves or has been silent for long.
                while stream.read(&mut [0])? > 0 {}
                return Ok(false);
            }
            Self::Close => {}
            Self::Garbage => stream.write_all(b"\x00\x01 this is not HTTP\r\n\r\n")?,
            Self::BadJson => self.write(stream, content_type, (status, b"{\"kind\":\"Pod\",\"metadata\":"))?,
            Self::Huge(size) => self.write(stream, content_type, (status, &vec![b' '; *size]))?,
            _ => self.write(stream, content_type, (status, body))?,
        }
        Ok(true)
    }

    fn write(&self, stream: &mut impl Write, content_type: &str, (status, body): (u16, &[u8])) -> io::Result<()> {
        let length = match self {
            Self::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
            Self::UntilClose => String::new(),
            Self::Truncated => format!("Content-Length: {}\r\n", body.len() * 2 + 1),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let head =
            format!("HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\n{length}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        if *self == Self::Chunked {
            for chunk in body.chunks(100) {
                write!(stream, "{:x}\r\n", chunk.len())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        } else {
            stream.write_all(body)?;
        }
        stream.flush()
    }
}
