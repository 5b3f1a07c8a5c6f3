//! The end: which signals mean it, and whether it is one for good.
//!
//! A pod ends because the agent is updated, the node restarts, or it is to be uninstalled; the signal is the same. In
//! the first two cases plugin, list entry and kubeconfig have to stay, or pods would start outside the mesh until the
//! successor is there. The API server knows the difference, and is asked once. A failed pass is no reason to end,
//! and a process that could not start has nothing to take away.

use std::pin::Pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::install::uninstall::uninstall;

/// How long the API server has for its answer; a pod that ends has 30 s for everything.
const DEADLINE: Duration = Duration::from_secs(5);
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

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

/// What the API server says about our DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is there, and is to run on this node.
    Wanted,
    /// It is there and being deleted.
    Going,
    /// It is there, but by its required node affinity not for this node.
    NotHere,
    /// The server answered with this status instead.
    Status(u16),
    /// No answer, for this reason.
    None(String),
}

/// What becomes of the installation when the process ends. Each with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It stays: a successor will come.
    Stay(String),
    /// It goes.
    Go(String),
}

/// Asks the API server, when the time has come.
pub type Question = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send>;

impl Fate {
    /// What an answer means. An uninstall removes our rights before our pod, so to be refused is an answer too; in
    /// doubt the node stays as it is.
    pub fn of(answer: &Answer) -> Self {
        let go = |reason: &str| Self::Go(reason.to_owned());
        match answer {
            Answer::Wanted => Self::Stay("the DaemonSet is there, so a successor will come".to_owned()),
            Answer::Going => go("the DaemonSet is being deleted"),
            Answer::NotHere => go("the DaemonSet is not for this node any more"),
            Answer::Status(NOT_FOUND) => go("the DaemonSet is gone"),
            Answer::Status(UNAUTHORIZED) => go("our service account is not known any more"),
            Answer::Status(FORBIDDEN) => go("our rights are gone, and an uninstall takes them before the pod"),
            Answer::Status(status) => Self::Stay(format!("the API server answered with status {status}")),
            Answer::None(reason) => Self::Stay(format!("the API server did not answer: {reason}")),
        }
    }

    /// Asks, in time, unless the settings have decided.
    pub async fn learn(config: &Config, question: Option<Question>) -> Self {
        if config.always_clean_up {
            return Self::Go("AMBIENT_DISABLE_SAFE_UPGRADE is set".to_owned());
        }
        let Some(question) = question else { return Self::Stay("nobody can be asked".to_owned()) };
        let late = || Answer::None(format!("not within {} s", DEADLINE.as_secs()));
        Self::of(&tokio::time::timeout(DEADLINE, question()).await.unwrap_or_else(|_| late()))
    }
}

/// Does what the fate says, and logs what stays although it should not.
pub fn conclude(config: &Config, fate: &Fate) {
    let cause = match fate {
        Fate::Stay(cause) => {
            tracing::info!(cause, "plugin, list and kubeconfig stay on the node");
            return;
        }
        Fate::Go(cause) => cause,
    };
    tracing::info!(cause, "the node is uninstalled");
    let errors = uninstall(config);
    for error in &errors {
        tracing::error!(cause = error, "not uninstalled");
    }
    if errors.is_empty() {
        tracing::info!("uninstalled: nothing of ours is left in the CNI configuration");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_uninstall_takes_the_plugin_away() {
        for (answer, goes) in [
            (Answer::Wanted, false),
            (Answer::Going, true),
            (Answer::NotHere, true),
            (Answer::Status(404), true),
            (Answer::Status(401), true),
            (Answer::Status(403), true),
            (Answer::Status(429), false),
            (Answer::Status(500), false),
            (Answer::None("no route".to_owned()), false),
        ] {
            assert_eq!(matches!(Fate::of(&answer), Fate::Go(_)), goes, "{answer:?}");
        }
    }
}
