//! The plugin and its companion in the node's directory of CNI plugins.
//!
//! Every regular file of the image's directory is wanted there, with its mode. What is equal is not written, so that a
//! pass that changes nothing touches nothing. A running plugin keeps its old file, because a new one arrives by
//! rename. Called by a pass, and by uninstall to know what is ours.

use std::fmt::Write;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agent_api::paths::{IPTABLES_NAME, PLUGIN_NAME};
use ring::digest::{SHA256, digest};
use sys::file::{self, Access, Content, FileError};
use thiserror::Error;

use super::journal::{Journal, Put};
use super::steps::{Guard, Step};

/// Mode of a target directory that we have to create.
const DIRECTORY_MODE: u32 = 0o755;
/// The files that uninstall removes.
const OURS: [&str; 2] = [PLUGIN_NAME, IPTABLES_NAME];

/// Files of the image's directory by name, in order.
pub type Image = Vec<(String, Content)>;

/// Why the image's binaries are not known.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The directory.
    #[error("the binaries of the image in {path} cannot be listed: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// One of the files.
    #[error("a binary of the image cannot be read: {0}")]
    File(#[from] FileError),
}

/// What changes whenever a file does: device, inode, size, mode, and both times with nanoseconds.
type Stamp = (u64, u64, u64, u32, (i64, i64), (i64, i64));

/// Stamps of the image's files and of what the target directories have under their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps(Vec<(PathBuf, Stamp)>);

impl Stamps {
    /// Takes them; `None` when a file is missing, so that there is nothing to compare.
    pub fn take(source: &Path, targets: &[PathBuf]) -> Option<Self> {
        let mut stamps = Vec::new();
        for entry in std::fs::read_dir(source).ok()? {
            let name = entry.ok()?.file_name();
            for directory in targets.iter().map(PathBuf::as_path).chain([source]) {
                let path = directory.join(&name);
                let data = path.metadata().ok()?;
                let times = ((data.mtime(), data.mtime_nsec()), (data.ctime(), data.ctime_nsec()));
                stamps.push((path, (data.dev(), data.ino(), data.len(), data.mode(), times.0, times.1)));
            }
        }
        stamps.sort();
        Some(Self(stamps))
    }
}

/// What a target directory has under each name of the image.
#[derive(Debug)]
pub struct Target {
    /// The directory.
    pub path: PathBuf,
    /// In the order of the image.
    pub files: Vec<Result<Option<Content>, FileError>>,
}

impl Target {
    /// Looks at `path`.
    pub fn look(path: &Path, image: &Image) -> Self {
        let files = image.iter().map(|(name, _)| file::read(&path.join(name), u64::MAX)).collect();
        Self { path: path.to_owned(), files }
    }
}

/// All regular files of the image's directory. Links are followed, directories skipped.
///
/// # Errors
/// [`ImageError`] when the directory or one of the files cannot be read.
pub fn read_image(source: &Path) -> Result<Image, ImageError> {
    let failed = |error| ImageError::Directory { path: source.to_owned(), source: error };
    let mut image = Image::new();
    for entry in std::fs::read_dir(source).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if !path.is_file() {
            continue;
        }
        if let (Some(name), Some(content)) =
            (path.file_name().and_then(|name| name.to_str()), file::read(&path, u64::MAX)?)
        {
            image.push((name.to_owned(), content));
        }
    }
    image.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(image)
}

/// Creates `target` if need be, and removes what a killed predecessor, or Istio's own agent, left in it.
///
/// # Errors
/// When there is no such directory and it cannot be created, or something cannot be removed.
pub fn prepare(target: &Path, image: &Image) -> Result<(), FileError> {
    file::create_dir(target, DIRECTORY_MODE)?;
    let mut count = file::clear(target)?;
    for (name, _) in image {
        count += file::clear_beside(&target.join(name))?;
    }
    if count > 0 {
        tracing::info!(path = %target.display(), count, "left-over temporary files removed");
    }
    Ok(())
}

/// Steps that bring `target` up to date with the image, and what stands in the way of others.
pub fn plan<'a>(image: &Image, target: &'a Target) -> (Vec<Step>, Vec<&'a FileError>) {
    let (mut steps, mut errors) = (Vec::new(), Vec::new());
    for ((name, content), have) in image.iter().zip(&target.files) {
        let cause = match have {
            Err(error) => {
                errors.push(error);
                continue;
            }
            Ok(None) => "it was not there",
            Ok(Some(have)) if have.bytes != content.bytes => "it was another version",
            Ok(Some(have)) if have.access.mode != content.access.mode => "its mode was another one",
            Ok(Some(_)) => continue,
        };
        let put = Put::Binary { sha256: vec![sha256(&content.bytes)] };
        let access = Access::new(content.access.mode);
        steps.push(Step::write(&target.path.join(name), content.bytes.clone(), access, put, cause));
    }
    (steps, errors)
}

/// Steps that remove our two binaries from `target`: those that are the image's, or that the journal knows as ours.
///
/// # Errors
/// [`FileError`] when one cannot be compared.
pub fn removal(image: &Image, journal: &Journal, target: &Path) -> Result<Vec<Step>, FileError> {
    let mut steps = Vec::new();
    for name in OURS {
        let path = target.join(name);
        let Some(have) = file::read(&path, u64::MAX)? else { continue };
        let is_the_images = image.iter().any(|(known, content)| known == name && content.bytes == have.bytes);
        if is_the_images || journal.is_our_binary(&path, &sha256(&have.bytes)) {
            steps.push(Step::remove(&path, "uninstall").guarded(Guard::Bytes(have.bytes)));
        }
    }
    Ok(steps)
}

/// Whether the plugin in `target` is there and may be executed.
pub fn plugin_is_usable(target: &Path) -> bool {
    target.join(PLUGIN_NAME).metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
