//! The program in our images: `guest pause`, `guest serve PORT`, `guest ask METHOD ADDRESS PATH`.
//!
//! In the proxy's image it stands where Istio's own program does, and takes the two command lines that the injector
//! writes: `proxy sidecar ...` becomes Envoy with a fixed configuration, `istio-iptables ...` our command of that name.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["pause"] => loop {
            std::thread::park();
        },
        ["serve", port] => {
            let port = port.parse().map_err(|_| format!("no port: {port}"))?;
            let listener = e2e_guest::listen(port).map_err(|error| format!("listen on {port}: {error}"))?;
            e2e_guest::serve(&listener).map_err(|error| format!("serve: {error}"))
        }
        ["ask", method, server, path] => {
            let server: SocketAddr = server.parse().map_err(|_| format!("no address with a port: {server}"))?;
            let reply = e2e_guest::ask(method, server, path).map_err(|error| format!("{method} {server}: {error}"))?;
            print!("{}", reply.body);
            if reply.status == 200 { Ok(()) } else { Err(format!("{method} {server}{path}: status {}", reply.status)) }
        }
        ["proxy", "sidecar", ..] => {
            let options = ["-c", "/etc/envoy/envoy.json", "--concurrency", "1", "--disable-hot-restart"];
            become_program("/usr/local/bin/envoy", &options)
        }
        ["istio-iptables", options @ ..] => become_program("/usr/local/bin/istio-iptables", options),
        _ => Err("usage: guest pause | serve PORT | ask METHOD ADDRESS PATH".to_owned()),
    }
}

/// Returns only when there is no such program.
fn become_program(path: &str, options: &[&str]) -> Result<(), String> {
    Err(format!("{path}: {}", Command::new(path).args(options).exec()))
}
