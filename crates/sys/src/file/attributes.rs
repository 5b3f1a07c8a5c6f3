//! Extended attributes of a file that is replaced: SELinux label, ACL, user attributes.
//!
//! Best effort: a file system without attributes, or a process that may not set them, loses them and nothing else.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// More than any label or ACL takes, in bytes; the kernel's own limit for one value.
const LIMIT: usize = 64 * 1024;

/// Copies the extended attributes of the file at `from`, if there is one, to the open file `to`. Links are not
/// followed, because the link itself is what gets replaced.
#[allow(unsafe_code)]
pub(super) fn carry_over(from: &Path, to: &File) {
    let Ok(from) = CString::new(from.as_os_str().as_bytes()) else { return };
    let mut names = vec![0_u8; LIMIT];
    // SAFETY: the pointers are valid for the lengths given, and the path ends in a zero byte.
    let length = unsafe { libc::llistxattr(from.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let Ok(length) = usize::try_from(length) else { return };
    names.truncate(length);
    let mut value = vec![0_u8; if length == 0 { 0 } else { LIMIT }];
    for name in names.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        // SAFETY: as above; `name` ends in a zero byte.
        let length = unsafe { libc::lgetxattr(from.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        if let Some(bytes) = usize::try_from(length).ok().and_then(|length| value.get(..length)) {
            // SAFETY: as above; the descriptor is open for as long as `to` lives.
            unsafe { libc::fsetxattr(to.as_raw_fd(), name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0) };
        }
    }
}
