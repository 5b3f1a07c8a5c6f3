//! The agent's sockets in the run directory: HTTP/1.1 for root on this node, one request per connection.
//!
//! A socket that cannot be made, was removed or replaced is made again; meanwhile the agent works and says that it is not
//! ready. Who may connect, how long a connection may take and how many there may be is decided here; what is answered
//! in [`questions`] and [`logs`].

pub mod logs;
pub mod questions;
mod socket;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::socket::{Socket, is_alive};
use crate::health::Health;

/// A connection is closed after this long, whatever has happened on it.
const LIMIT: Duration = Duration::from_secs(2);
/// Connections of one socket at a time; more wait.
const CONNECTIONS: usize = 64;
/// Largest head of a request, in bytes. Bodies are read in pieces of this size.
const MAX_HEAD: usize = 16 << 10;
/// Between two looks whether the socket is still there, and between two tries to make it.
const LOOK: Duration = Duration::from_secs(2);

/// Answers requests at `path` until the task is dropped.
async fn serve(name: &'static str, path: &Path, router: Router, health: &Health) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let mut told = None;
    let mut was_bound = false;
    loop {
        // At the start we take over from an agent that is about to end. One that takes over from us is newer.
        let bound = if was_bound && is_alive(path).await {
            Err("another agent has taken it over".to_owned())
        } else {
            Socket::bind(path).map_err(|error| error.to_string())
        };
        match bound {
            Ok(socket) => {
                was_bound = true;
                told = None;
                health.in_order(name);
                tracing::debug!(path = %path.display(), "socket is served");
                accept(&socket, &router, &connections).await;
                tracing::warn!(path = %path.display(), "socket was removed or replaced, it is made again");
            }
            Err(cause) => {
                health.missing_part(name, &format!("{name}: {cause}"));
                if told.as_ref() != Some(&cause) {
                    tracing::warn!(path = %path.display(), cause, "socket is not served, it is tried again; plugins do without");
                    told = Some(cause);
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Serves connections for as long as the socket is where it should be.
async fn accept(socket: &Socket, router: &Router, connections: &Arc<Semaphore>) {
    let mut told = false;
    let mut look = tokio::time::interval(LOOK);
    loop {
        let stream = tokio::select! {
            _ = look.tick() => {
                if socket.is_in_place() {
                    continue;
                }
                return;
            }
            accepted = socket.accept() => match accepted {
                Ok((stream, true)) => stream,
                Ok((_, false)) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(path = %socket.path().display(), "a process that is not root's was turned away");
                    }
                    continue;
                }
                Err(error) => {
                    // Out of files, most likely.
                    tracing::debug!(%error, "connection not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        // The semaphore is never closed, so there is always a permit in the end.
        let Ok(permit) = Arc::clone(connections).acquire_owned().await else { return };
        tokio::spawn(connection(stream, router.clone(), permit));
    }
}

async fn connection(stream: UnixStream, router: Router, permit: OwnedSemaphorePermit) {
    let mut builder = http1::Builder::new();
    // A plugin that has nothing to wait for leaves as soon as it has said everything.
    let builder = builder.keep_alive(false).half_close(true).max_buf_size(MAX_HEAD);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(LIMIT, served).await {
        Ok(Ok(())) => {}
        // The other side left or does not speak HTTP.
        Ok(Err(error)) => tracing::debug!(%error, "connection ended early"),
        Err(_) => tracing::debug!("connection took too long and was closed"),
    }
    drop(permit);
}
