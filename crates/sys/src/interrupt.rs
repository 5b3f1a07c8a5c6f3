//! Signals that ask a program to end, heard wherever it waits.
//!
//! A program that calls [`hold`] is no longer ended by them in the middle of something: its next wait gives [`Stopped`],
//! and it ends in its own words. Programs that do not call it are ended as usual, and their waits just wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use thiserror::Error;

static HELD: OnceLock<SignalFd> = OnceLock::new();
/// The signal that came. It ends every wait from then on, so that it cannot get lost in one that did not matter.
static CAME: OnceLock<Stopped> = OnceLock::new();

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the process was told to end by {0}")]
pub struct Stopped(pub &'static str);

impl Stopped {
    /// The signal behind an error of a wait, if one was.
    pub fn behind(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// Holds SIGTERM, SIGINT and SIGHUP back for this thread and those it starts from now on.
///
/// # Errors
/// When the system has no descriptor for them. Then nothing is held back.
pub fn hold() -> io::Result<()> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    let descriptor = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    signals.thread_block()?;
    // A second call finds the same signals held already.
    drop(HELD.set(descriptor));
    Ok(())
}

/// Sleeps.
///
/// # Errors
/// [`Stopped`] when a signal came.
pub fn sleep(time: Duration) -> io::Result<()> {
    match wait(None, Instant::now() + time) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
        other => other,
    }
}

/// Waits until something can be done with `fd`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] when the deadline has passed, [`Stopped`] when a signal came.
pub fn wait(fd: Option<(BorrowedFd<'_>, PollFlags)>, deadline: Instant) -> io::Result<()> {
    loop {
        if let Some(stopped) = CAME.get() {
            return Err(io::Error::other(*stopped));
        }
        let mut watched = Vec::with_capacity(2);
        watched.extend(HELD.get().map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
        let signals = watched.len();
        watched.extend(fd.map(|(fd, wanted)| PollFd::new(fd, wanted)));
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a poll of nothing at all would spin through the last millisecond.
        let timeout = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, timeout) {
            Ok(0) if left.is_zero() || Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |index: usize| watched.get(index).and_then(PollFd::any).unwrap_or(false);
        if signals == 1
            && ready(0)
            && let Some(stopped) = HELD.get().and_then(taken)
        {
            let _ = CAME.set(stopped);
            continue;
        }
        if ready(signals) {
            return Ok(());
        }
    }
}

/// The signal that waits in the descriptor.
fn taken(signals: &SignalFd) -> Option<Stopped> {
    let info = signals.read_signal().ok()??;
    let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())?;
    Some(Stopped(signal.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_deadline_or_when_there_is_something() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        let error = wait(Some((reader.as_fd(), PollFlags::POLLIN)), soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(Instant::now() >= soon);
        nix::unistd::write(&writer, b"x").unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        wait(Some((reader.as_fd(), PollFlags::POLLIN)), late).unwrap();
        sleep(Duration::from_millis(1)).unwrap();
    }

    #[test]
    #[ignore = "holds the signals of its process back; the test below runs it in one of its own"]
    fn is_told_to_end() {
        hold().unwrap();
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        for _ in 0..2 {
            let error = sleep(Duration::from_secs(60)).unwrap_err();
            assert_eq!(Stopped::behind(&error), Some(Stopped("SIGTERM")));
        }
    }

    #[test]
    fn a_signal_that_came_during_a_wait_that_did_not_matter_still_ends_the_next_one() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "interrupt::tests::is_told_to_end", "--ignored"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
