//! The main loop: look at the node, put it in order, wait for a change.
//!
//! One task; passes run beside it because they block on the disk. It ends with a signal and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_api::paths;
use thiserror::Error;
use tokio::task::JoinError;

use crate::beside;
use crate::clock::Clock;
use crate::config::Config;
use crate::credential::Credential;
use crate::health::Health;
use crate::install::pass::{Installer, QUICK_LOOK};
use crate::shutdown::{self, Fate, Question};
use crate::watch::Watch;

/// Why the agent ended badly.
#[derive(Debug, Error)]
pub enum AppError {
    /// A bug: a pass panicked.
    #[error("a pass over the node ended unexpectedly: {0}")]
    Pass(#[from] JoinError),
}

/// The agent of one node.
pub struct App {
    config: Arc<Config>,
    health: Arc<Health>,
    question: Option<Question>,
}

impl App {
    /// With settings that were checked.
    pub fn new(config: Config) -> Self {
        Self { config: Arc::new(config), health: Arc::new(Health::default()), question: None }
    }

    /// Whom to ask at the end whether it is one for good.
    #[must_use]
    pub fn asking(mut self, question: Question) -> Self {
        self.question = Some(question);
        self
    }

    /// What is known about the node; shared with the running agent.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Keeps the node installed until `end` is ready; then uninstalls, if it is an end for good. `bound` is told where
    /// health is served.
    ///
    /// # Errors
    /// [`AppError`]; the node is then left as it is.
    pub async fn run<T>(
        self,
        end: impl Future<Output = T>,
        bound: impl Fn(SocketAddr) + Send + 'static,
    ) -> Result<T, AppError> {
        let credential = Arc::new(Credential::new(&self.config));
        let beside = beside::start(&self.config, &self.health, &credential, bound);
        let dirs = &self.config.dirs;
        let watched = dirs.binaries_to.iter().chain([&dirs.cni, &dirs.service_account]).cloned();
        let mut watch = Watch::new(watched).and_file(paths::kubeconfig(&dirs.run));
        let clock = Clock::watch();
        let mut installer =
            Installer::new(Arc::clone(&self.config), self.health()).with_credential(Arc::clone(&credential));
        let mut levels = self.config.agent.plugin_log.levels().changes();
        let mut bearers = credential.changes();
        let mut refusals = credential.refusals();
        tokio::pin!(end);
        let ended = loop {
            let sees_all = watch.arm();
            let (next, back) = tokio::task::spawn_blocking(move || (installer.pass(), installer)).await?;
            installer = back;
            self.health.turn();
            let pause = if sees_all { next } else { next.min(QUICK_LOOK) };
            tokio::select! {
                biased;
                ended = &mut end => break ended,
                () = watch.changed() => {}
                () = clock.set() => {}
                // The plugin's goes into its configuration.
                _ = levels.changed() => {}
                _ = bearers.changed() => {}
                _ = refusals.changed() => {}
                () = tokio::time::sleep(pause.max(Duration::from_millis(10))) => {}
            }
        };
        self.health.missing_part("agent", "it is ending");
        let config = Arc::clone(&self.config);
        let fate = Fate::learn(&config, self.question).await;
        tokio::task::spawn_blocking(move || shutdown::conclude(&config, &fate)).await?;
        drop(beside);
        Ok(ended)
    }
}
