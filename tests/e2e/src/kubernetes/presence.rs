//! Whether what a pod's start depends on is there at every moment: plugin, list entry, kubeconfig.
//!
//! A thread looks a thousand times a second. Replacing a file in one step is never seen as an absence.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::failure::Failure;

const PAUSE: Duration = Duration::from_millis(1);

/// A file and the text that must be in it; empty for any.
#[derive(Debug, Clone)]
pub struct Needed {
    /// What it is, for people.
    pub what: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What it must hold.
    pub text: String,
}

/// A watch that goes on until it is asked.
pub struct Presence {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(&'static str, Duration)>>,
}

impl Presence {
    /// Starts looking.
    pub fn watch(needed: Vec<Needed>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut absent: Vec<_> = needed.iter().map(|one| (one.what, Duration::ZERO)).collect();
            let mut last = Instant::now();
            while !asked.load(Ordering::SeqCst) {
                std::thread::sleep(PAUSE);
                let since = last.elapsed();
                last = Instant::now();
                for (one, (_, total)) in needed.iter().zip(&mut absent) {
                    if !one.is_there() {
                        *total += since;
                    }
                }
            }
            absent
        });
        Self { stop, thread }
    }

    /// Stops looking.
    ///
    /// # Errors
    /// When something was absent: what, and how long altogether.
    pub fn end(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::SeqCst);
        let Ok(absent) = self.thread.join() else {
            return Failure::unexpected("the watch on plugin, list entry and kubeconfig ended early");
        };
        let mut told = String::new();
        for (what, time) in absent.iter().filter(|(_, time)| !time.is_zero()) {
            // Writing to a string cannot fail.
            let _ = write!(told, "; {what}: {} ms", time.as_millis());
        }
        if told.is_empty() { Ok(()) } else { Failure::unexpected(format!("absent during the update{told}")) }
    }
}

impl Needed {
    fn is_there(&self) -> bool {
        if self.text.is_empty() {
            return self.path.exists();
        }
        fs::read_to_string(&self.path).is_ok_and(|text| text.contains(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_is_told_and_a_replacement_is_none() {
        let folder = std::env::temp_dir().join(format!("presence-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let needed = |name: &'static str, text: &str| Needed { what: name, path: folder.join(name), text: text.into() };
        fs::write(folder.join("a"), "ours").unwrap();
        fs::write(folder.join("b"), "not yet").unwrap();
        let watch = Presence::watch(vec![needed("a", "ours"), needed("b", "ours")]);
        for _ in 0..50 {
            fs::write(folder.join("new"), "ours").unwrap();
            fs::rename(folder.join("new"), folder.join("a")).unwrap();
            std::thread::sleep(PAUSE);
        }
        let told = watch.end().unwrap_err().to_string();
        fs::remove_dir_all(&folder).unwrap();
        assert!(told.contains("b: ") && !told.contains("a: "), "{told}");
    }
}
