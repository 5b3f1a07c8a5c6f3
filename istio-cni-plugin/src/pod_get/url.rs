//! The `server` of a kubeconfig, and paths below it.

use std::fmt::Write;

use thiserror::Error;

/// Where an API server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// False for plain HTTP.
    pub tls: bool,
    /// As it goes into the `Host` header.
    pub authority: String,
    /// What precedes every path; empty or with a leading slash.
    pub prefix: String,
}

/// A `server` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("server `{url}` is not a URL such as https://10.96.0.1:443: {reason}")]
pub struct UrlError {
    /// The value.
    pub url: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let fail = |reason| UrlError { url: url.to_owned(), reason };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| fail("it has no scheme"))?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(fail("the scheme must be https or http")),
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, port) = bracketed.split_once(']').ok_or_else(|| fail("the bracket is not closed"))?;
                (host, port.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '@') {
            return Err(fail("the host is missing or invalid"));
        }
        let port = match port {
            Some(port) => port.parse().map_err(|_| fail("the port is not a number up to 65535"))?,
            None if tls => 443,
            None => 80,
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            tls,
            authority: authority.to_owned(),
            prefix: path.trim_end_matches('/').to_owned(),
        })
    }
}

/// `text` as one segment of a path.
pub(super) fn encode_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    // Alone they would be a step in the path.
    let dots = matches!(text, "." | "..");
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') || byte == b'.' && !dots {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_hosts_lose_their_brackets() {
        for (url, host, port, authority) in [
            ("https://[fd00::1]:6443", "fd00::1", 6443, "[fd00::1]:6443"),
            ("https://[::1]", "::1", 443, "[::1]"),
            ("https://10.0.0.1:443/", "10.0.0.1", 443, "10.0.0.1:443"),
            ("https://api.example.internal", "api.example.internal", 443, "api.example.internal"),
            ("http://h:8080/k8s/c1/", "h", 8080, "h:8080"),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!(
                (server.host.as_str(), server.port, server.authority.as_str()),
                (host, port, authority),
                "{url}"
            );
        }
        assert_eq!(Server::parse("http://h:8080/k8s/c1/").unwrap().prefix, "/k8s/c1");
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for url in
            ["", "10.0.0.1:443", "ftp://a", "https://", "https://a:x", "https://[::1:443", "https://a b", "https://u@h"]
        {
            assert!(Server::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(encode_segment("web-0.a_b"), "web-0.a_b");
        assert_eq!(encode_segment("../x?y\r\n"), "..%2Fx%3Fy%0D%0A");
        assert_eq!((encode_segment(".."), encode_segment(".")), ("%2E%2E".to_owned(), "%2E".to_owned()));
    }
}
