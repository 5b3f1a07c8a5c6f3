//! A client of the agent's sockets and ports, as plain as a plugin's.

#![allow(dead_code)] // Each test program uses its own part of this.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

/// A request as text.
pub fn request(method: &str, path: &str, body: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: unix\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends `text` and reads until the other side closes. Status (0 for no answer) and body.
pub fn exchange(mut stream: impl Read + Write, text: &str) -> (u16, String) {
    // It may be refused before all of it is sent.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// One request to a socket.
#[track_caller]
pub fn post(socket: &Path, path: &str, body: &str) -> (u16, String) {
    exchange(UnixStream::connect(socket).unwrap(), &request("POST", path, body))
}

/// As [`post`], with an answer in JSON.
#[track_caller]
pub fn ask(socket: &Path, path: &str, body: &Value) -> Value {
    let (status, text) = post(socket, path, &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}
