//! The body of an answer: by length, in chunks, or up to the end of the connection. Only [`super`] calls it.

use super::{Framing, HttpError, Received};

/// Reads the body that begins at `start` of what was received.
pub(super) fn read(received: &mut Received<'_>, start: usize, framing: Framing) -> Result<Vec<u8>, HttpError> {
    match framing {
        Framing::Length(length) => {
            let end = received.end_of(start, length)?;
            fill(received, end)?;
            Ok(received.bytes.get(start..end).unwrap_or_default().to_vec())
        }
        Framing::Chunked => chunks(received, start),
        Framing::UntilClose => {
            while !received.ended {
                received.more()?;
            }
            Ok(received.bytes.get(start..).unwrap_or_default().to_vec())
        }
    }
}

/// Reads until `end` bytes are there.
fn fill(received: &mut Received<'_>, end: usize) -> Result<(), HttpError> {
    while received.bytes.len() < end {
        if received.ended {
            return Err(HttpError::Incomplete);
        }
        received.more()?;
    }
    Ok(())
}

fn chunks(received: &mut Received<'_>, start: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    let mut position = start;
    loop {
        let rest = received.bytes.get(position..).unwrap_or_default();
        let (line, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete((line, size))) => (line, size),
            Ok(httparse::Status::Partial) => {
                let next = received.bytes.len() + 1;
                fill(received, next)?;
                continue;
            }
            Err(_) => return Err(HttpError::NotHttp("invalid size of a chunk".to_owned())),
        };
        if size == 0 {
            // Trailers, if any, say nothing about a pod.
            return Ok(body);
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let begin = position + line;
        let end = received.end_of(begin, size)?;
        fill(received, end + 2)?;
        body.extend(received.bytes.get(begin..end).unwrap_or_default());
        position = end + 2;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Gives out one byte at a time, which puts every boundary everywhere.
    struct Drip(Vec<u8>);

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match (self.0.is_empty(), buffer.first_mut()) {
                (false, Some(first)) => *first = self.0.remove(0),
                _ => return Ok(0),
            }
            Ok(1)
        }
    }

    fn body(text: &str, framing: Framing) -> Result<Vec<u8>, HttpError> {
        let mut stream = Drip(text.as_bytes().to_vec());
        let mut received = Received { stream: &mut stream, bytes: Vec::new(), ended: false, limit: 1000 };
        read(&mut received, 0, framing)
    }

    #[test]
    fn every_framing_gives_the_same_body() {
        assert_eq!(body("hello", Framing::UntilClose).unwrap(), b"hello");
        assert_eq!(body("hello and more", Framing::Length(5)).unwrap(), b"hello");
        assert_eq!(body("2\r\nhe\r\n003;x=y\r\nllo\r\n0\r\n\r\n", Framing::Chunked).unwrap(), b"hello");
    }

    #[test]
    fn a_body_that_ends_early_is_not_a_body() {
        for (text, framing) in [
            ("hell", Framing::Length(5)),
            ("5\r\nhell", Framing::Chunked),
            ("5\r\nhello\r\n", Framing::Chunked),
            ("", Framing::Chunked),
        ] {
            assert!(matches!(body(text, framing), Err(HttpError::Incomplete)), "{text}");
        }
    }

    #[test]
    fn a_body_larger_than_any_pod_is_not_read() {
        assert!(matches!(body("", Framing::Length(usize::MAX)), Err(HttpError::TooLarge(1000))));
        assert!(matches!(body("ffffffffffffffff\r\n", Framing::Chunked), Err(HttpError::TooLarge(1000))));
        assert!(matches!(body("x\r\n", Framing::Chunked), Err(HttpError::NotHttp(_))));
    }
}
