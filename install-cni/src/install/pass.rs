//! One pass over the node: programs, then credentials, then the CNI configuration, each only if it differs.
//!
//! The order matters: a runtime may read the list at any moment, and what it names must be there by then. Whatever
//! fails is reported and tried again; a pass never ends the process and never takes anything off the node. Called
//! by the main loop, on a thread where it may block.

mod reports;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_api::{Kubeconfig, paths};
use sys::file::{self, FileError};

use self::reports::Reports;
use super::binaries::{self, Stamps, Target};
use super::directory::DirectoryError;
use super::observe::{self, Observed};
use super::rival::Rival;
use super::runner::{Runner, StepError};
use super::steps::Step;
use super::token::Life;
use super::wanted::{self, Look, Memory, Obstacle, Part, with_hint};
use crate::config::Config;
use crate::credential::{Bearer, Credential};
use crate::health::Health;
use crate::log::levels::Level;

/// Until the next look at a node that is in order, when no event comes.
pub const SLOW_LOOK: Duration = Duration::from_secs(60);
/// Until the next look while something failed or is awaited.
pub const QUICK_LOOK: Duration = Duration::from_secs(5);
/// Until the next look when a file changed during the pass.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Mode of the run directory: it holds a token.
const RUN_DIR_MODE: u32 = 0o700;
/// The parts of the work, as probes and log name them.
pub const PARTS: [&str; 3] = ["programs", "credentials", "list"];

/// Keeps one node installed.
#[derive(Debug)]
pub struct Installer {
    config: Arc<Config>,
    health: Arc<Health>,
    credential: Arc<Credential>,
    runner: Runner,
    rival: Rival,
    reports: Reports,
    memory: Memory,
    /// Name of the file that is in order, as of the last pass.
    current: Option<String>,
    /// The plugin's log level in it, if it was changed while the agent ran.
    plugin_level: Option<Level>,
    failures: u32,
    prepared: bool,
    /// Of the programs, when they were last found in order.
    verified: Option<Stamps>,
}

/// How one part of a pass ended.
enum Outcome {
    /// In order now.
    Done,
    /// Nothing can be done yet.
    Waiting(String),
    /// Something should have worked.
    Failed(String),
    /// To be done a little later.
    Later(Duration, String),
}

impl Installer {
    /// For a node as `config` describes it; readiness goes to `health`.
    pub fn new(config: Arc<Config>, health: Arc<Health>) -> Self {
        let runner = Runner::open(&config.dirs.run);
        Self::with_runner(config, health, runner)
    }

    /// As [`Installer::new`], with a runner that may be one that stops.
    pub fn with_runner(config: Arc<Config>, health: Arc<Health>, runner: Runner) -> Self {
        health.expect(&PARTS);
        let (rival, reports, memory) = (Rival::default(), Reports::default(), Memory::default());
        Self {
            config,
            health,
            credential: Arc::default(),
            runner,
            rival,
            reports,
            memory,
            current: None,
            plugin_level: None,
            failures: 0,
            prepared: false,
            verified: None,
        }
    }

    /// The plugin gets a token as `credential` says, not the agent's own.
    #[must_use]
    pub fn with_credential(mut self, credential: Arc<Credential>) -> Self {
        self.credential = credential;
        self
    }

    /// What carries out the steps.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Does one pass and returns after which time the next one is due if nothing happens before.
    pub fn pass(&mut self) -> Duration {
        if let Err(error) = file::create_dir(&self.config.dirs.run, RUN_DIR_MODE) {
            // Told by the parts that need it.
            tracing::debug!(%error, "no run directory");
        }
        let dirs = &self.config.dirs;
        // Reading megabytes once a minute is most of what an idle agent would cost.
        let stamps = Stamps::take(&dirs.binaries_from, &dirs.binaries_to);
        let bearer = self.credential.bearer();
        let mut observed = Observed::look(&self.config, &bearer, stamps.is_some() && stamps == self.verified);
        if self.prepare(&observed) {
            observed = Observed::look(&self.config, &bearer, false);
        }
        let programs = wanted::programs(&observed);
        self.verified = stamps.filter(|_| programs == Part::default());
        if !programs.steps.is_empty() {
            self.health.missing_part(PARTS[0], "they are being installed");
        }
        let programs = self.carry_out(programs);
        // A changed token is no reason to be unready: the node works with the old one until this is done.
        let credentials = self.carry_out(wanted::credentials(&self.config, &observed));
        self.watch_token(&observed, &bearer);
        drop(observed);
        let list = if !matches!(programs, Outcome::Done) && !self.plugin_is_usable() {
            // A list that names a plugin which cannot run stops every pod of the node.
            Outcome::Waiting("the CNI list is not touched before the plugin is there".to_owned())
        } else if !paths::kubeconfig(&self.config.dirs.run).exists() {
            // Without it every pod of the mesh would be refused.
            Outcome::Waiting("the CNI list is not touched before the kubeconfig is there".to_owned())
        } else {
            self.edit_list()
        };
        self.conclude([programs, credentials, list])
    }

    /// What a killed predecessor left costs space and nothing else, so it is looked for once.
    fn prepare(&mut self, observed: &Observed) -> bool {
        let incomplete = |target: &Target| target.files.iter().any(|file| !matches!(file, Ok(Some(_))));
        if std::mem::replace(&mut self.prepared, true) && !observed.targets.iter().any(incomplete) {
            return false;
        }
        let dirs = &self.config.dirs;
        let mut results = vec![
            file::restrict(&dirs.run, RUN_DIR_MODE),
            file::clear(&dirs.run).map(|_| ()),
            file::clear(&dirs.cni).map(|_| ()),
            file::clear_beside(&paths::kubeconfig(&dirs.run)).map(|_| ()),
        ];
        if let Ok(image) = &observed.image {
            results.extend(dirs.binaries_to.iter().map(|target| binaries::prepare(target, image)));
        }
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            tracing::debug!(%error, "left-over temporary files, or a missing directory");
        }
        true
    }

    /// A token without a successor is told in time. It is no reason to be unready, because the API server decides.
    fn watch_token(&mut self, observed: &Observed, bearer: &Bearer) {
        let kubeconfig = observed.credentials.as_ref().ok().and_then(|text| Kubeconfig::parse(text).ok());
        let life = kubeconfig.and_then(|kubeconfig| Life::of(&kubeconfig.token));
        self.health.installs().token_ends(life.map(|life| life.ends));
        // That of another account is not kubelet's to renew.
        let life = life.filter(|_| *bearer == Bearer::Own);
        self.concern("token", life.and_then(|life| life.concern(SystemTime::now())));
    }

    fn plugin_is_usable(&self) -> bool {
        self.config.dirs.binaries_to.iter().all(|target| binaries::plugin_is_usable(target))
    }

    /// Does the steps of a part, all that can be done, and tells how that ended.
    fn carry_out(&mut self, part: Part) -> Outcome {
        let mut outcome = Outcome::of(part.obstacle);
        for step in &part.steps {
            if let Err(error) = self.step(step) {
                outcome = failed_step(&error);
            }
        }
        outcome
    }

    fn edit_list(&mut self) -> Outcome {
        match self.edit_list_once() {
            // What was done is looked at once more: that alone counts.
            None => self.edit_list_once().unwrap_or_else(|| {
                Outcome::Later(AT_ONCE, "the CNI configuration was changed by someone else just now".to_owned())
            }),
            Some(outcome) => outcome,
        }
    }

    /// `None` when something was changed, so that it has to be looked at again.
    fn edit_list_once(&mut self) -> Option<Outcome> {
        let directory = match observe::lists(&self.config, &self.config.dirs.cni) {
            Ok(directory) => directory,
            Err(error) => return Some(Outcome::of(Some(unreadable(error)))),
        };
        let targets = &self.config.dirs.binaries_to;
        let has_program = |name: &str| targets.iter().any(|target| target.join(name).exists());
        let look = Look { journal: self.runner.journal(), has_program: &has_program, now: Instant::now() };
        let lists = wanted::lists(&self.config, &directory, &look, &mut self.memory);
        for skipped in &lists.skipped {
            self.reports.skipped(&skipped.name, &skipped.reason);
        }
        self.concern("configuration", (!lists.concerns.is_empty()).then(|| lists.concerns.join("; ")));
        let name = lists.file.unwrap_or_else(|| "the CNI configuration".to_owned());
        if lists.part.steps.is_empty() {
            if lists.part.obstacle.is_none() {
                self.now_current(&name, &directory.path);
            }
            return Some(Outcome::of(lists.part.obstacle));
        }
        if self.current.as_deref() == Some(name.as_str()) && self.plugin_level == self.wanted_level() {
            self.health.installs().reverted();
        }
        self.health.missing_part(PARTS[2], &format!("{name} is being edited"));
        if let Some(pause) = self.rival.pause(Instant::now()) {
            let reason = Rival::warning(&name, directory.cilium_renames);
            self.reports.failed("rival", &reason);
            self.health.installs().rival();
            return Some(Outcome::Later(pause, reason));
        }
        for step in &lists.part.steps {
            if let Err(error) = self.step(step) {
                return Some(failed_step(&error));
            }
        }
        self.rival.wrote(Instant::now());
        None
    }

    fn wanted_level(&self) -> Option<Level> {
        self.config.agent.plugin_log.levels().changed_plugin()
    }

    fn now_current(&mut self, name: &str, directory: &Path) {
        self.plugin_level = self.wanted_level();
        if self.current.as_deref() == Some(name) {
            return;
        }
        tracing::info!(path = %directory.join(name).display(), "the node is installed: our plugin is in the CNI configuration");
        self.current = Some(name.to_owned());
    }

    fn concern(&mut self, about: &str, concern: Option<String>) {
        match &concern {
            Some(text) => self.reports.concern(about, text),
            None => self.reports.solved(about),
        }
        self.health.concern(about, concern.as_deref());
    }

    /// Carries out one step, and counts it.
    fn step(&mut self, step: &Step) -> Result<(), StepError> {
        self.runner.run(step).inspect(|()| self.health.installs().wrote(&step.cause))
    }

    /// Tells everybody, and for how long nothing more is to be done.
    fn conclude(&mut self, outcomes: [Outcome; 3]) -> Duration {
        let mut next = SLOW_LOOK;
        let mut failed = false;
        for (part, outcome) in PARTS.into_iter().zip(outcomes) {
            let missing = match outcome {
                Outcome::Done => {
                    self.reports.solved(part);
                    self.health.in_order(part);
                    continue;
                }
                Outcome::Waiting(reason) => {
                    self.reports.waiting(part, &reason);
                    next = next.min(QUICK_LOOK);
                    reason
                }
                Outcome::Failed(reason) => {
                    self.reports.failed(part, &reason);
                    self.health.installs().failed(part);
                    failed = true;
                    reason
                }
                Outcome::Later(pause, reason) => {
                    next = next.min(pause);
                    reason
                }
            };
            self.health.missing_part(part, &missing);
        }
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        if failed { next.min(Duration::from_secs(u64::from(self.failures)).min(QUICK_LOOK)) } else { next }
    }
}

impl Outcome {
    fn of(obstacle: Option<Obstacle>) -> Self {
        match obstacle {
            None => Self::Done,
            Some(Obstacle::Waiting(reason)) => Self::Waiting(reason),
            Some(Obstacle::Failed(reason)) => Self::Failed(reason),
        }
    }
}

fn unreadable(error: DirectoryError) -> Obstacle {
    match error {
        DirectoryError::Missing(_) => Obstacle::Waiting(error.to_string()),
        DirectoryError::Unreadable { path, source } => {
            let error = FileError::Io { action: "list the CNI configuration directory", path, source };
            Obstacle::Failed(with_hint(&error, Some(&error)))
        }
    }
}

fn failed_step(error: &StepError) -> Outcome {
    match error {
        StepError::File(file) => Outcome::Failed(with_hint(error, Some(file))),
        StepError::Changed(_) => Outcome::Later(AT_ONCE, error.to_string()),
        StepError::Stopped => Outcome::Failed(error.to_string()),
    }
}
