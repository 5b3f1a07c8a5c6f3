//! Tells when the wall clock has been set: by an administrator, by time synchronisation, or after a machine has slept.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// When the timer runs out by itself, which tells nothing: ten years on.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Becomes readable when the clock is set.
#[derive(Debug)]
pub struct ClockWatch {
    timer: TimerFd,
}

impl ClockWatch {
    /// Watches from now on.
    ///
    /// # Errors
    /// When the system gives no timer.
    pub fn start() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let watch = Self { timer: TimerFd::new(ClockId::CLOCK_REALTIME, flags)? };
        watch.again()?;
        Ok(watch)
    }

    /// A descriptor that becomes readable when the clock is set; to be read before [`ClockWatch::again`]. It does not
    /// block.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.timer.as_fd().try_clone_to_owned()
    }

    /// Watches for the next time.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn again(&self) -> io::Result<()> {
        self.arm(SystemTime::now() + FAR)
    }

    /// Rings as if the clock had been set; for tests, which must not set it.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn ring(&self) -> io::Result<()> {
        self.arm(SystemTime::now())
    }

    fn arm(&self, at: SystemTime) -> io::Result<()> {
        let at = TimeSpec::from_duration(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(FAR));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        // A clock that is set while the timer is being set ends the call, with the timer set.
        match self.timer.set(Expiration::OneShot(at), flags) {
            Ok(()) | Err(Errno::ECANCELED) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
