//! Takes everything of ours off the node: the lists first, then the kubeconfig, then the binaries.
//!
//! In this order a list never names a plugin that is not there. What is ours is what the journal has, and what names and
//! contents show. One error does not stop the rest, with one exception: while a list still names our plugin, plugin and
//! kubeconfig stay, because without them no pod could start. The plugin also stays, alone, for pods that a runtime cannot
//! remove without it. Called once, when the process ends for good.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_api::paths::{self, PLUGIN_NAME};
use sys::file;

use super::binaries::{self, Image};
use super::directory::DirectoryError;
use super::hint::hint;
use super::journal::{Journal, Put};
use super::runner::{Runner, StepError};
use super::steps::Step;
use super::{attachments, observe, plan, wanted};
use crate::config::Config;

/// How often a list is looked at again because somebody else changes it at the same time.
const ATTEMPTS: usize = 5;

/// Uninstalls, and returns what did not work, for the log. Nothing that is not ours is touched.
pub fn uninstall(config: &Config) -> Vec<String> {
    uninstall_with(config, &mut Runner::open(&config.dirs.run))
}

/// As [`uninstall`], with a runner that may be one that stops.
pub fn uninstall_with(config: &Config, runner: &mut Runner) -> Vec<String> {
    let mut errors = Vec::new();
    let mut named = Vec::new();
    for directory in places([&config.dirs.cni], runner.journal(), |put| matches!(put, Put::Element | Put::OwnFile)) {
        errors.extend(leave_the_lists(config, &directory, runner));
        named.extend(still_named_in(config, &directory, runner.journal()));
    }
    if let Some(name) = named.first() {
        errors.push(format!("{name} still names our plugin, so plugin and kubeconfig stay"));
        return errors;
    }
    let mut steps: Vec<Step> = kubeconfigs(config, runner.journal());
    let image = binaries::read_image(&config.dirs.binaries_from).unwrap_or_else(|error| {
        errors.push(error.to_string());
        Image::new()
    });
    let pods = attachments::with_our_plugin(&config.dirs.attachments);
    let stays = |path: &Path| pods > 0 && path.ends_with(PLUGIN_NAME);
    if pods > 0 {
        let cause = "the runtime will call it when it removes them; it does nothing else any more";
        tracing::info!(pods, cause, "the plugin stays for pods that were set up with it");
    }
    let targets = places(&config.dirs.binaries_to, runner.journal(), |put| matches!(put, Put::Binary { .. }));
    for target in &targets {
        match binaries::removal(&image, runner.journal(), target) {
            Ok(removal) => steps.extend(removal.into_iter().filter(|step| !stays(&step.path))),
            Err(error) => errors.push(error.to_string()),
        }
    }
    errors.extend(steps.iter().filter_map(|step| runner.run(step).err()).map(|error| told(&error)));
    for directory in targets.iter().chain([&config.dirs.cni, &config.dirs.run]) {
        if let Err(error) = file::clear(directory) {
            tracing::debug!(%error, "left-over temporary files, or a missing directory");
        }
    }
    if errors.is_empty() {
        errors.extend(runner.finish().err().map(|error| told(&error)));
    }
    errors
}

fn leave_the_lists(config: &Config, path: &Path, runner: &mut Runner) -> Vec<String> {
    let mut errors = Vec::new();
    for _ in 0..ATTEMPTS {
        errors.clear();
        let directory = match observe::lists(config, path) {
            Ok(directory) => directory,
            Err(DirectoryError::Missing(_)) => return errors,
            Err(error) => return vec![error.to_string()],
        };
        let own = wanted::own_files(config, &directory, runner.journal());
        let (groups, refused) = plan::uninstall(&directory, &own);
        errors.extend(refused.iter().map(ToString::to_string));
        let mut again = false;
        for group in &groups {
            match group.iter().try_for_each(|step| runner.run(step)) {
                Ok(()) => {}
                Err(StepError::Changed(_)) => again = true,
                Err(error) => errors.push(told(&error)),
            }
        }
        if !again {
            return errors;
        }
    }
    errors.push("the CNI configuration keeps changing, so it could not be edited".to_owned());
    errors
}

/// Name of a file that runs our plugin, if there is one, or of the directory if that is not to be seen.
fn still_named_in(config: &Config, path: &Path, journal: &Journal) -> Option<String> {
    let directory = match observe::lists(config, path) {
        Ok(directory) => directory,
        Err(DirectoryError::Missing(_)) => return None,
        Err(DirectoryError::Unreadable { path, .. }) => return Some(format!("perhaps a file in {}", path.display())),
    };
    let own = wanted::own_files(config, &directory, journal);
    plan::in_use(&directory, &own).next().map(str::to_owned)
}

fn kubeconfigs(config: &Config, journal: &Journal) -> Vec<Step> {
    let noted = journal.entries().filter(|(_, put)| **put == Put::Credentials).map(|(path, _)| path.to_owned());
    let paths: BTreeSet<PathBuf> = noted.chain([paths::kubeconfig(&config.dirs.run)]).collect();
    paths.iter().map(|path| Step::remove(path, "uninstall")).collect()
}

/// The `current` directories, and where else the journal has what `put` asks for.
fn places<'a>(
    current: impl IntoIterator<Item = &'a PathBuf>,
    journal: &Journal,
    put: impl Fn(&Put) -> bool,
) -> BTreeSet<PathBuf> {
    let noted = journal.entries().filter(|(_, it)| put(it)).filter_map(|(path, _)| Some(path.parent()?.to_owned()));
    noted.chain(current.into_iter().cloned()).collect()
}

fn told(error: &StepError) -> String {
    match error {
        StepError::File(file) => hint(file).map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})")),
        _ => error.to_string(),
    }
}
