//! Every way in which a stand-in HTTP/1.1 server misbehaves, whatever it listens on.
//!
//! A server reads a request, makes the answer that a well-behaved one would give, and lets [`Behaviour`] send it. Used
//! by the stand-in API server and the stand-in agent.

use std::io::{self, Read, Write};

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
