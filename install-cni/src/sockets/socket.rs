//! One listening socket on the disk, for root only.
//!
//! It is made under another name and then moved into place, so that there is never a moment with a socket that others
//! may use, nor one without any. It goes with its value, unless someone else's is in its place by then.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

/// Mode of the run directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Mode of the socket.
const MODE: u32 = 0o600;
/// How long a living process takes to have a connection accepted by the kernel.
const ALIVE: Duration = Duration::from_millis(500);

/// A listening socket.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode number.
    identity: (u64, u64),
    /// Whom it belongs to.
    owner: u32,
}

impl Socket {
    /// Makes the socket, in place of whatever is there, and its directory.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        if fs::metadata(directory)?.mode() & 0o7777 != DIRECTORY_MODE {
            fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))?;
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let temporary = path.with_file_name(name);
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&temporary)?;
        fs::set_permissions(&temporary, Permissions::from_mode(MODE))?;
        let metadata = fs::symlink_metadata(&temporary)?;
        fs::rename(&temporary, path)?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { listener, path: path.to_owned(), identity, owner: metadata.uid() })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, and whether its other end is root's, or of the user that the agent runs as.
    pub(super) async fn accept(&self) -> io::Result<(UnixStream, bool)> {
        let (stream, _) = self.listener.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok((stream, user == 0 || user == self.owner))
    }

    /// Whether it is still the one at its path.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_in_place() {
            // Nobody can be told; a dead socket does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether somebody listens at `path`.
pub(super) async fn is_alive(path: &Path) -> bool {
    matches!(tokio::time::timeout(ALIVE, UnixStream::connect(path)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_for_its_owner_and_goes_with_its_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/agent.sock");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let socket = Socket::bind(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(socket.is_in_place() && is_alive(&path).await);
        let newer = Socket::bind(&path).unwrap();
        assert!(!socket.is_in_place() && newer.is_in_place());
        drop(socket);
        assert!(is_alive(&path).await, "what is the newer one's stays");
        drop(newer);
        assert!(!path.exists());
        fs::write(&path, "in the way").unwrap();
        Socket::bind(&path).unwrap();
    }
}
