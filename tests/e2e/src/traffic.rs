//! Who served a request: Envoy, or nobody in between. Seen from both ends and in Envoy's access log, not assumed.
//!
//! The server tells which address it saw. When that is the client's own, nobody was in between. When it is another one,
//! Envoy's log must hold a connection from exactly this client out of exactly that address.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sys::netns::Netns;
use testkit::cri::Cri;
use testkit::envoy::{self, ADMIN_PORT, INBOUND_SOURCES, Served};

use crate::failure::Failure;
use crate::images::APP_PROGRAM;
use crate::interrupt::Interrupt;
use crate::pods::RunningPod;

/// Port of the application in every pod.
pub const APP_PORT: u16 = 8080;
/// Name of the application's container in every pod.
pub const APP_CONTAINER: &str = "app";

const PATIENCE: Duration = Duration::from_secs(10);

/// Who served a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Envoy took the connection and made its own to the destination.
    Envoy,
    /// Client and destination were connected directly.
    Direct,
}

impl Server {
    /// As the end of a sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Envoy => "Envoy",
            Self::Direct => "nobody in between",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Envoy => "Envoy",
            Self::Direct => "direct",
        })
    }
}

/// A pod whose traffic is looked at.
pub struct Subject<'a> {
    /// The runtime, to run commands in the pod.
    pub cri: &'a Cri,
    /// The pod.
    pub pod: &'a RunningPod,
    /// Envoy's access log as the node sees it; `None` for a pod without Envoy.
    pub access_log: Option<PathBuf>,
}

impl Subject<'_> {
    /// Waits until the application answers, and Envoy where there is one.
    ///
    /// # Errors
    /// Says who does not answer.
    pub fn wait_until_ready(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let answers = |port: u16, path: &str| self.ask_from_inside("GET", &format!("127.0.0.1:{port}"), path);
        let name = &self.pod.name;
        interrupt.wait_for(&format!("application of {name}"), PATIENCE, || answers(APP_PORT, "/"))?;
        if self.access_log.is_some() {
            interrupt.wait_for(&format!("Envoy of {name}"), PATIENCE, || answers(ADMIN_PORT, "/ready"))?;
        }
        Ok(())
    }

    /// Sends one request from `client` to each address of the pod.
    ///
    /// # Errors
    /// When a request fails, the families disagree, or what was seen fits neither answer.
    pub fn inbound(&self, interrupt: &Interrupt, client: &Netns) -> Result<Server, Failure> {
        let mut servers = Vec::new();
        for address in &self.pod.addresses {
            let Ok(ip) = address.parse::<IpAddr>() else {
                return Failure::unexpected(format!("the runtime gave {} the address {address}", self.pod.name));
            };
            let destination = SocketAddr::new(ip, APP_PORT);
            let what = format!("request from outside to {} at {destination}", self.pod.name);
            let reply = client.run(|| e2e_guest::ask("GET", destination, "/"))?.map_err(Failure::system(&what))?;
            let seen = peer(&reply.body, &what)?;
            if seen == reply.local {
                servers.push(Server::Direct);
                continue;
            }
            let from_envoy = INBOUND_SOURCES.iter().any(|source| source.parse() == Ok(seen.ip()));
            let is_it = |line: &Served| {
                line.direction == "inbound" && is(&line.client, reply.local) && is_some(line.source.as_ref(), seen)
            };
            if !from_envoy || !self.is_logged(interrupt, is_it)? {
                return Failure::unexpected(format!(
                    "{what}: the client was {}, the application saw {seen}, and Envoy's log does not tell why",
                    reply.local
                ));
            }
            servers.push(Server::Envoy);
        }
        self.agreed(&servers, "inbound")
    }

    /// Sends one request from the pod's application to each of `destinations`.
    ///
    /// # Errors
    /// As [`Subject::inbound`].
    pub fn outbound(&self, interrupt: &Interrupt, destinations: &[SocketAddr]) -> Result<Server, Failure> {
        let mut servers = Vec::new();
        for destination in destinations {
            let what = format!("request from {} to {destination}", self.pod.name);
            let body = self.ask_from_inside("GET", &destination.to_string(), "/");
            let body = body.map_err(|reason| Failure::Unexpected(format!("{what}: {reason}")))?;
            let seen = peer(&body, &what)?;
            // Both ways leave the pod with the pod's address; only Envoy's log tells whose connection it was.
            if !self.pod.addresses.iter().any(|address| address.parse() == Ok(seen.ip())) {
                return Failure::unexpected(format!("{what}: the server saw {seen}, which is none of the pod's"));
            }
            let is_it = |line: &Served| {
                line.direction == "outbound"
                    && is(&line.destination, *destination)
                    && is_some(line.source.as_ref(), seen)
            };
            servers.push(if self.is_logged(interrupt, is_it)? { Server::Envoy } else { Server::Direct });
        }
        self.agreed(&servers, "outbound")
    }

    fn agreed(&self, servers: &[Server], direction: &str) -> Result<Server, Failure> {
        match servers {
            [first, rest @ ..] if rest.iter().all(|server| server == first) => Ok(*first),
            [] => Failure::unexpected(format!("{direction} of {}: nothing to ask", self.pod.name)),
            _ => Failure::unexpected(format!("{direction} of {}: IPv4 and IPv6 differ: {servers:?}", self.pod.name)),
        }
    }

    /// Whether Envoy's log has a connection like this. A finished connection is logged a moment after its end, so a
    /// missing line is looked for again.
    fn is_logged(&self, interrupt: &Interrupt, is_it: impl Fn(&Served) -> bool) -> Result<bool, Failure> {
        let Some(log) = &self.access_log else { return Ok(false) };
        let found = interrupt.wait_for("line in the access log", Duration::from_secs(1), || {
            self.ask_from_inside("POST", &format!("127.0.0.1:{ADMIN_PORT}"), "/reopen_logs")?;
            if read(log)?.iter().any(&is_it) { Ok(()) } else { Err("no such line".to_owned()) }
        });
        match found {
            Ok(()) => Ok(true),
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
            Err(_) => Ok(false),
        }
    }

    fn ask_from_inside(&self, method: &str, server: &str, path: &str) -> Result<String, String> {
        let container = self.pod.container(APP_CONTAINER).map_err(|error| error.to_string())?;
        let command = [APP_PROGRAM, "ask", method, server, path];
        self.cri.exec(container, &command).map_err(|error| error.to_string())
    }
}

fn read(log: &Path) -> Result<Vec<Served>, String> {
    let text = fs::read_to_string(log).map_err(|error| format!("{}: {error}", log.display()))?;
    Ok(envoy::served(&text))
}

fn peer(body: &str, what: &str) -> Result<SocketAddr, Failure> {
    match body.trim().parse() {
        Ok(address) => Ok(address),
        Err(_) => Failure::unexpected(format!("{what}: the server answered {body:?} instead of an address")),
    }
}

fn is(text: &str, address: SocketAddr) -> bool {
    text.parse() == Ok(address)
}

fn is_some(text: Option<&String>, address: SocketAddr) -> bool {
    text.is_some_and(|text| is(text, address))
}
