//! The plugin and its companion in the node's directory of CNI plugins.
//!
//! Every regular file of the image's directory is wanted there, with its mode. What is equal is not written, so that a
//! pass that changes nothing touches nothing. A running plugin keeps its old file, because a new one arrives by
//! rename. Called by a pass, and by uninstall to know what is ours.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_api::paths::{IPTABLES_NAME, PLUGIN_NAME};
use sys::file::{self, Access, Content, FileError};
use thiserror::Error;

use super::steps::{Guard, Step, StepError};

/// Mode of a target directory that we have to create.
const DIRECTORY_MODE: u32 = 0o755;
/// The files that uninstall removes.
const OURS: [&str; 2] = [PLUGIN_NAME, IPTABLES_NAME];

/// Why binaries could not be installed.
#[derive(Debug, Error)]
pub enum BinariesError {
    /// The image's directory.
    #[error("the binaries of the image in {path} cannot be listed: {source}")]
    Source {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file, source or target.
    #[error("a binary cannot be installed: {0}")]
    File(#[from] FileError),
    /// A step.
    #[error("a binary cannot be installed: {0}")]
    Step(#[from] StepError),
}

impl BinariesError {
    /// The error of the file, for a hint.
    pub fn file(&self) -> Option<&FileError> {
        match self {
            Self::File(error) | Self::Step(StepError::File(error)) => Some(error),
            Self::Source { .. } | Self::Step(StepError::Changed(_)) => None,
        }
    }
}

/// Brings every target directory up to date with `source`; returns the names of all files wanted there.
///
/// # Errors
/// [`BinariesError`] of the first file that failed. Other files, also in other directories, are done all the same.
pub fn sync(source: &Path, targets: &[PathBuf]) -> Result<Vec<String>, BinariesError> {
    let wanted = read_source(source)?;
    sync_wanted(&wanted, targets)?;
    Ok(wanted.into_iter().map(|(name, _)| name).collect())
}

/// As [`sync`], with the files wanted in hand.
///
/// # Errors
/// As [`sync`].
pub fn sync_wanted(wanted: &[(String, Content)], targets: &[PathBuf]) -> Result<(), BinariesError> {
    let mut first_error = None;
    for target in targets {
        for error in sync_one(wanted, target) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Steps that would bring `target` up to date with the files `wanted`; empty when it is.
///
/// # Errors
/// [`FileError`] when a target cannot be compared, for example because it is a directory.
pub fn plan(wanted: &[(String, Content)], target: &Path) -> Result<Vec<Step>, FileError> {
    let mut steps = Vec::new();
    for (name, content) in wanted {
        let path = target.join(name);
        let have = file::read(&path, u64::MAX)?;
        let cause = match &have {
            None => "it was not there",
            Some(have) if have.bytes != content.bytes => "it was another version",
            Some(have) if have.access.mode != content.access.mode => "its mode was another one",
            Some(_) => continue,
        };
        let access = Access::new(content.access.mode);
        steps.push(Step::Write {
            path,
            bytes: content.bytes.clone(),
            access,
            guard: Guard::Ours,
            cause: cause.to_owned(),
        });
    }
    Ok(steps)
}

/// All regular files of the image's directory, by name, in order. Links are followed, directories skipped.
///
/// # Errors
/// [`BinariesError`] when one of them cannot be read.
pub fn read_source(source: &Path) -> Result<Vec<(String, Content)>, BinariesError> {
    let failed = |error| BinariesError::Source { path: source.to_owned(), source: error };
    let mut wanted = Vec::new();
    for entry in std::fs::read_dir(source).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if !path.is_file() {
            continue;
        }
        if let (Some(name), Some(content)) =
            (path.file_name().and_then(|name| name.to_str()), file::read(&path, u64::MAX)?)
        {
            wanted.push((name.to_owned(), content));
        }
    }
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(wanted)
}

/// Steps that remove our two binaries from `target`: those that still are the image's.
///
/// # Errors
/// [`FileError`] when one cannot be compared.
pub fn removal(wanted: &[(String, Content)], target: &Path) -> Result<Vec<Step>, FileError> {
    let mut steps = Vec::new();
    for (name, content) in wanted.iter().filter(|(name, _)| OURS.contains(&name.as_str())) {
        let path = target.join(name);
        if file::read(&path, u64::MAX)?.is_some_and(|have| have.bytes == content.bytes) {
            let guard = Guard::Bytes(content.bytes.clone());
            steps.push(Step::Remove { path, guard, cause: "uninstall".to_owned() });
        }
    }
    Ok(steps)
}

/// Whether the plugin in `target` is there and may be executed.
pub fn plugin_is_usable(target: &Path) -> bool {
    target.join(PLUGIN_NAME).metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Whether [`sync`] would write something, for readiness. An error counts as yes.
pub fn differs(wanted: &[(String, Content)], targets: &[PathBuf]) -> bool {
    targets.iter().any(|target| plan(wanted, target).is_ok_and(|steps| !steps.is_empty()))
}

fn sync_one(wanted: &[(String, Content)], target: &Path) -> Vec<BinariesError> {
    if let Err(error) = file::create_dir(target, DIRECTORY_MODE) {
        return vec![error.into()];
    }
    for (name, _) in wanted {
        // What a killed predecessor left costs space and nothing else.
        match file::remove_stale(&target.join(name), Duration::ZERO) {
            Ok(0) => {}
            Ok(count) => tracing::info!(path = %target.display(), name, count, "left-over temporary files removed"),
            Err(error) => tracing::debug!(%error, "left-over temporary files stay"),
        }
    }
    match plan(wanted, target) {
        Ok(steps) => steps.iter().filter_map(|step| step.run().err()).map(BinariesError::from).collect(),
        Err(error) => vec![error.into()],
    }
}
