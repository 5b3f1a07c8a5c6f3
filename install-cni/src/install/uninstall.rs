//! Takes everything of ours off the node: the list first, then the kubeconfig, then the binaries.
//!
//! In this order a list never names a plugin that is not there. One error does not stop the rest, with one exception:
//! while a list still names our plugin, plugin and kubeconfig stay, because without them no pod could start. Called
//! once, when the process ends.

use std::path::Path;

use agent_api::paths;
use sys::file;

use super::choose::STANDALONE_NAME;
use super::directory::{Directory, DirectoryError};
use super::hint::hint;
use super::steps::{Step, StepError};
use super::{binaries, edit, plan};
use crate::config::Config;

/// How often a list is looked at again because somebody else changes it at the same time.
const ATTEMPTS: usize = 5;

/// Uninstalls, and returns what did not work, for the log. Nothing that is not ours is touched.
pub fn uninstall(config: &Config) -> Vec<String> {
    let mut errors = leave_the_lists(config);
    if let Some(name) = still_named_in(config) {
        errors.push(format!("{name} still names our plugin, so plugin and kubeconfig stay"));
        return errors;
    }
    let kubeconfig = paths::kubeconfig(&config.dirs.run);
    match file::remove(&kubeconfig) {
        Ok(true) => tracing::info!(path = %kubeconfig.display(), cause = "uninstall", "file removed"),
        Ok(false) => {}
        Err(error) => errors.push(error.to_string()),
    }
    match binaries::read_source(&config.dirs.binaries_from) {
        Ok(wanted) => {
            for target in &config.dirs.binaries_to {
                errors.extend(remove_binaries(&wanted, target));
            }
        }
        Err(error) => errors.push(error.to_string()),
    }
    errors
}

fn leave_the_lists(config: &Config) -> Vec<String> {
    let own_file = own_file(config);
    let mut errors = Vec::new();
    for _ in 0..ATTEMPTS {
        errors.clear();
        let directory = match Directory::observe(&config.dirs.cni, config.conf_name.as_deref()) {
            Ok(directory) => directory,
            Err(DirectoryError::Missing(_)) => return errors,
            Err(error) => return vec![error.to_string()],
        };
        let (groups, refused) = plan::uninstall(&directory, own_file);
        errors.extend(refused.iter().map(ToString::to_string));
        let mut again = false;
        for group in &groups {
            match group.iter().try_for_each(Step::run) {
                Ok(()) => {}
                Err(StepError::Changed(_)) => again = true,
                Err(StepError::File(error)) => {
                    errors.push(hint(&error).map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})")));
                }
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
fn still_named_in(config: &Config) -> Option<String> {
    let directory = match Directory::observe(&config.dirs.cni, config.conf_name.as_deref()) {
        Ok(directory) => directory,
        Err(DirectoryError::Missing(_)) => return None,
        Err(DirectoryError::Unreadable { path, .. }) => return Some(format!("perhaps a file in {}", path.display())),
    };
    let own_file = own_file(config);
    directory.files.iter().find_map(|(name, file)| {
        let text = &file.as_ref().ok()?.text;
        let alone = || own_file == Some(name) && serde_json::from_str(text).is_ok_and(|value| edit::is_ours(&value));
        (edit::count(text) > 0 || alone()).then(|| name.clone())
    })
}

/// The file that is wholly ours in stand-alone mode.
fn own_file(config: &Config) -> Option<&str> {
    (!config.chained).then(|| config.conf_name.as_deref().unwrap_or(STANDALONE_NAME))
}

fn remove_binaries(wanted: &[(String, sys::file::Content)], target: &Path) -> Vec<String> {
    let steps = match binaries::removal(wanted, target) {
        Ok(steps) => steps,
        Err(error) => return vec![error.to_string()],
    };
    steps.iter().filter_map(|step| step.run().err()).map(|error| error.to_string()).collect()
}
