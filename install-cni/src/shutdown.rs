//! The end: which signals mean it, and what is done then.
//!
//! Every orderly end uninstalls, as Istio's agent does in sidecar mode. A failed pass is no reason to end, and a
//! process that could not start has nothing to take away.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::install::uninstall::uninstall;

/// Waits for SIGTERM or SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns the name of the signal that has come.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Takes our things off the node and logs what stays.
pub fn clean_up(config: &Config) {
    let errors = uninstall(config);
    for error in &errors {
        tracing::error!(cause = error, "not uninstalled");
    }
    if errors.is_empty() {
        tracing::info!("uninstalled: nothing of ours is left in the CNI configuration");
    }
}
