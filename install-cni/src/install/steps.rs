//! The two things we do to a file.
//!
//! Made by the planning modules as values, so that they can be compared in tests; carried out by the runner.

use std::path::{Path, PathBuf};

use sys::file::Access;

use super::journal::Put;

/// What the file must still be for the step to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// Anything: the file is ours alone.
    Ours,
    /// Not there.
    Absent,
    /// Exactly these bytes.
    Bytes(Vec<u8>),
}

/// One change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The file.
    pub path: PathBuf,
    /// What it was when this was decided.
    pub guard: Guard,
    /// Why, for the log.
    pub cause: String,
    /// What is done.
    pub action: Action,
}

/// What is done to the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Put `bytes` there.
    Write {
        /// Its new content.
        bytes: Vec<u8>,
        /// Its mode, and its owner if that must be kept.
        access: Access,
        /// What that is, for the journal.
        put: Put,
    },
    /// Take it away.
    Remove,
}

impl Step {
    /// Puts `bytes` at `path`, whatever is there: the file is ours alone.
    pub fn write(path: &Path, bytes: Vec<u8>, access: Access, put: Put, cause: &str) -> Self {
        let action = Action::Write { bytes, access, put };
        Self { path: path.to_owned(), guard: Guard::Ours, cause: cause.to_owned(), action }
    }

    /// Takes `path` away, whatever is there.
    pub fn remove(path: &Path, cause: &str) -> Self {
        Self { path: path.to_owned(), guard: Guard::Ours, cause: cause.to_owned(), action: Action::Remove }
    }

    /// The same, if the file still is as `guard` says.
    #[must_use]
    pub fn guarded(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }
}
