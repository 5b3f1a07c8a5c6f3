//! Log levels that are changed while the agent runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod client;
mod node;

use std::net::{SocketAddr, TcpListener, TcpStream};

use client::exchange;
use node::{LIST, Node, eventually};
use serde_json::Value;

/// One request to a port that may not be served yet.
fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let text =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    TcpStream::connect(address).map_or((0, String::new()), |stream| exchange(stream, &text))
}

#[test]
fn levels_are_shown_and_changed_and_that_of_the_plugin_reaches_its_configuration() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut node = Node::new();
    node.write("10-net.conflist", LIST);
    node.config.agent.admin = Some(address);
    "info".clone_into(&mut node.config.plugin.plugin_log_level);
    let _agent = node.start_ready();
    eventually(|| ask(address, "GET", "/scopez", "").0 == 200, || "log levels are not served".to_owned());
    let levels = || -> Vec<(String, String)> {
        let scopes: Vec<Value> = serde_json::from_str(&ask(address, "GET", "/scopej/", "").1).unwrap();
        let text = |scope: &Value, key: &str| scope[key].as_str().unwrap().to_owned();
        scopes.iter().map(|scope| (text(scope, "name"), text(scope, "output_level"))).collect()
    };
    let all = |agent: &str, plugin: &str| {
        [("default", agent), ("cni-agent", agent), ("cni-plugin", plugin)].map(|(a, b)| (a.to_owned(), b.to_owned()))
    };
    assert_eq!(levels(), all("info", "info"));

    // As Istio's tools send it.
    let change = r#"{"name":"cni-plugin","output_level":"debug","log_callers":false}"#;
    assert_eq!(ask(address, "PUT", "/scopej/cni-plugin", change).0, 202);
    assert_eq!(levels(), all("info", "debug"));
    let written = || node.read("10-net.conflist").contains("\"plugin_log_level\": \"debug\"");
    eventually(written, || node.read("10-net.conflist"));
    assert!(node.is_in("10-net.conflist"));
    assert_eq!(ask(address, "PUT", "/scopez/default", r#"{"output_level":"warn"}"#).0, 202);
    let one: Value = serde_json::from_str(&ask(address, "GET", "/scopez/cni-agent", "").1).unwrap();
    assert_eq!(one["output_level"], "warn");

    for (path, body, word) in [
        ("/scopez/grpc", r#"{"output_level":"debug"}"#, "grpc"),
        ("/scopez/cni-agent", r#"{"output_level":"loud"}"#, "loud"),
        ("/scopez/cni-agent", "debug", "output_level"),
    ] {
        let (status, text) = ask(address, "PUT", path, body);
        assert!(status == 400 && text.contains(word), "{status} {text}");
    }
    assert_eq!(ask(address, "GET", "/scopez/grpc", "").0, 400);
    assert_eq!(ask(address, "PUT", "/scopez/cni-agent", &" ".repeat(1 << 20)).0, 413);
    assert_eq!(levels(), all("warn", "debug"));
}
