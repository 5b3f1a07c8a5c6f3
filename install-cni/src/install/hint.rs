//! What to do about an error whose usual cause is known.
//!
//! Called where an error is logged; the error itself stays short.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sys::file::FileError;

/// `EPERM`; a missing permission is `EACCES`.
const NOT_PERMITTED: i32 = 1;

/// A sentence that tells what usually helps; `None` when there is no such thing.
pub fn hint(error: &FileError) -> Option<String> {
    let FileError::Io { path, source, .. } = error else { return None };
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => Some(
            "the file system is read-only: this platform keeps its CNI files elsewhere; set the chart's cniBinDir and \
             cniConfDir to the directories the container runtime uses (GKE: /home/kubernetes/bin)"
                .to_owned(),
        ),
        // What permissions cannot explain.
        io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(NOT_PERMITTED) => Some(format!(
            "{}; if lsattr shows an `i`, the file was made immutable: `chattr -i` undoes that",
            owner(path)
        )),
        io::ErrorKind::PermissionDenied => Some(format!(
            "{}; writing into directories of other users needs the capability DAC_OVERRIDE, and on SELinux hosts a \
             container type that may write there",
            owner(path)
        )),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("the disk is full; the old file is untouched, and it is tried again".to_owned())
        }
        _ => None,
    }
}

/// Owner and mode of `path`, or of the nearest directory above it that exists.
fn owner(path: &Path) -> String {
    let known = path.ancestors().find_map(|path| Some((path, path.metadata().ok()?)));
    known.map_or_else(
        || format!("{} cannot be looked at", path.display()),
        |(path, metadata)| {
            let (uid, gid, mode) = (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777);
            format!("{} belongs to {uid}:{gid} and has mode {mode:04o}", path.display())
        },
    )
}
