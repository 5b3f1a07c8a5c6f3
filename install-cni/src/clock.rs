//! Wakes the main loop when the clock was set: what lives by it, a token above all, is to be looked at again.

use std::io::{self, ErrorKind};

use sys::clock::ClockWatch;
use tokio::net::unix::pipe::Receiver;

/// Waits for the clock to be set; without a timer of the system it waits for ever.
#[derive(Debug)]
pub struct Clock {
    watch: Option<(ClockWatch, Receiver)>,
}

impl Clock {
    /// Watches from now on. To be called inside the runtime.
    pub fn watch() -> Self {
        // Nothing in the runtime waits for timers of the system, but what waits for a pipe waits for any descriptor.
        let start = || -> io::Result<_> {
            let watch = ClockWatch::start()?;
            let receiver = Receiver::from_owned_fd_unchecked(watch.descriptor()?)?;
            Ok((watch, receiver))
        };
        let watch = start();
        if let Err(error) = &watch {
            tracing::debug!(%error, "the clock is not watched; the regular looks do without");
        }
        Self { watch: watch.ok() }
    }

    /// Returns when the clock has been set.
    pub async fn set(&self) {
        if let Some((watch, receiver)) = &self.watch {
            while receiver.readable().await.is_ok() {
                match receiver.try_read(&mut [0; 8]) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    _ if watch.again().is_ok() => {
                        tracing::info!("the clock was set, so everything is looked at again");
                        return;
                    }
                    _ => break,
                }
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_clock_that_nobody_sets_wakes_nobody() {
        let clock = Clock::watch();
        assert!(clock.watch.is_some());
        assert!(tokio::time::timeout(Duration::from_millis(50), clock.set()).await.is_err());
    }

    #[tokio::test]
    async fn a_clock_that_is_set_wakes_once() {
        let clock = Clock::watch();
        // A test must not set the machine's clock; a timer that runs out rings in the same way.
        clock.watch.as_ref().unwrap().0.ring().unwrap();
        clock.set().await;
        assert!(tokio::time::timeout(Duration::from_millis(50), clock.set()).await.is_err());
    }
}
