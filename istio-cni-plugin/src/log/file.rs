//! The rolling file. Many plugin processes write it at once, so each entry is appended under an advisory lock.

use std::fs::{self, DirEntry, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sys::log::backup_stamp;

/// Size in bytes above which the file becomes a backup.
const MAX_SIZE: u64 = 10_000_000;
/// A process looks for old backups when its entry is the one that takes the file across a multiple of so many bytes: few
/// do, so that the others are not slowed down.
const PRUNE_EVERY: u64 = 1 << 16;
/// Age at which a backup goes.
const MAX_AGE: Duration = Duration::from_secs(2 * 24 * 3600);
/// How often the lock is tried, and how long to wait in between. A holder needs microseconds; one that was stopped in
/// the middle must not stop every pod of the node.
const LOCK_ATTEMPTS: u32 = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The file at a path, and its backups beside it.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
}

impl LogFile {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one line, after making the full file a backup.
    pub(super) fn append(&self, line: &[u8]) -> io::Result<()> {
        let (mut file, mut before) = self.open_locked()?;
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if before > 0 && before + length > MAX_SIZE {
            fs::rename(&self.path, self.backup_path(SystemTime::now()))?;
            // Whoever waits for the lock of the old file finds that the path has a new one.
            (file, before) = self.open_locked()?;
        }
        file.write_all(line)?;
        if before == 0 || before / PRUNE_EVERY != (before + length) / PRUNE_EVERY {
            self.prune(SystemTime::now())?;
        }
        Ok(())
    }

    /// The file that is at the path while its lock is held, and its size. The lock goes with the handle.
    fn open_locked(&self) -> io::Result<(File, u64)> {
        for _ in 0..LOCK_ATTEMPTS {
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(LOCK_PAUSE);
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let (held, there) = (file.metadata()?, fs::metadata(&self.path));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())) {
                return Ok((file, held.len()));
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds its lock"))
    }

    fn backup_path(&self, now: SystemTime) -> PathBuf {
        self.path.with_file_name(format!("{}{}.log", self.backup_prefix(), backup_stamp(now)))
    }

    fn backup_prefix(&self) -> String {
        format!("{}-", self.path.file_stem().unwrap_or_default().to_string_lossy())
    }

    /// Keeps the newest backup, as long as it is young enough. Called under the lock.
    fn prune(&self, now: SystemTime) -> io::Result<()> {
        let prefix = self.backup_prefix();
        let Some(directory) = self.path.parent() else { return Ok(()) };
        let backups: Vec<DirEntry> = fs::read_dir(directory)?
            .filter_map(Result::ok)
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let stamp = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".log"));
                stamp.is_some_and(|stamp| stamp.len() == 23 && stamp.starts_with(|first: char| first.is_ascii_digit()))
            })
            .collect();
        // The stamp in the name sorts by time.
        let newest = backups.iter().map(DirEntry::file_name).max();
        for backup in &backups {
            let modified = backup.metadata().and_then(|metadata| metadata.modified());
            let old = modified.is_ok_and(|modified| now.duration_since(modified).is_ok_and(|age| age > MAX_AGE));
            if old || newest.as_ref() != Some(&backup.file_name()) {
                fs::remove_file(backup.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_becomes_the_only_backup() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("istio-cni.log");
        fs::write(directory.path().join("istio-cni-2001-01-01T00-00-00.000.log"), "older").unwrap();
        fs::write(directory.path().join("istio-cni-kubeconfig"), "not a log").unwrap();
        fs::write(&path, vec![b'x'; usize::try_from(MAX_SIZE).unwrap()]).unwrap();
        LogFile::new(&path).append(b"new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
        let names = names(directory.path());
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(!names.iter().any(|name| name.contains("2001")), "{names:?}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn old_backups_go_even_when_the_file_is_not_full() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("istio-cni.log");
        let backup = directory.path().join("istio-cni-2001-01-01T00-00-00.000.log");
        fs::write(&backup, "old").unwrap();
        LogFile::new(&path).append(b"a\n").unwrap();
        assert!(backup.exists());
        File::options().write(true).open(&backup).unwrap().set_modified(SystemTime::now() - MAX_AGE * 2).unwrap();
        LogFile::new(&path).append(b"b\n").unwrap();
        assert!(backup.exists(), "most entries do not look");
        LogFile::new(&path).append(&vec![b'c'; usize::try_from(PRUNE_EVERY).unwrap()]).unwrap();
        assert_eq!(names(directory.path()), ["istio-cni.log"]);
    }

    #[test]
    fn many_writers_lose_no_line_and_tear_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("istio-cni.log");
        // Nearly full, so that the file rolls over while all write.
        fs::write(&path, format!("{}\n", "x".repeat(usize::try_from(MAX_SIZE).unwrap() - 2000))).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for line in 0..25 {
                        LogFile::new(path).append(format!("{writer} {line} {}\n", "y".repeat(20)).as_bytes()).unwrap();
                    }
                });
            }
        });
        let mut lines = String::new();
        for name in names(directory.path()) {
            lines += &fs::read_to_string(directory.path().join(name)).unwrap();
        }
        assert_eq!(lines.lines().filter(|line| line.ends_with(&"y".repeat(20))).count(), 100);
    }
}
