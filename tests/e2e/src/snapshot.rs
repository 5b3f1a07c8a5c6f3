//! What a directory holds, byte for byte, to compare before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The entries of a directory by name.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, Entry>);

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    File { mode: u32, content: Vec<u8> },
    Link { target: PathBuf },
    Directory { mode: u32 },
}

impl Snapshot {
    /// Reads `directory`.
    ///
    /// # Errors
    /// When something in it cannot be read.
    pub fn of(directory: &Path) -> Result<Self, Failure> {
        Self::read(directory).map_err(Failure::system(format!("read {}", directory.display())))
    }

    /// What differs in `later`, one sentence each; empty when nothing does.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let gone_or_changed = self.0.iter().filter_map(|(name, was)| match (was, later.0.get(name)) {
            (_, None) => Some(format!("{name} is gone")),
            (was, Some(is)) if was == is => None,
            (Entry::File { mode, content }, Some(Entry::File { mode: now, content: text })) => {
                Some(if content == text {
                    format!("{name} had mode {mode:04o}, now {now:04o}")
                } else {
                    format!("{name} changed: {} bytes before, {} now", content.len(), text.len())
                })
            }
            _ => Some(format!("{name} is something else now")),
        });
        let new = later.0.keys().filter(|name| !self.0.contains_key(*name)).map(|name| format!("{name} is new"));
        gone_or_changed.chain(new).collect()
    }

    fn read(directory: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.path().symlink_metadata()?;
            let mode = metadata.permissions().mode() & 0o7777;
            let seen = if metadata.is_symlink() {
                Entry::Link { target: fs::read_link(entry.path())? }
            } else if metadata.is_dir() {
                Entry::Directory { mode }
            } else {
                Entry::File { mode, content: fs::read(entry.path())? }
            };
            entries.insert(entry.file_name().to_string_lossy().into_owned(), seen);
        }
        Ok(Self(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32, content: &str) -> Entry {
        Entry::File { mode, content: content.as_bytes().to_vec() }
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let before = Snapshot(
            [
                ("same".to_owned(), file(0o644, "a")),
                ("mode".to_owned(), file(0o644, "a")),
                ("text".to_owned(), file(0o644, "a")),
                ("gone".to_owned(), file(0o644, "a")),
                ("link".to_owned(), Entry::Link { target: "a".into() }),
            ]
            .into(),
        );
        let after = Snapshot(
            [
                ("same".to_owned(), file(0o644, "a")),
                ("mode".to_owned(), file(0o600, "a")),
                ("text".to_owned(), file(0o644, "b")),
                ("new".to_owned(), file(0o644, "a")),
                ("link".to_owned(), Entry::Link { target: "b".into() }),
            ]
            .into(),
        );
        assert!(before.differences(&before).is_empty());
        let told = before.differences(&after);
        assert_eq!(told.len(), 5, "{told:?}");
        for name in ["mode", "text", "gone", "new", "link"] {
            assert!(told.iter().any(|line| line.starts_with(name)), "{name}: {told:?}");
        }
    }
}
