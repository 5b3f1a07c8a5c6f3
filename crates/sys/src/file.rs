//! Files that are replaced whole or not at all.
//!
//! A new content becomes visible by one rename, after it has reached the disk; a reader never sees half a file, and a
//! crash leaves either the old or the new one. The temporary file lies beside the target, because a container runtime
//! does not notice a rename that comes from another directory, and its name ends in digits, so that nobody takes it for
//! a configuration. This module does not know what the files mean. The agent's installer calls it.

mod attributes;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Permission bits that are kept; file type bits are not.
const MODE_BITS: u32 = 0o7777;
/// What stands between the name of the target and the random number in the name of a temporary file: nobody else's.
const TEMPORARY: &str = ".istio-cni.tmp.";
/// What stands there in the names of Istio's own agent, and of other programs.
const COMMON: &str = ".tmp.";

/// What can go wrong with a file.
#[derive(Debug, Error)]
pub enum FileError {
    /// The system refused an operation.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried: `read`, `create`, `write` …
        action: &'static str,
        /// The file or directory it was tried on.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is larger than the caller is prepared to read.
    #[error("{path} has {size} bytes, more than the {limit} that are read")]
    TooBig {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl FileError {
    /// The system's reason, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::TooBig { .. } => None,
        }
    }
}

/// Who may use a file: permission bits, and owner and group where they must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, for example `0o600`.
    pub mode: u32,
    /// User and group id; `None` leaves them to whoever creates the file.
    pub owner: Option<(u32, u32)>,
}

impl Access {
    /// A file of our own with the permission bits `mode`.
    pub fn new(mode: u32) -> Self {
        Self { mode: mode & MODE_BITS, owner: None }
    }
}

/// A file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Mode and owner.
    pub access: Access,
}

/// What became of the attributes of the file that was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    /// False when the owner asked for could not be set, which needs the capability `CHOWN`.
    pub owner_kept: bool,
}

/// Reads the regular file at `path` with its mode and owner; `None` when there is none. Symbolic links are followed.
///
/// # Errors
/// [`FileError::TooBig`] for more than `limit` bytes, [`FileError::Io`] for everything else, directories included.
pub fn read(path: &Path, limit: u64) -> Result<Option<Content>, FileError> {
    let failed = |source| FileError::Io { action: "read", path: path.to_owned(), source };
    // A named pipe in the directory must not stop us, hence O_NONBLOCK.
    let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    if metadata.len() > limit {
        return Err(FileError::TooBig { path: path.to_owned(), size: metadata.len(), limit });
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(failed)?;
    let access = Access { mode: metadata.mode() & MODE_BITS, owner: Some((metadata.uid(), metadata.gid())) };
    Ok(Some(Content { bytes, access }))
}

/// A new version of a file: complete and on the disk, but not visible yet. Dropped, it leaves no trace.
#[derive(Debug)]
pub struct Staged {
    path: PathBuf,
    /// `None` once it is no longer ours to remove.
    temporary: Option<PathBuf>,
    replaced: Replaced,
    /// Held open for its lock.
    file: File,
}

impl Staged {
    /// Makes it visible, with one rename, and that durable.
    ///
    /// # Errors
    /// [`FileError::Io`]; when it is the rename, the old file is untouched and no temporary file is left.
    pub fn commit(mut self) -> Result<Replaced, FileError> {
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &self.path).map_err(|source| FileError::Io {
                action: "rename a new version to",
                path: self.path.clone(),
                source,
            })?;
        }
        self.temporary = None;
        sync_parent(&self.path).map(|()| self.replaced)
    }

    /// Leaves it as it is, as a process does that is killed at this moment.
    pub fn abandon(mut self) {
        self.temporary = None;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The error that led here is the one to report; a file that stays is found by `clear` later.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Writes a new version of `path` beside it. Mode and owner are set before the content is visible; extended attributes
/// (the SELinux label among them) of a file that is replaced are carried over where the system lets us. A symbolic
/// link at `path` is replaced itself and never followed.
///
/// # Errors
/// [`FileError::Io`] with the step that failed; no temporary file is left.
pub fn stage(path: &Path, bytes: &[u8], access: Access) -> Result<Staged, FileError> {
    let (file, temporary) = create_temporary(path)?;
    let replaced = Replaced { owner_kept: true };
    let mut staged = Staged { path: path.to_owned(), temporary: Some(temporary), replaced, file };
    staged.replaced = fill(&staged.file, path, bytes, access)?;
    Ok(staged)
}

/// Puts `bytes` at `path`, whole or not at all: [`stage`] and [`Staged::commit`].
///
/// # Errors
/// [`FileError::Io`] with the step that failed; the old file is then untouched and no temporary file is left.
pub fn replace(path: &Path, bytes: &[u8], access: Access) -> Result<Replaced, FileError> {
    stage(path, bytes, access)?.commit()
}

/// Removes `path` and makes that durable. False when there was nothing.
///
/// # Errors
/// [`FileError::Io`] when it is there and stays.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FileError::Io { action: "remove", path: path.to_owned(), source }),
    }
}

/// Creates the directory `path` and its missing parents with `mode`. False when it was there already.
///
/// # Errors
/// [`FileError::Io`] when it cannot be created, or something else has the name.
pub fn create_dir(path: &Path, mode: u32) -> Result<bool, FileError> {
    if path.is_dir() {
        return Ok(false);
    }
    let failed = |source| FileError::Io { action: "create directory", path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)?;
    // The umask may have taken bits away.
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    Ok(true)
}

/// Takes from the directory `path` the permissions that `mode` does not have.
///
/// # Errors
/// [`FileError::Io`] when it is not there, or not ours to change.
pub fn restrict(path: &Path, mode: u32) -> Result<(), FileError> {
    let failed = |source| FileError::Io { action: "restrict the mode of", path: path.to_owned(), source };
    let have = path.metadata().map_err(failed)?.mode() & MODE_BITS;
    if have & !mode == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(have & mode)).map_err(failed)
}

/// Removes from `directory` what a killed predecessor of ours left: temporary files of [`stage`], unless a living process
/// is writing one. Returns how many were removed.
///
/// # Errors
/// [`FileError::Io`] when the directory cannot be read or a file cannot be removed.
pub fn clear(directory: &Path) -> Result<usize, FileError> {
    clear_names(directory, |name| name.rsplit_once(TEMPORARY).map(|(_, number)| number))
}

/// Removes what Istio's own agent left beside `path`: names of its form. Other programs use that form too, so this is
/// for files that nobody else writes. Returns how many were removed.
///
/// # Errors
/// As [`clear`].
pub fn clear_beside(path: &Path) -> Result<usize, FileError> {
    let (directory, name) = split(path)?;
    clear_names(&directory, |other| other.strip_prefix(name.as_str())?.strip_prefix(COMMON))
}

fn clear_names(directory: &Path, number: impl Fn(&str) -> Option<&str>) -> Result<usize, FileError> {
    let failed = |source| FileError::Io { action: "read directory", path: directory.to_owned(), source };
    let mut removed = 0;
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A writer of ours holds a lock on its temporary file for as long as it lives.
        let in_use = || File::open(&path).is_ok_and(|file| file.try_lock().is_err());
        if number(name).is_some_and(is_number) && !in_use() && remove(&path)? {
            removed += 1;
        }
    }
    Ok(removed)
}

fn split(path: &Path) -> Result<(PathBuf, String), FileError> {
    let wrong = |reason: &str| FileError::Io {
        action: "use",
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned()),
    };
    let name = path.file_name().ok_or_else(|| wrong("the path has no file name"))?;
    let name = name.to_str().ok_or_else(|| wrong("the file name is not UTF-8"))?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((directory, name.to_owned()))
}

fn create_temporary(path: &Path) -> Result<(File, PathBuf), FileError> {
    let (directory, name) = split(path)?;
    loop {
        let number = RandomState::new().build_hasher().finish() % 10_000_000_000;
        let temporary = directory.join(format!("{name}{TEMPORARY}{number}"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary) {
            Ok(file) => {
                // Tells `clear` of another process that this one is alive; without locks we only lose that.
                let _ = file.try_lock();
                return Ok((file, temporary));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(FileError::Io { action: "create a file in", path: directory, source }),
        }
    }
}

fn fill(mut file: &File, path: &Path, bytes: &[u8], access: Access) -> Result<Replaced, FileError> {
    let failed = |action| move |source| FileError::Io { action, path: path.to_owned(), source };
    let metadata = file.metadata().map_err(failed("look at the new version of"))?;
    let owner_kept = match access.owner {
        Some((uid, gid)) if (metadata.uid(), metadata.gid()) != (uid, gid) => {
            fchown(file, Some(uid), Some(gid)).is_ok()
        }
        _ => true,
    };
    attributes::carry_over(path, file);
    // After the change of owner, which clears the set-user-id bits.
    file.set_permissions(Permissions::from_mode(access.mode)).map_err(failed("set the mode of"))?;
    file.write_all(bytes).map_err(failed("write"))?;
    file.sync_all().map_err(failed("write to disk"))?;
    Ok(Replaced { owner_kept })
}

fn sync_parent(path: &Path) -> Result<(), FileError> {
    let (directory, _) = split(path)?;
    let failed = |source| FileError::Io { action: "write to disk directory", path: directory.clone(), source };
    File::open(&directory).and_then(|handle| handle.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests;
