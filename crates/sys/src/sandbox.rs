//! Work that sees some files replaced by others: a mount namespace of its own, on a thread that ends with the work.
//!
//! Programs started by the work see the same. It knows nothing about the programs; `iptables-rules` uses it to keep
//! host-wide locks and name services away from helper programs that run for one pod.

use std::io;
use std::path::PathBuf;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use thiserror::Error;

/// Stack of the thread, in bytes.
const STACK: usize = 512 * 1024;

/// `target` shows what is at `source`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// What is shown.
    pub source: PathBuf,
    /// Where. It must exist.
    pub target: PathBuf,
}

/// Why there is no sandbox. The work was not started.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// No thread, or it died.
    #[error("no thread for a mount namespace: {0}")]
    Thread(String),
    /// The kernel gives no mount namespace.
    #[error("no mount namespace of its own: {0}. The capability SYS_ADMIN may be missing")]
    Namespace(io::Error),
    /// Mounts would spread to the host.
    #[error("mounts cannot be kept from the host: {0}")]
    Propagation(io::Error),
    /// One file cannot be shown in place of the other.
    #[error("{source_path} cannot be mounted over {target}: {source}")]
    Bind {
        /// What was to be shown.
        source_path: PathBuf,
        /// Where.
        target: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Runs `work` where every bind holds. The network namespace stays that of the calling thread.
///
/// # Errors
/// See [`SandboxError`].
pub fn run<T: Send>(binds: &[Bind], work: impl FnOnce() -> T + Send) -> Result<T, SandboxError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("sandbox".to_owned()).stack_size(STACK);
        let handle = thread.spawn_scoped(scope, || {
            set_up(binds)?;
            Ok(work())
        });
        let handle = handle.map_err(|source| SandboxError::Thread(source.to_string()))?;
        handle.join().unwrap_or_else(|_| Err(SandboxError::Thread("it panicked".to_owned())))
    })
}

fn set_up(binds: &[Bind]) -> Result<(), SandboxError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| SandboxError::Namespace(errno.into()))?;
    let nothing = None::<&str>;
    let keep = |how| mount(nothing, "/", nothing, MsFlags::MS_REC | how, nothing);
    // "Slave" still receives mounts from the host but sends none, which is enough where "private" is refused.
    keep(MsFlags::MS_PRIVATE)
        .or_else(|_| keep(MsFlags::MS_SLAVE))
        .map_err(|errno| SandboxError::Propagation(errno.into()))?;
    for Bind { source, target } in binds {
        let flags = MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(Some(source), target, nothing, flags, nothing).map_err(|errno| SandboxError::Bind {
            source_path: source.clone(),
            target: target.clone(),
            source: errno.into(),
        })?;
    }
    Ok(())
}
