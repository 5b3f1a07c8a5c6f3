//! The user namespace that a network namespace belongs to.
//!
//! A pod with users of its own has one. The kernel takes some packet rules, such as those about the owner of a socket,
//! only from a process in the very user namespace that owns the network namespace, however privileged others are.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

nix::ioctl_none!(
    /// `NS_GET_USERNS`: opens the user namespace that owns a namespace.
    get_user_namespace,
    0xb7,
    0x1
);

/// An open user namespace.
#[derive(Debug, Clone)]
pub struct UserNamespace {
    fd: Arc<OwnedFd>,
}

impl UserNamespace {
    /// The user namespace that owns the network namespace at `netns`, if it is not ours. `None` also when the kernel does
    /// not tell, which means that it is one above ours.
    pub fn foreign_owner(netns: &Path) -> Option<Self> {
        let netns = File::open(netns).ok()?;
        // SAFETY: NS_GET_USERNS takes no argument; its answer is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(get_user_namespace(netns.as_raw_fd()).ok()?) };
        let owner = File::from(fd);
        let (theirs, ours) = (owner.metadata().ok()?, std::fs::metadata("/proc/self/ns/user").ok()?);
        let foreign = (theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino());
        foreign.then(|| Self { fd: Arc::new(owner.into()) })
    }

    /// Enters it as its root user. Works in a process with a single thread, as a child is before it runs a program, and
    /// makes system calls only.
    pub(crate) fn enter(&self) -> std::io::Result<()> {
        let fd: BorrowedFd<'_> = self.fd.as_fd();
        setns(fd, CloneFlags::CLONE_NEWUSER)?;
        let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
        // Where groups may not be set, the ones that we have mean nothing there anyway.
        let _ = setgroups(&[]);
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
        Ok(())
    }
}
