//! What we have put on the node, on disk: so that a later process, also one with other settings, can take it away.
//!
//! An entry is on the disk before the change it is about, and goes after the change has been undone. So a process may
//! be killed at any point: an entry too many is harmless, because undoing looks at the file first. The state of the
//! files decides what is to be done; the journal says which files are ours to touch. A reboot may take it along with
//! the run directory; then names and contents alone decide. Kept by the runner, read by passes and uninstall.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::file::{self, Access, FileError};

/// Name of the file in the run directory.
const NAME: &str = "install-journal.json";
/// Mode of the file.
const MODE: u32 = 0o600;
/// A larger file is not one of ours; in bytes.
const LIMIT: u64 = 1 << 20;
/// Fingerprints that are kept of one binary: the one being installed, and those an interrupted process may have left.
const FINGERPRINTS: usize = 3;
/// Form of the file. Others are not understood.
const VERSION: u32 = 1;

/// What we have put at a path, and so how it is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Put {
    /// A program. Taken away if it is still one of these versions.
    Binary {
        /// SHA-256 in hexadecimal.
        sha256: Vec<String>,
    },
    /// The kubeconfig. Taken away.
    Credentials,
    /// A CNI configuration that is wholly ours. Taken away if it still runs our plugin.
    OwnFile,
    /// Our element, in the CNI configuration of somebody else. Taken out, or the converted network given back.
    Element,
    /// Nothing of ours any more: what was there before.
    Nothing,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    version: u32,
    put: BTreeMap<PathBuf, Put>,
}

/// The journal of one run directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    put: BTreeMap<PathBuf, Put>,
}

impl Journal {
    /// Reads it. One that cannot be read counts as empty, and that is logged: everything is found without it, except
    /// what earlier settings left elsewhere.
    pub fn open(run_dir: &Path) -> Self {
        let path = run_dir.join(NAME);
        let put = match file::read(&path, LIMIT) {
            Ok(None) => BTreeMap::new(),
            Ok(Some(content)) => match serde_json::from_slice::<File>(&content.bytes) {
                Ok(file) if file.version == VERSION => file.put,
                Ok(file) => unread(&path, &format!("it has form {}, and {VERSION} is known", file.version)),
                Err(error) => unread(&path, &error.to_string()),
            },
            Err(error) => unread(&path, &error.to_string()),
        };
        Self { path, put }
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (&Path, &Put)> {
        self.put.iter().map(|(path, put)| (path.as_path(), put))
    }

    /// Names of the configurations in `directory` that are wholly ours.
    pub fn own_files<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a str> {
        self.entries()
            .filter(move |(path, put)| **put == Put::OwnFile && path.parent() == Some(directory))
            .filter_map(|(path, _)| path.file_name()?.to_str())
    }

    /// Whether `sha256` is that of a program which we have put at `path`.
    pub fn is_our_binary(&self, path: &Path, sha256: &str) -> bool {
        matches!(self.put.get(path), Some(Put::Binary { sha256: known }) if known.iter().any(|it| it == sha256))
    }

    /// Notes what is about to be put at `path`. True when that was news, and so is on the disk now.
    ///
    /// # Errors
    /// When it cannot be written; the change must not be made then.
    pub fn note(&mut self, path: &Path, put: &Put) -> Result<bool, FileError> {
        let put = match (put, self.put.get(path)) {
            (Put::Nothing, _) => return Ok(false),
            (Put::Binary { sha256 }, Some(Put::Binary { sha256: known })) => {
                let older = known.iter().filter(|it| !sha256.contains(it));
                Put::Binary { sha256: sha256.iter().chain(older).take(FINGERPRINTS).cloned().collect() }
            }
            _ => put.clone(),
        };
        if self.put.get(path) == Some(&put) {
            return Ok(false);
        }
        let before = self.put.insert(path.to_owned(), put);
        self.write().inspect_err(|_| {
            // What is not on the disk is not known.
            match before {
                Some(before) => self.put.insert(path.to_owned(), before),
                None => self.put.remove(path),
            };
        })?;
        Ok(true)
    }

    /// Forgets `path`: nothing of ours is there any more. True when that was news.
    ///
    /// # Errors
    /// When it cannot be written; the entry stays, which is harmless.
    pub fn forget(&mut self, path: &Path) -> Result<bool, FileError> {
        if self.put.remove(path).is_none() {
            return Ok(false);
        }
        self.write()?;
        Ok(true)
    }

    /// Ends it, when nothing is left to undo.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn finish(&mut self) -> Result<(), FileError> {
        self.put.clear();
        file::remove(&self.path).map(|_| ())
    }

    fn write(&self) -> Result<(), FileError> {
        let file = File { version: VERSION, put: self.put.clone() };
        // Paths that are no UTF-8 are the only possible error, and settings are text.
        let text = serde_json::to_vec_pretty(&file).unwrap_or_default();
        file::replace(&self.path, &text, Access::new(MODE)).map(|_| ())
    }
}

fn unread(path: &Path, cause: &str) -> BTreeMap<PathBuf, Put> {
    tracing::warn!(path = %path.display(), cause, "the journal of the installation cannot be used, and is begun anew");
    BTreeMap::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(sha256: &[&str]) -> Put {
        Put::Binary { sha256: sha256.iter().map(|it| (*it).to_owned()).collect() }
    }

    #[test]
    fn what_was_noted_is_known_to_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let (list, own, plugin) =
            (Path::new("/net.d/10.conflist"), Path::new("/net.d/02.conflist"), Path::new("/bin/p"));
        let mut journal = Journal::open(dir.path());
        assert!(journal.note(list, &Put::Element).unwrap());
        assert!(!journal.note(list, &Put::Element).unwrap(), "no write for what is known");
        assert!(journal.note(own, &Put::OwnFile).unwrap());
        assert!(!journal.note(list, &Put::Nothing).unwrap());
        for version in ["1", "2", "3", "4"] {
            assert!(journal.note(plugin, &binary(&[version])).unwrap());
        }
        let mut next = Journal::open(dir.path());
        assert_eq!(next.entries().count(), 3);
        assert_eq!(next.own_files(Path::new("/net.d")).collect::<Vec<_>>(), ["02.conflist"]);
        assert!(next.is_our_binary(plugin, "4") && next.is_our_binary(plugin, "2") && !next.is_our_binary(plugin, "1"));
        assert!(next.forget(list).unwrap() && !next.forget(list).unwrap());
        assert_eq!(Journal::open(dir.path()).entries().count(), 2);
        next.finish().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_journal_that_nobody_understands_does_not_stop_the_work() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"version\":2,\"put\":{}}", "{\"version\":1,\"put\":{\"/x\":{\"what\":\"?\"}}}"] {
            std::fs::write(dir.path().join(NAME), text).unwrap();
            let mut journal = Journal::open(dir.path());
            assert_eq!(journal.entries().count(), 0, "{text}");
            journal.note(Path::new("/a"), &Put::Credentials).unwrap();
            assert_eq!(Journal::open(dir.path()).entries().count(), 1);
        }
    }

    #[test]
    fn what_could_not_be_written_is_not_believed() {
        let mut journal = Journal::open(Path::new("/does/not/exist"));
        assert!(journal.note(Path::new("/a"), &Put::Credentials).is_err());
        assert_eq!(journal.entries().count(), 0);
    }
}
