//! Standard input that can be waited for: a runtime that asks for VERSION may leave it open and silent.
//!
//! It is read without a buffer of our own, so that what the kernel says about it is all there is to know.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use cni::Input;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Standard input of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(io::stdin(), buffer)?)
    }
}

impl Input for Stdin {
    fn wait(&mut self, patience: Duration) -> bool {
        let stdin = io::stdin();
        let mut wanted = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
        poll(&mut wanted, timeout).is_ok_and(|ready| ready > 0)
    }
}
