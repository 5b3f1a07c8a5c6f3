//! Carries out steps, one at a time, each noted in the journal before it is done.
//!
//! A step is decided on what was read earlier in the pass. Just before it is done the file is read again: if it is not
//! what the decision was about, nothing happens and the next pass decides anew. Every write reaches the disk before the
//! next step begins. Between two of its moments the process may be killed; tests do that with [`Runner::stopping_after`].
//! Used by passes and by uninstall.

use std::path::{Path, PathBuf};

use sys::file::{self, FileError};
use thiserror::Error;

use super::journal::{Journal, Put};
use super::steps::{Action, Guard, Step};

/// Why a step was not done.
#[derive(Debug, Error)]
pub enum StepError {
    /// The system said no.
    #[error(transparent)]
    File(#[from] FileError),
    /// Somebody else changed the file since it was read.
    #[error("{0} was changed by someone else just now, so it is looked at again")]
    Changed(PathBuf),
    /// The end of [`Runner::stopping_after`].
    #[error("stopped, as asked")]
    Stopped,
}

/// Carries out steps for one node.
#[derive(Debug)]
pub struct Runner {
    journal: Journal,
    moments: Option<usize>,
}

impl Runner {
    /// With the journal in `run_dir`.
    pub fn open(run_dir: &Path) -> Self {
        Self { journal: Journal::open(run_dir), moments: None }
    }

    /// Stops for good after this many moments, as a process does that is killed: what is half done stays so.
    #[must_use]
    pub fn stopping_after(mut self, moments: usize) -> Self {
        self.moments = Some(moments);
        self
    }

    /// Whether it has stopped.
    pub fn stopped(&self) -> bool {
        self.moments == Some(0)
    }

    /// What was put where.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Does it and logs it.
    ///
    /// # Errors
    /// [`StepError`]; the file is then as it was.
    pub fn run(&mut self, step: &Step) -> Result<(), StepError> {
        self.moment()?;
        step.guard.check(&step.path)?;
        match &step.action {
            Action::Write { bytes, access, put } => {
                if self.journal.note(&step.path, put)? {
                    self.moment()?;
                }
                let staged = file::stage(&step.path, bytes, *access)?;
                if let Err(stop) = self.moment() {
                    staged.abandon();
                    return Err(stop);
                }
                let replaced = staged.commit()?;
                tracing::info!(path = %step.path.display(), cause = step.cause, "file written");
                if !replaced.owner_kept {
                    tracing::warn!(path = %step.path.display(), "the owner of the file could not be kept; that needs the capability CHOWN");
                }
                if *put == Put::Nothing { self.forget(&step.path) } else { Ok(()) }
            }
            Action::Remove => {
                if file::remove(&step.path)? {
                    tracing::info!(path = %step.path.display(), cause = step.cause, "file removed");
                }
                self.forget(&step.path)
            }
        }
    }

    /// Ends the journal, when nothing of ours is left.
    ///
    /// # Errors
    /// When it stays.
    pub fn finish(&mut self) -> Result<(), StepError> {
        self.moment()?;
        Ok(self.journal.finish()?)
    }

    fn forget(&mut self, path: &Path) -> Result<(), StepError> {
        self.moment()?;
        if let Err(error) = self.journal.forget(path) {
            tracing::debug!(%error, "an entry that is no longer needed stays in the journal");
        }
        Ok(())
    }

    fn moment(&mut self) -> Result<(), StepError> {
        match &mut self.moments {
            None => Ok(()),
            Some(0) => Err(StepError::Stopped),
            Some(left) => {
                *left -= 1;
                if *left == 0 { Err(StepError::Stopped) } else { Ok(()) }
            }
        }
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
    use sys::file::Access;

    use super::*;

    fn write(path: &Path, guard: Guard) -> Step {
        let (bytes, access) = (b"ours".to_vec(), Access::new(0o600));
        let action = Action::Write { bytes, access, put: Put::Element };
        Step { path: path.to_owned(), guard, cause: "test".to_owned(), action }
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-net.conflist");
        let mut runner = Runner::open(dir.path());
        let mut run = |guard| runner.run(&write(&path, guard));
        assert!(matches!(run(Guard::Bytes(b"old".to_vec())), Err(StepError::Changed(_))));
        std::fs::write(&path, "newer").unwrap();
        assert!(matches!(run(Guard::Absent), Err(StepError::Changed(_))));
        assert!(matches!(run(Guard::Bytes(b"old".to_vec())), Err(StepError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "newer");
        run(Guard::Bytes(b"newer".to_vec())).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ours");
        let guard = Guard::Bytes(b"x".to_vec());
        let remove = Step { path: path.clone(), guard, cause: "test".to_owned(), action: Action::Remove };
        assert!(matches!(runner.run(&remove), Err(StepError::Changed(_))));
        assert!(path.exists());
    }

    #[test]
    fn a_killed_step_leaves_what_a_killed_process_leaves_and_nothing_follows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-net.conflist");
        let names = || -> Vec<String> {
            let mut names: Vec<_> =
                std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for (moments, left) in [(1, 0), (2, 1), (3, 2)] {
            let mut runner = Runner::open(dir.path()).stopping_after(moments);
            assert!(matches!(runner.run(&write(&path, Guard::Absent)), Err(StepError::Stopped)));
            assert!(matches!(runner.run(&write(&path, Guard::Absent)), Err(StepError::Stopped)));
            assert!(runner.stopped() && !path.exists());
            assert_eq!(names().len(), left, "{:?}", names());
            for name in names() {
                std::fs::remove_file(dir.path().join(name)).unwrap();
            }
        }
        Runner::open(dir.path()).stopping_after(4).run(&write(&path, Guard::Absent)).unwrap();
        assert!(path.exists());
    }
}
