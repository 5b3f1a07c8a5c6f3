//! Standard input that can be waited for: a runtime that asks for VERSION may leave it open and silent, and one that gives
//! up on a call tells us so while we read.
//!
//! It is read without a buffer of our own, so that what the kernel says about it is all there is to know.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cni::Input;
use nix::poll::PollFlags;
use sys::interrupt;

/// The runtime writes the configuration before or right after it starts us. One that has not done so by then never will.
const PATIENCE: Duration = Duration::from_secs(120);

/// Standard input of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        wait(PATIENCE)?;
        Ok(nix::unistd::read(io::stdin(), buffer)?)
    }
}

impl Input for Stdin {
    fn wait(&mut self, patience: Duration) -> bool {
        wait(patience).is_ok()
    }
}

fn wait(patience: Duration) -> io::Result<()> {
    interrupt::wait(Some((io::stdin().as_fd(), PollFlags::POLLIN)), Instant::now() + patience)
}
