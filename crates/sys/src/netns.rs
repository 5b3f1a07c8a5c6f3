//! Network namespaces: held by descriptor, compared by inode, entered on a thread that ends with the work.
//!
//! A thread that has entered a namespace is never handed back to anyone. Note that after entering, `/proc/net` shows
//! the namespace and `/sys/class/net` does not.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use thiserror::Error;

/// Stack of the thread that works inside a namespace, in bytes.
const STACK: usize = 512 * 1024;
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// What can go wrong with a namespace.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// The path cannot be opened.
    #[error("network namespace {path} cannot be opened: {source}")]
    Open {
        /// The path asked for.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused to let us in.
    #[error("network namespace {path} cannot be entered: {source}")]
    Enter {
        /// The path it was opened from.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The thread for the work could not be started, or died.
    #[error("no thread for the work in network namespace {path}: {reason}")]
    Thread {
        /// The path the namespace was opened from.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Identity of a namespace: device and inode number of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetnsId {
    device: u64,
    inode: u64,
}

impl NetnsId {
    fn new(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// An open network namespace.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    id: NetnsId,
}

impl Netns {
    /// Identity of the namespace at `path`, without opening it.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when there is nothing at the path, or it cannot be looked at.
    pub fn id_of(path: &Path) -> Result<NetnsId, NetnsError> {
        let failed = |source| NetnsError::Open { path: path.to_owned(), source };
        path.metadata().map(|metadata| NetnsId::new(&metadata)).map_err(failed)
    }

    /// Opens the namespace file at `path`. That it is a network namespace shows when it is entered.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when the path cannot be opened.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let failed = |source| NetnsError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        Ok(Self { file, path: path.to_owned(), id: NetnsId::new(&metadata) })
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when `/proc` is not there.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(Path::new(OWN))
    }

    /// Identity of the namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetnsError::Open`] when `/proc` is not there.
    pub fn current_id() -> Result<NetnsId, NetnsError> {
        Self::id_of(Path::new(OWN))
    }

    /// Identity, for comparing two handles.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// The path it was opened from, for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread into the namespace, for good. Only for a process that ends with its work; others use
    /// [`Netns::run`].
    ///
    /// # Errors
    /// [`NetnsError::Enter`] when it is not a network namespace or we may not enter it.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(|errno| NetnsError::Enter { path: self.path.clone(), source: errno.into() })
    }

    /// Runs `work` inside the namespace, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// [`NetnsError::Enter`] when it is not a network namespace or we may not enter it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let thread_failed = |reason: String| NetnsError::Thread { path: self.path.clone(), reason };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("netns".to_owned()).stack_size(STACK);
            let handle = thread
                .spawn_scoped(scope, || {
                    self.enter()?;
                    Ok(work())
                })
                .map_err(|source| thread_failed(source.to_string()))?;
            handle.join().unwrap_or_else(|_| Err(thread_failed("it panicked".to_owned())))
        })
    }
}
