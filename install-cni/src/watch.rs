//! Wakes the main loop when something in a directory may have changed.
//!
//! Directories are watched, never files: a watch on a token file goes deaf with the first rotation, because the file
//! is reached through a link that is swapped. One watcher lives as long as the process. When the kernel gives us none,
//! the main loop looks often instead. What changed is not told: a pass looks at everything anyway.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Events come in bunches; this long without one ends a bunch.
const SETTLED: Duration = Duration::from_millis(100);
/// A bunch is not waited out for longer than this.
const ENOUGH: Duration = Duration::from_secs(1);
/// Until the next try to get a watcher.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Watches a fixed set of directories, which may come and go.
pub struct Watch {
    /// In directories of these files only the files matter.
    files: Vec<PathBuf>,
    places: Vec<Place>,
    watcher: Option<RecommendedWatcher>,
    next_try: Instant,
    told: bool,
    changed: Arc<Notify>,
}

/// One directory, and what is watched for it at the moment.
#[derive(Debug)]
struct Place {
    wanted: PathBuf,
    /// The directory itself, or while it is missing the nearest one above it; with its device and inode number.
    armed: Option<(PathBuf, (u64, u64))>,
}

impl Watch {
    /// For these directories. Nothing is watched before [`Watch::arm`].
    pub fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let places = directories.into_iter().map(|wanted| Place { wanted, armed: None }).collect();
        Self {
            files: Vec::new(),
            places,
            watcher: None,
            next_try: Instant::now(),
            told: false,
            changed: Arc::new(Notify::new()),
        }
    }

    /// And for this file, in whose directory other files change often and mean nothing.
    #[must_use]
    pub fn and_file(mut self, file: PathBuf) -> Self {
        self.places.extend(file.parent().map(|parent| Place { wanted: parent.to_owned(), armed: None }));
        self.files.push(file);
        self
    }

    /// Watches what is there now: to be called before each look at the directories, so that a directory that was
    /// replaced is noticed and no event falls between look and watch. False when some change may go unnoticed.
    pub fn arm(&mut self) -> bool {
        if self.watcher.is_none() && Instant::now() >= self.next_try {
            self.create();
        }
        let Some(watcher) = &mut self.watcher else { return false };
        let mut complete = true;
        let mut error = None;
        let in_use: Vec<_> = self.places.iter().filter_map(|place| nearest(&place.wanted)).collect();
        for place in &mut self.places {
            let target = nearest(&place.wanted);
            complete &= target.as_ref().is_some_and(|(path, _)| *path == place.wanted);
            if target == place.armed {
                continue;
            }
            if let Some((path, _)) = place.armed.take_if(|old| !in_use.contains(old)) {
                // It may have gone together with its watch.
                let _ = watcher.unwatch(&path);
            }
            place.armed = target.and_then(|(path, identity)| match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => Some((path, identity)),
                Err(reason) => {
                    error = Some(reason);
                    None
                }
            });
            complete &= place.armed.is_some();
        }
        if let Some(error) = error {
            self.warn(&error);
        }
        complete
    }

    /// Returns when something has changed and the changes have settled, at once if that was so before.
    pub async fn changed(&self) {
        self.changed.notified().await;
        let first = tokio::time::Instant::now();
        while first.elapsed() < ENOUGH && tokio::time::timeout(SETTLED, self.changed.notified()).await.is_ok() {}
    }

    fn create(&mut self) {
        let changed = Arc::clone(&self.changed);
        let files = self.files.clone();
        let handler = move |event: notify::Result<Event>| {
            // An error (an overflown queue) may stand for any change.
            if event.map_or(true, |event| is_a_change(&event) && concerns(&event, &files)) {
                changed.notify_one();
            }
        };
        match notify::recommended_watcher(handler) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.told = false;
            }
            Err(error) => {
                self.next_try = Instant::now() + TRY_AGAIN;
                self.warn(&error);
            }
        }
    }

    fn warn(&mut self, error: &notify::Error) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                cause = %error,
                "the directories cannot be watched, so they are looked at every few seconds; raising fs.inotify.max_user_instances and max_user_watches helps"
            );
        }
    }
}

/// The directory, or the nearest existing one above it, with its identity.
fn nearest(path: &Path) -> Option<(PathBuf, (u64, u64))> {
    path.ancestors().find_map(|path| {
        let metadata = path.metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some((path.to_owned(), (metadata.dev(), metadata.ino())))
    })
}

/// Our own reading is an event too, and must not wake us.
fn is_a_change(event: &Event) -> bool {
    !matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

/// Whether anything of it is more than a neighbour of one of `files`.
fn concerns(event: &Event, files: &[PathBuf]) -> bool {
    let is_neighbour =
        |path: &PathBuf| !files.contains(path) && files.iter().any(|file| file.parent() == path.parent());
    event.paths.is_empty() || !event.paths.iter().all(is_neighbour)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn wakes(watch: &Watch) -> bool {
        tokio::time::timeout(Duration::from_secs(10), watch.changed()).await.is_ok()
    }

    async fn is_quiet(watch: &Watch) -> bool {
        tokio::time::timeout(Duration::from_millis(300), watch.changed()).await.is_err()
    }

    #[tokio::test]
    async fn reading_does_not_wake_and_every_kind_of_change_does() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let mut watch = Watch::new([dir.path().to_owned()]);
        assert!(watch.arm());
        std::fs::write(&file, "1").unwrap();
        assert!(wakes(&watch).await);
        std::fs::read(&file).unwrap();
        std::fs::read_dir(dir.path()).unwrap().count();
        assert!(is_quiet(&watch).await);
        std::fs::rename(&file, dir.path().join("g")).unwrap();
        assert!(wakes(&watch).await);
        std::fs::rename(dir.path().join("g"), dir.path().parent().unwrap().join("moved-out")).unwrap();
        assert!(wakes(&watch).await);
        std::fs::remove_file(dir.path().parent().unwrap().join("moved-out")).unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_is_replaced_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("etc/net.d");
        let mut watch = Watch::new([dir.clone()]);
        assert!(!watch.arm(), "it is not there yet");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(wakes(&watch).await);
        assert!(watch.arm());
        std::fs::rename(&dir, root.path().join("away")).unwrap();
        assert!(wakes(&watch).await);
        assert!(!watch.arm());
        std::fs::create_dir(&dir).unwrap();
        assert!(wakes(&watch).await);
        assert!(watch.arm());
        std::fs::write(dir.join("f"), "1").unwrap();
        assert!(wakes(&watch).await);
    }

    #[tokio::test]
    async fn what_changes_beside_a_watched_file_does_not_wake() {
        let root = tempfile::tempdir().unwrap();
        let (dir, file) = (root.path().join("run"), root.path().join("run/kubeconfig"));
        std::fs::create_dir(&dir).unwrap();
        let mut watch = Watch::new([]).and_file(file.clone());
        assert!(watch.arm());
        std::fs::write(dir.join("plugin.log"), "1").unwrap();
        assert!(is_quiet(&watch).await);
        std::fs::write(dir.join("temporary"), "1").unwrap();
        std::fs::rename(dir.join("temporary"), &file).unwrap();
        assert!(wakes(&watch).await);
        std::fs::remove_file(&file).unwrap();
        assert!(wakes(&watch).await);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(wakes(&watch).await, "the directory itself went");
    }
}
