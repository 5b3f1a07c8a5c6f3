//! The two things we do to a file, and doing them only if nobody was faster.
//!
//! A step is decided on what was read earlier in the pass. Just before it is done the file is read again: if it is not
//! what the decision was about, nothing happens and the next pass decides anew. So a list that another agent has just
//! rewritten is not overwritten with an older one. Made by the planning modules, run by a pass and by uninstall.

use std::path::{Path, PathBuf};

use sys::file::{self, Access, FileError};
use thiserror::Error;

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
pub enum Step {
    /// Put `bytes` there.
    Write {
        /// The file.
        path: PathBuf,
        /// Its new content.
        bytes: Vec<u8>,
        /// Its mode, and its owner if that must be kept.
        access: Access,
        /// What it was when this was decided.
        guard: Guard,
        /// Why, for the log.
        cause: String,
    },
    /// Take it away.
    Remove {
        /// The file.
        path: PathBuf,
        /// What it was when this was decided.
        guard: Guard,
        /// Why, for the log.
        cause: String,
    },
}

/// Why a step was not done.
#[derive(Debug, Error)]
pub enum StepError {
    /// The system said no.
    #[error(transparent)]
    File(#[from] FileError),
    /// Somebody else changed the file since it was read.
    #[error("{0} was changed by someone else just now, so it is looked at again")]
    Changed(PathBuf),
}

impl Step {
    /// The file that changes.
    pub fn path(&self) -> &Path {
        match self {
            Self::Write { path, .. } | Self::Remove { path, .. } => path,
        }
    }

    /// Does it and logs it.
    ///
    /// # Errors
    /// [`StepError`]; the file is then as it was.
    pub fn run(&self) -> Result<(), StepError> {
        match self {
            Self::Write { path, bytes, access, guard, cause } => {
                guard.check(path)?;
                let replaced = file::replace(path, bytes, *access)?;
                tracing::info!(path = %path.display(), cause, "file written");
                if !replaced.owner_kept {
                    tracing::warn!(path = %path.display(), "the owner of the file could not be kept; that needs the capability CHOWN");
                }
            }
            Self::Remove { path, guard, cause } => {
                guard.check(path)?;
                if file::remove(path)? {
                    tracing::info!(path = %path.display(), cause, "file removed");
                }
            }
        }
        Ok(())
    }
}

impl Guard {
    fn check(&self, path: &Path) -> Result<(), StepError> {
        let held = match self {
            Self::Ours => return Ok(()),
            Self::Absent => file::read(path, u64::MAX)?.is_none(),
            Self::Bytes(bytes) => file::read(path, u64::MAX)?.is_some_and(|content| content.bytes == *bytes),
        };
        if held { Ok(()) } else { Err(StepError::Changed(path.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-net.conflist");
        let write = |guard| Step::Write {
            path: path.clone(),
            bytes: b"ours".to_vec(),
            access: Access::new(0o600),
            guard,
            cause: "test".to_owned(),
        };
        assert!(matches!(write(Guard::Bytes(b"old".to_vec())).run(), Err(StepError::Changed(_))));
        std::fs::write(&path, "newer").unwrap();
        assert!(matches!(write(Guard::Absent).run(), Err(StepError::Changed(_))));
        assert!(matches!(write(Guard::Bytes(b"old".to_vec())).run(), Err(StepError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "newer");
        write(Guard::Bytes(b"newer".to_vec())).run().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours");
        let remove = Step::Remove { path: path.clone(), guard: Guard::Bytes(b"x".to_vec()), cause: "test".to_owned() };
        assert!(matches!(remove.run(), Err(StepError::Changed(_))));
        assert!(path.exists());
    }
}
