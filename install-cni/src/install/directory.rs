//! What is in the CNI configuration directory, read once per pass.
//!
//! Everything that decides — which files count, which one to edit, what to write — works on this picture and touches
//! no file. Called at the start of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use sys::file::{self, Access, FileError};
use thiserror::Error;

/// Endings of configuration files that runtimes read.
pub(crate) const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];
/// Ending of a configuration that Cilium, in its exclusive mode, has put aside.
const CILIUM_BACKUP: &str = ".cilium_bak";
/// Larger files are no configuration; in bytes.
const LIMIT: u64 = 4 << 20;

/// The directory cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// There is no such directory (yet).
    #[error("the CNI configuration directory {0} does not exist")]
    Missing(PathBuf),
    /// It is there but cannot be listed.
    #[error("the CNI configuration directory {path} cannot be read: {source}")]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Names of files in the directory that are wholly ours, as long as they run our plugin or copy another file.
pub type OwnFiles = BTreeSet<String>;

/// A file that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Its content.
    pub text: String,
    /// Its mode and owner, to be kept.
    pub access: Access,
}

/// Files of the directory by name, in the order in which runtimes look at them.
#[derive(Debug, Default)]
pub struct Directory {
    /// The directory.
    pub path: PathBuf,
    /// Files with one of the known endings, and those asked for by name: content, or why there is none.
    pub files: BTreeMap<String, Result<Text, String>>,
    /// For each sub-directory the texts of its `.conf` files: plugins that a list of that name takes in.
    pub drop_ins: BTreeMap<String, Vec<Result<Text, String>>>,
    /// Whether a file has the ending that Cilium gives to the configurations of others when it renames them.
    pub cilium_renames: bool,
}

impl Directory {
    /// Reads the directory; files `named` are read too, whatever their ending.
    ///
    /// # Errors
    /// When there is no directory or it cannot be listed. A file that cannot be read is no error here.
    pub fn observe(path: &Path, named: &[&str]) -> Result<Self, DirectoryError> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => DirectoryError::Missing(path.to_owned()),
            _ => DirectoryError::Unreadable { path: path.to_owned(), source },
        };
        let mut directory = Self { path: path.to_owned(), ..Self::default() };
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // A name that is not UTF-8 is not one anybody gives a configuration.
            let Ok(name) = entry.file_name().into_string() else { continue };
            directory.cilium_renames |= name.ends_with(CILIUM_BACKUP);
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directory.drop_ins.insert(name, read_drop_ins(&entry.path()));
            } else if (has_known_ending(&name) || named.contains(&name.as_str()))
                && let Some(text) = read(&entry.path())
            {
                directory.files.insert(name, text);
            }
        }
        Ok(directory)
    }

    /// The file `name`, if it could be read.
    pub fn text(&self, name: &str) -> Option<&Text> {
        self.files.get(name).and_then(|file| file.as_ref().ok())
    }
}

/// Whether a runtime would look at a file of this name.
pub(crate) fn has_known_ending(name: &str) -> bool {
    ending(name).is_some_and(|ending| ENDINGS.contains(&ending))
}

/// What follows the last dot.
pub(crate) fn ending(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(_, ending)| ending)
}

fn read_drop_ins(path: &Path) -> Vec<Result<Text, String>> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
        .iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "conf"))
        .filter_map(|path| read(path))
        .collect()
}

/// `None` when the file has gone since it was listed, or is a dangling link.
fn read(path: &Path) -> Option<Result<Text, String>> {
    match file::read(path, LIMIT) {
        Ok(None) => None,
        Ok(Some(content)) => Some(match String::from_utf8(content.bytes) {
            Ok(text) => Ok(Text { text, access: content.access }),
            Err(_) => Err("it is not UTF-8 text".to_owned()),
        }),
        Err(FileError::Io { source, .. }) => Some(Err(format!("it cannot be read: {source}"))),
        Err(error @ FileError::TooBig { .. }) => Some(Err(error.to_string())),
    }
}
