//! One pass over the node: binaries, then kubeconfig, then the CNI list, each only if it differs.
//!
//! The order matters: a runtime may read the list at any moment, and what it names must be there by then. Whatever
//! fails is reported and tried again; a pass never ends the process and never takes anything off the node. Called
//! by the main loop, on a thread where it may block.

mod reports;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_api::paths;
use serde_json::Value;
use sys::file::{self, FileError};

use self::reports::Reports;
use super::choose::{Choice, STANDALONE_NAME, choose_in};
use super::directory::{Directory, DirectoryError};
use super::discover;
use super::edit::EditError;
use super::hint::hint;
use super::plan::PlanError;
use super::rival::Rival;
use super::steps::{Step, StepError};
use super::{binaries, kubeconfig, plan};
use crate::config::Config;
use crate::health::Health;

/// Until the next look at a node that is in order, when no event comes.
pub const SLOW_LOOK: Duration = Duration::from_secs(60);
/// Until the next look while something failed or is awaited.
pub const QUICK_LOOK: Duration = Duration::from_secs(5);
/// Until the next look when a file changed during the pass.
const AT_ONCE: Duration = Duration::from_millis(100);
/// How long the list in use may be half written before another file is considered.
const HALF_WRITTEN: Duration = Duration::from_secs(10);
/// From this age on a temporary file beside the list is a left-over; other agents name theirs in the same way.
const STALE_LIST: Duration = Duration::from_secs(600);
/// Mode of the run directory when we create it.
const RUN_DIR_MODE: u32 = 0o700;

/// Keeps one node installed.
#[derive(Debug)]
pub struct Installer {
    config: Arc<Config>,
    health: Arc<Health>,
    rival: Rival,
    reports: Reports,
    /// Name of the list that is in order, as of the last pass.
    current: Option<String>,
    half_written_since: Option<Instant>,
    failures: u32,
}

/// How one part of a pass ended.
enum Part {
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
        let (rival, reports) = (Rival::default(), Reports::default());
        Self { config, health, rival, reports, current: None, half_written_since: None, failures: 0 }
    }

    /// Does one pass and returns after which time the next one is due if nothing happens before.
    pub fn pass(&mut self) -> Duration {
        let binaries = self.install_binaries();
        let kubeconfig = self.write_kubeconfig();
        let list = if matches!(binaries, Part::Done) || self.plugin_is_usable() {
            self.edit_list()
        } else {
            // A list that names a plugin which cannot run stops every pod of the node.
            Part::Waiting("the CNI list is not touched before the plugin is there".to_owned())
        };
        let parts = [("binaries", binaries), ("kubeconfig", kubeconfig), ("list", list)];
        let mut missing = Vec::new();
        let mut next = SLOW_LOOK;
        let mut failed = false;
        for (key, part) in parts {
            match part {
                Part::Done => self.reports.solved(key),
                Part::Waiting(reason) => {
                    self.reports.waiting(key, &reason);
                    next = next.min(QUICK_LOOK);
                    missing.push(reason);
                }
                Part::Failed(reason) => {
                    self.reports.failed(key, &reason);
                    failed = true;
                    missing.push(reason);
                }
                Part::Later(pause, reason) => {
                    next = next.min(pause);
                    missing.push(reason);
                }
            }
        }
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        if failed {
            next = next.min(Duration::from_secs(u64::from(self.failures)).min(QUICK_LOOK));
        }
        if missing.is_empty() {
            self.health.ready()
        } else {
            self.health.not_ready(&missing.join("; "))
        }
        next
    }

    fn install_binaries(&mut self) -> Part {
        let dirs = &self.config.dirs;
        let wanted = match binaries::read_source(&dirs.binaries_from) {
            Ok(wanted) => wanted,
            Err(error) => return Part::Failed(error.to_string()),
        };
        if binaries::differs(&wanted, &dirs.binaries_to) {
            self.health.not_ready("the binaries are being installed");
        }
        match binaries::sync_wanted(&wanted, &dirs.binaries_to) {
            Ok(()) => Part::Done,
            Err(error) => Part::Failed(with_hint(&error, error.file())),
        }
    }

    fn plugin_is_usable(&self) -> bool {
        self.config.dirs.binaries_to.iter().all(|target| binaries::plugin_is_usable(target))
    }

    /// A changed token is no reason to be unready: the node works with the old one until this is done.
    fn write_kubeconfig(&mut self) -> Part {
        let run_dir = &self.config.dirs.run;
        let text = match kubeconfig::wanted(&self.config.kubeconfig) {
            Ok(text) => text,
            Err(error) => return Part::Failed(error.to_string()),
        };
        let path = paths::kubeconfig(run_dir);
        let written = file::create_dir(run_dir, RUN_DIR_MODE)
            .and_then(|_| file::remove_stale(&path, Duration::ZERO))
            .and_then(|_| {
                let have = file::read(&path, u64::MAX)?;
                Ok(kubeconfig::plan(&path, have.as_ref(), &text, self.config.kubeconfig_mode))
            });
        match written.map_err(StepError::from).and_then(|step| step.map_or(Ok(()), |step| step.run())) {
            Ok(()) => Part::Done,
            Err(error) => failed_step(&error),
        }
    }

    fn edit_list(&mut self) -> Part {
        match self.edit_list_once() {
            // What was done is looked at once more: that alone counts.
            None => self.edit_list_once().unwrap_or_else(|| {
                Part::Later(AT_ONCE, "the CNI configuration was changed by someone else just now".to_owned())
            }),
            Some(part) => part,
        }
    }

    /// `None` when something was changed, so that it has to be looked at again.
    fn edit_list_once(&mut self) -> Option<Part> {
        let dirs = &self.config.dirs;
        if !paths::kubeconfig(&dirs.run).exists() {
            // Without it every pod of the mesh would be refused.
            return Some(Part::Waiting("the CNI list is not touched before the kubeconfig is there".to_owned()));
        }
        let directory = match Directory::observe(&dirs.cni, self.config.conf_name.as_deref()) {
            Ok(directory) => directory,
            Err(error @ DirectoryError::Missing(_)) => return Some(Part::Waiting(error.to_string())),
            Err(DirectoryError::Unreadable { path, source }) => {
                let error = FileError::Io { action: "list the CNI configuration directory", path, source };
                return Some(Part::Failed(with_hint(&error, Some(&error))));
            }
        };
        let (name, steps) = match self.plan(&directory) {
            Ok(planned) => planned,
            Err(part) => return Some(part),
        };
        if let Err(error) = file::remove_stale(&directory.path.join(&name), STALE_LIST) {
            tracing::debug!(%error, "left-over temporary files stay");
        }
        if steps.is_empty() {
            self.now_current(&name, &directory.path);
            return Some(Part::Done);
        }
        self.health.not_ready(&format!("{name} is being edited"));
        if let Some(pause) = self.rival.pause(Instant::now()) {
            let reason = rival_warning(&name);
            self.reports.failed("rival", &reason);
            return Some(Part::Later(pause, reason));
        }
        for step in &steps {
            match step.run() {
                Ok(()) => {}
                Err(error @ StepError::Changed(_)) => return Some(Part::Later(AT_ONCE, error.to_string())),
                Err(error) => return Some(failed_step(&error)),
            }
        }
        self.rival.wrote(Instant::now());
        None
    }

    /// The file to work on and what to do, or why nothing can be done.
    fn plan(&mut self, directory: &Directory) -> Result<(String, Vec<Step>), Part> {
        let config = Arc::clone(&self.config);
        let conf_name = config.conf_name.as_deref();
        if !self.config.chained {
            let name = conf_name.unwrap_or(STANDALONE_NAME);
            let text = self.config.standalone_text();
            let steps = plan::standalone(directory, name, &text, self.config.conf_mode);
            return Ok((name.to_owned(), steps.map_err(refused)?));
        }
        if conf_name.is_none() {
            let found = discover::find(directory);
            for skipped in &found.skipped {
                self.reports.skipped(&skipped.name, &skipped.reason);
            }
            self.wait_for_the_writer(&found).map_err(Part::Waiting)?;
        }
        let name = match choose_in(directory, conf_name) {
            Choice::File(path) => path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned(),
            Choice::Wait(reason) => return Err(Part::Waiting(reason)),
        };
        let element = Value::Object(self.config.element());
        let steps = plan::chained(directory, &name, &element).map_err(refused)?;
        Ok((name, steps))
    }

    /// The list in use that is suddenly not JSON is most likely being written, by someone who does not use rename. To
    /// move to the next file for that moment would edit two files for nothing.
    fn wait_for_the_writer(&mut self, found: &discover::Found) -> Result<(), String> {
        let half_written =
            found.skipped.iter().find(|file| file.incomplete && Some(&file.name) == self.current.as_ref());
        let Some(file) = half_written else {
            self.half_written_since = None;
            return Ok(());
        };
        let since = *self.half_written_since.get_or_insert_with(Instant::now);
        if since.elapsed() > HALF_WRITTEN {
            return Ok(());
        }
        Err(format!("{} is half written: {}", file.name, file.reason))
    }

    fn now_current(&mut self, name: &str, directory: &Path) {
        if self.current.as_deref() != Some(name) {
            tracing::info!(path = %directory.join(name).display(), "the node is installed: our plugin is in the CNI configuration");
            self.current = Some(name.to_owned());
        }
    }
}

/// A file that is not complete JSON is probably being written; everything else needs a person.
fn refused(error: PlanError) -> Part {
    match error {
        PlanError::Edit { source: EditError::NotJson(_), .. } => Part::Waiting(error.to_string()),
        _ => Part::Failed(error.to_string()),
    }
}

fn failed_step(error: &StepError) -> Part {
    match error {
        StepError::File(file) => Part::Failed(with_hint(error, Some(file))),
        StepError::Changed(_) => Part::Later(AT_ONCE, error.to_string()),
    }
}

fn with_hint(error: &dyn std::error::Error, file: Option<&FileError>) -> String {
    match file.and_then(hint) {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    }
}

fn rival_warning(name: &str) -> String {
    let cilium = if name.contains("cilium") { "; with Cilium set cni.exclusive=false" } else { "" };
    format!("another program keeps reverting {name}: find it and tell it to leave the file alone{cilium}")
}
