//! `/healthz` and `/readyz`, and what they know.
//!
//! Healthy means the main loop turns; ready means every part of the work is in order. The text of a 503 says what is
//! missing, `?verbose` also since when, and what to look at although it stops nothing. A port that is taken does not
//! stop the agent. The main loop, the passes and the sockets write here, HTTP reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::get;
use sys::log::rfc3339_micros;
use tokio::net::TcpListener;

use crate::metrics::installs::Installs;

/// After this long without a turn of the main loop the process counts as hung: three slow looks.
const HUNG: Duration = Duration::from_secs(180);
/// Until the next try to get the port.
const BIND_AGAIN: Duration = Duration::from_secs(5);

/// What is known about this process and its node.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
    installs: Installs,
}

#[derive(Debug)]
struct State {
    /// By part: what is missing, or nothing.
    parts: BTreeMap<String, Option<Told>>,
    concerns: BTreeMap<String, Told>,
    last_turn: Instant,
}

/// Something to tell, and since when it is so.
#[derive(Debug, Clone)]
struct Told {
    text: String,
    since: SystemTime,
}

impl Told {
    /// The time stays while only the words change.
    fn again(before: Option<&Self>, text: &str) -> Self {
        Self { text: text.to_owned(), since: before.map_or_else(SystemTime::now, |before| before.since) }
    }

    fn since(&self) -> String {
        let seconds = self.since.elapsed().unwrap_or_default().as_secs();
        format!("since {} ({seconds} s)", rfc3339_micros(self.since))
    }
}

impl Default for Health {
    fn default() -> Self {
        let state = State { parts: BTreeMap::new(), concerns: BTreeMap::new(), last_turn: Instant::now() };
        Self { state: Mutex::new(state), installs: Installs::default() }
    }
}

impl Health {
    /// The main loop has turned.
    pub fn turn(&self) {
        self.state().last_turn = Instant::now();
        self.installs.ready(self.missing().is_none());
    }

    /// How attempts to install ended.
    pub fn installs(&self) -> &Installs {
        &self.installs
    }

    /// These parts belong to the work, and are missing until they are told to be in order.
    pub fn expect(&self, parts: &[&str]) {
        for part in parts {
            self.missing_part(part, "nothing is done about it yet");
        }
    }

    /// This part is in order.
    pub fn in_order(&self, part: &str) {
        self.state().parts.insert(part.to_owned(), None);
    }

    /// This part is not in order, because of this.
    pub fn missing_part(&self, part: &str, missing: &str) {
        let mut state = self.state();
        let told = Told::again(state.parts.get(part).and_then(Option::as_ref), missing);
        state.parts.insert(part.to_owned(), Some(told));
    }

    /// Something that a person should look at, though it stops nothing; `None` when that is over.
    pub fn concern(&self, about: &str, text: Option<&str>) {
        let mut state = self.state();
        match text {
            Some(text) => {
                let told = Told::again(state.concerns.get(about), text);
                state.concerns.insert(about.to_owned(), told);
            }
            None => {
                state.concerns.remove(about);
            }
        }
    }

    /// The parts of the work, and whether they are in order.
    pub fn parts(&self) -> Vec<(String, bool)> {
        self.state().parts.iter().map(|(part, missing)| (part.clone(), missing.is_none())).collect()
    }

    /// What is missing; `None` when the node is in order.
    pub fn missing(&self) -> Option<String> {
        let state = self.state();
        if state.parts.is_empty() {
            return Some("nothing is installed yet".to_owned());
        }
        let missing: Vec<_> = state.parts.values().flatten().map(|told| told.text.as_str()).collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// The concerns, in one line; `None` when there are none.
    pub fn concerns(&self) -> Option<String> {
        let state = self.state();
        let concerns: Vec<_> = state.concerns.values().map(|told| told.text.as_str()).collect();
        (!concerns.is_empty()).then(|| concerns.join("; "))
    }

    fn healthz(&self) -> (StatusCode, String) {
        let since = self.state().last_turn.elapsed();
        if since < HUNG {
            return (StatusCode::OK, String::new());
        }
        (StatusCode::SERVICE_UNAVAILABLE, format!("the main loop has not turned for {} s\n", since.as_secs()))
    }

    fn readyz(&self, verbose: bool) -> (StatusCode, String) {
        let missing = self.missing();
        let status = if missing.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let text = if verbose { self.details() } else { missing.map(|text| text + "\n").unwrap_or_default() };
        (status, text)
    }

    /// One line per part and concern.
    fn details(&self) -> String {
        let state = self.state();
        let mut text = String::new();
        for (part, missing) in &state.parts {
            // Writing into a string cannot fail.
            let _ = match missing {
                None => writeln!(text, "[+] {part}: in order"),
                Some(told) => writeln!(text, "[-] {part}: {}, {}", told.text, told.since()),
            };
        }
        for (about, told) in &state.concerns {
            let _ = writeln!(text, "[!] {about}: {}, {}", told.text, told.since());
        }
        text
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each update is a single assignment, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until the task is dropped. `address` is tried again and again while it is taken; `bound` is told where it
/// is once it is there.
pub async fn serve(health: Arc<Health>, address: SocketAddr, bound: impl Fn(SocketAddr)) {
    let listener = listen(address, "health checks").await;
    if let Ok(address) = listener.local_addr() {
        bound(address);
    }
    let (live, ready) = (Arc::clone(&health), health);
    let is_verbose = |query: &str| query.split('&').any(|word| word == "verbose" || word.starts_with("verbose="));
    let readyz = move |RawQuery(query): RawQuery| async move { ready.readyz(query.as_deref().is_some_and(is_verbose)) };
    let router = Router::new().route("/healthz", get(|| async move { live.healthz() })).route("/readyz", get(readyz));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health checks are not served any more");
    }
}

/// Listens for requests for `what`, as soon as the port is free.
pub(crate) async fn listen(address: SocketAddr, what: &str) -> TcpListener {
    let mut told = false;
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            // A node without IPv6.
            Err(error) if address.ip().is_unspecified() && address.is_ipv6() => {
                match TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await {
                    Ok(listener) if error.kind() != std::io::ErrorKind::AddrInUse => return listener,
                    _ => error,
                }
            }
            Err(error) => error,
        };
        if !told {
            tracing::error!(%address, %error, "{what} are not served yet; the work goes on, and the port is tried again");
            told = true;
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_503_says_what_is_missing_and_when_asked_since_when() {
        let health = Health::default();
        assert_eq!(health.readyz(false).0, StatusCode::SERVICE_UNAVAILABLE);
        health.expect(&["list", "programs"]);
        health.in_order("programs");
        health.missing_part("list", "10-x.conflist is half written");
        let since = health.state().parts["list"].clone().unwrap().since;
        health.missing_part("list", "10-x.conflist is still half written");
        assert_eq!(health.state().parts["list"].clone().unwrap().since, since, "other words, same fault");
        assert_eq!(health.readyz(false).1, "10-x.conflist is still half written\n");
        health.concern("token", Some("it is old"));
        let (status, text) = health.readyz(true);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("[-] list: 10-x.conflist is still half written, since 20"), "{text}");
        assert_eq!(lines[1], "[+] programs: in order");
        assert!(lines[2].starts_with("[!] token: it is old, since 20"), "{text}");
        health.in_order("list");
        assert_eq!(health.readyz(false), (StatusCode::OK, String::new()), "a concern is no reason to be unready");
        health.concern("token", None);
        assert_eq!(health.readyz(true).1, "[+] list: in order\n[+] programs: in order\n");
    }

    #[test]
    fn a_loop_that_does_not_turn_is_not_healthy() {
        let health = Health::default();
        assert_eq!(health.healthz().0, StatusCode::OK);
        health.state().last_turn = Instant::now().checked_sub(HUNG + Duration::from_secs(1)).unwrap();
        assert_eq!(health.healthz().0, StatusCode::SERVICE_UNAVAILABLE);
        health.turn();
        assert_eq!(health.healthz().0, StatusCode::OK);
    }
}
