//! Proves from inside a pod, without any privilege, that traffic is redirected to the proxy.
//!
//! The process stands in for the proxy: it listens on the proxy's ports and, as the proxy's user, connects to an address
//! where nobody listens. When the rules work, that connection arrives at one of its own listeners, and the kernel tells
//! for which port it was meant. The command's `--run-validation` calls this; it changes nothing.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sys::original_dst::{connect_from, listen_shared, original_destination};
use thiserror::Error;

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// What to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Over IPv6, not IPv4.
    pub ipv6: bool,
    /// The proxy's outbound port, as text.
    pub proxy_port: String,
    /// The proxy's inbound port, as text.
    pub inbound_port: String,
    /// Port to connect to.
    pub port: u16,
    /// Longest time that the proof may take.
    pub timeout: Duration,
}

/// Why there is no proof.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotRedirected {
    /// Nothing arrived.
    #[error(
        "no connection to {target} arrived at the proxy's ports within {timeout:?}; are there rules, and for the user of this process?"
    )]
    Timeout {
        /// Where the probe connected to.
        target: SocketAddr,
        /// How long.
        timeout: Duration,
    },
    /// The proxy's ports cannot be listened on.
    #[error("neither of the proxy's ports can be listened on: {0}")]
    NoListener(String),
}

impl Probe {
    fn listen_address(&self) -> IpAddr {
        if self.ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
    }

    fn target(&self) -> SocketAddr {
        let address: IpAddr =
            if self.ipv6 { Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into() } else { Ipv4Addr::new(127, 0, 0, 6).into() };
        SocketAddr::new(address, self.port)
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, target) = (self.listen_address(), self.target());
        let (proxy, inbound, timeout) = (&self.proxy_port, &self.inbound_port, self.timeout);
        write!(f, "a connection to {target} should arrive at {own}, port {proxy} or {inbound}, within {timeout:?}")
    }
}

/// Waits for the proof; `note` gets what happens meanwhile. Its threads end with the process.
///
/// # Errors
/// Why there is no proof.
pub fn run(probe: &Probe, note: &dyn Fn(&str)) -> Result<(), NotRedirected> {
    let deadline = Instant::now() + probe.timeout;
    let (sender, events) = channel();
    let mut problems = Vec::new();
    for port in [&probe.proxy_port, &probe.inbound_port] {
        match listen(probe.listen_address(), port) {
            Ok(listener) => {
                let (sender, wanted) = (sender.clone(), probe.port);
                thread::spawn(move || accept(&listener, wanted, &sender));
            }
            Err(problem) => {
                note(&problem);
                problems.push(problem);
            }
        }
    }
    if problems.len() == 2 {
        return Err(NotRedirected::NoListener(problems.join("; ")));
    }
    let (source, target) = (probe.listen_address(), probe.target());
    thread::spawn(move || connect(source, target, &sender));
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Arrived) => return Ok(()),
            Ok(Event::Note(text)) => note(&text),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(NotRedirected::Timeout { target, timeout: probe.timeout });
            }
        }
    }
}

/// What the threads tell.
enum Event {
    /// A connection that was meant for the probe's port.
    Arrived,
    /// Something else.
    Note(String),
}

fn listen(address: IpAddr, port: &str) -> Result<TcpListener, String> {
    let number: u16 = port.parse().map_err(|_| format!("`{port}` is not a port to listen on"))?;
    listen_shared(SocketAddr::new(address, number)).map_err(|error| format!("{address}, port {port}: {error}"))
}

/// Takes connections until the right one comes, or nobody waits any more.
fn accept(listener: &TcpListener, wanted: u16, events: &Sender<Event>) {
    for stream in listener.incoming() {
        let (event, done) = match stream.and_then(|stream| original_destination(&stream).map(|to| (stream, to.port())))
        {
            Ok((mut stream, port)) => {
                // For whoever tries it by hand.
                let _ = write!(stream, "{port}");
                let arrived = port == wanted;
                let note = || Event::Note(format!("a connection meant for port {port} arrived; waiting for {wanted}"));
                (if arrived { Event::Arrived } else { note() }, arrived)
            }
            Err(error) => (Event::Note(format!("a connection arrived that was not redirected: {error}")), false),
        };
        if events.send(event).is_err() || done {
            return;
        }
    }
}

/// Connects again and again: the rules may still be on their way.
fn connect(source: IpAddr, target: SocketAddr, events: &Sender<Event>) {
    loop {
        let outcome: io::Result<_> = connect_from(source, target);
        if let Err(error) = outcome
            && events.send(Event::Note(format!("no connection to {target} yet: {error}"))).is_err()
        {
            return;
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Probe {
        Probe {
            ipv6: false,
            proxy_port: "0".to_owned(),
            inbound_port: "0".to_owned(),
            port: 15002,
            timeout: Duration::from_millis(50),
        }
    }

    #[test]
    fn without_rules_the_proof_fails_and_says_what_did_not_arrive() {
        let error = run(&probe(), &|_| {}).unwrap_err();
        assert!(error.to_string().contains("127.0.0.6:15002"), "{error}");
    }

    #[test]
    fn ports_that_are_none_are_named() {
        let probe = Probe { proxy_port: "http".to_owned(), inbound_port: "70000".to_owned(), ..probe() };
        let error = run(&probe, &|_| {}).unwrap_err().to_string();
        assert!(error.contains("`http`") && error.contains("`70000`"), "{error}");
    }
}
