//! Ctrl-C and SIGTERM: the node is ended at once, so that whatever waits for it returns, and the usual clean-up runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use testkit::containerd::Killer;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

const PAUSE: Duration = Duration::from_millis(50);

/// Whether we were asked to end, and whom to end then.
#[derive(Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    node: Arc<Mutex<Option<Killer>>>,
}

impl Interrupt {
    /// Starts listening for signals.
    ///
    /// # Errors
    /// When the signals cannot be caught.
    pub fn listen() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::system("catch signals"))?;
        let (mut int, mut term) = {
            let _inside = runtime.enter();
            let catch = |kind| signal(kind).map_err(Failure::system("catch signals"));
            (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?)
        };
        let shared = interrupt.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                either(&mut int, &mut term).await;
                shared.ask();
                either(&mut int, &mut term).await;
                // Asked twice: leave at once; the next run cleans up.
                std::process::exit(130);
            });
        });
        Ok(interrupt)
    }

    /// The node to end when a signal comes.
    pub fn ends(&self, node: Killer) {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
    }

    /// Fails once we were asked to end.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn check(&self) -> Result<(), Failure> {
        if self.asked() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Whether we were asked to end.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Looks again and again until `look` gives something, for at most `patience`. The last reason why not is told.
    ///
    /// # Errors
    /// When time is up, naming `what` was awaited, or when interrupted.
    pub fn wait_for<T>(
        &self,
        what: &str,
        patience: Duration,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + patience;
        loop {
            self.check()?;
            match look() {
                Ok(found) => return Ok(found),
                Err(reason) if Instant::now() > deadline => {
                    return Failure::unexpected(format!("{what}: not within {} s: {reason}", patience.as_secs()));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        eprintln!("\ninterrupted: cleaning up (once more to leave at once)");
        if let Some(node) = self.node.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            node.kill();
        }
    }
}

async fn either(int: &mut Signal, term: &mut Signal) {
    std::future::poll_fn(|context| {
        let came = int.poll_recv(context).is_ready() || term.poll_recv(context).is_ready();
        if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
