//! `/healthz` and `/readyz`, and what they know.
//!
//! Healthy means the main loop turns; ready means the node is installed and in order. The text of a 503 says what is
//! missing. A port that is taken does not stop the agent. The main loop and the passes write here, HTTP reads.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

/// After this long without a turn of the main loop the process counts as hung: three slow looks.
const HUNG: Duration = Duration::from_secs(180);
/// Until the next try to get the port.
const BIND_AGAIN: Duration = Duration::from_secs(5);

/// What is known about this process and its node.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    missing: Option<String>,
    last_turn: Instant,
}

impl Default for Health {
    fn default() -> Self {
        let missing = Some("nothing is installed yet".to_owned());
        Self { state: Mutex::new(State { missing, last_turn: Instant::now() }) }
    }
}

impl Health {
    /// The main loop has turned.
    pub fn turn(&self) {
        self.state().last_turn = Instant::now();
    }

    /// The node is installed and in order.
    pub fn ready(&self) {
        self.state().missing = None;
    }

    /// The node is not in order, because of this.
    pub fn not_ready(&self, missing: &str) {
        self.state().missing = Some(missing.to_owned());
    }

    /// What is missing; `None` when the node is in order.
    pub fn missing(&self) -> Option<String> {
        self.state().missing.clone()
    }

    fn healthz(&self) -> (StatusCode, String) {
        let since = self.state().last_turn.elapsed();
        if since < HUNG {
            return (StatusCode::OK, String::new());
        }
        (StatusCode::SERVICE_UNAVAILABLE, format!("the main loop has not turned for {} s\n", since.as_secs()))
    }

    fn readyz(&self) -> (StatusCode, String) {
        match self.missing() {
            None => (StatusCode::OK, String::new()),
            Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each update is a single assignment, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until the task is dropped. `address` is tried again and again while it is taken; `bound` is told where it
/// is once it is there.
pub async fn serve(health: Arc<Health>, address: SocketAddr, bound: impl Fn(SocketAddr)) {
    let listener = listen(address).await;
    if let Ok(address) = listener.local_addr() {
        bound(address);
    }
    let (live, ready) = (Arc::clone(&health), health);
    let router = Router::new()
        .route("/healthz", get(|| async move { live.healthz() }))
        .route("/readyz", get(|| async move { ready.readyz() }));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health checks are not served any more");
    }
}

async fn listen(address: SocketAddr) -> TcpListener {
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
            tracing::error!(%address, %error, "health checks are not served yet, so the pod is not ready; the work goes on");
            told = true;
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_503_says_what_is_missing() {
        let health = Health::default();
        assert_eq!(health.readyz().0, StatusCode::SERVICE_UNAVAILABLE);
        health.not_ready("10-x.conflist is half written");
        assert!(health.readyz().1.contains("half written"));
        health.ready();
        assert_eq!(health.readyz(), (StatusCode::OK, String::new()));
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
