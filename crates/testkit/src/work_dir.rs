//! A directory that cleans up after its owner, also after one that was killed.
//!
//! It holds everything a run makes on disk, and a list of processes: the owner and what the owner started. When the
//! owner cannot clean up, the next run does: it ends the processes that are still the recorded ones (same id *and* same
//! start time), removes the control groups named like the directory, and the directory.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// File in the directory with one process in a line: id and start time. The first is the owner.
const PROCESSES: &str = "processes";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A process that is not mistaken for a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    id: u32,
    /// Clock ticks between boot and its start.
    started: u64,
}

impl Process {
    /// The process that has this id now.
    pub fn of(id: u32) -> Option<Self> {
        let (_, started) = parent_and_start(id)?;
        Some(Self { id, started })
    }

    /// The child of `parent` with the lowest id.
    pub fn first_child_of(parent: u32) -> Option<Self> {
        let entries = fs::read_dir("/proc").ok()?;
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let id = ids.filter(|id| parent_and_start(*id).is_some_and(|(its_parent, _)| its_parent == parent)).min()?;
        Self::of(id)
    }

    /// Its id, as this process sees it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.id).as_ref() == Some(self)
    }

    /// Ends it by SIGKILL and waits until it runs no more. A process namespace ends with its first process, after all others
    /// in it.
    pub fn end(self) {
        let Ok(id) = i32::try_from(self.id) else { return };
        let deadline = Instant::now() + PATIENCE;
        while self.is_alive() && Instant::now() < deadline {
            // It may end between the look and the signal.
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            std::thread::sleep(PAUSE);
        }
    }
}

/// The directory. It is removed when dropped.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    name: String,
}

impl WorkDir {
    /// Creates a directory `<prefix>-<process id>` for temporary files, after cleaning up what dead owners left.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create(prefix: &str) -> io::Result<Self> {
        let base = std::env::temp_dir();
        remove_leftovers(&base, prefix)?;
        Self::create_in(&base, &format!("{prefix}-{}", std::process::id()))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, which is also the name of the control group for what runs on its behalf.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its subdirectory for logs.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Adds a process that must not outlive the directory.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn record(&self, process: u32) -> io::Result<()> {
        let Some(process) = Process::of(process) else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).open(self.path.join(PROCESSES))?;
        writeln!(file, "{} {}", process.id, process.started)
    }

    /// Keeps the logs, if there are any, beyond the directory's end, and says where.
    ///
    /// # Errors
    /// When they cannot be moved.
    pub fn keep_logs(&self) -> io::Result<Option<PathBuf>> {
        if fs::read_dir(self.logs())?.next().is_none() {
            return Ok(None);
        }
        let kept = self.path.with_file_name(format!("{}-logs", self.name));
        fs::rename(self.logs(), &kept)?;
        Ok(Some(kept))
    }

    fn create_in(base: &Path, name: &str) -> io::Result<Self> {
        let path = base.join(name);
        // Others may look (a container's user must reach its volume), not write.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        let directory = Self { path, name: name.to_owned() };
        directory.record(std::process::id())?;
        fs::create_dir(directory.logs())?;
        fs::set_permissions(&directory.path, fs::Permissions::from_mode(0o755))?;
        Ok(directory)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Nobody is left to hear about it; the next run tries again.
        drop(remove(&self.path, &self.name));
    }
}

fn remove_leftovers(base: &Path, prefix: &str) -> io::Result<()> {
    let me = fs::metadata("/proc/self")?.uid();
    for entry in fs::read_dir(base)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_number);
        let metadata = entry.path().symlink_metadata()?;
        // In a directory that everybody may write to, a stranger must not choose which processes we end.
        if !is_ours || !metadata.is_dir() || metadata.uid() != me {
            continue;
        }
        let processes = recorded(&entry.path());
        if processes.first().is_some_and(Process::is_alive) {
            continue;
        }
        for process in processes {
            process.end();
        }
        remove(&entry.path(), &name)?;
    }
    Ok(())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn recorded(directory: &Path) -> Vec<Process> {
    let text = fs::read_to_string(directory.join(PROCESSES)).unwrap_or_default();
    let process = |line: &str| {
        let (id, started) = line.split_once(' ')?;
        Some(Process { id: id.parse().ok()?, started: started.parse().ok()? })
    };
    text.lines().filter_map(process).collect()
}

fn remove(directory: &Path, cgroup: &str) -> io::Result<()> {
    remove_cgroups(cgroup);
    // Shortly after a process in a mount namespace has ended, a mount of it may still hold a directory.
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Removes the control group `name` from the unified hierarchy and from every one of version 1.
fn remove_cgroups(name: &str) {
    let root = Path::new(CGROUP_ROOT);
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    for hierarchy in std::iter::once(root.to_owned()).chain(hierarchies) {
        remove_cgroup(&hierarchy.join(name));
    }
}

fn remove_cgroup(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // The kernel lets go of a group a moment after its last process.
    let deadline = Instant::now() + PATIENCE;
    while fs::remove_dir(group).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) && Instant::now() < deadline
    {
        std::thread::sleep(PAUSE);
    }
}

/// Parent's id and start time from the kernel's line about a process; a zombie has ended.
fn parent_and_start(id: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in brackets may hold anything, brackets included.
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<_> = after_name.split_whitespace().collect();
    let [state, parent, ..] = fields.as_slice() else { return None };
    let alive = !matches!(*state, "Z" | "X");
    alive.then_some(())?;
    Some((parent.parse().ok()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::Command;

    fn file(path: PathBuf, content: &str) {
        File::create(path).unwrap().write_all(content.as_bytes()).unwrap();
    }

    #[test]
    fn what_a_killed_run_left_is_cleaned_up_by_the_next() {
        let base = tempfile::tempdir().unwrap();
        let dead = base.path().join("demo-1");
        fs::create_dir(&dead).unwrap();
        let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
        let started = Process::of(sleeper.id()).unwrap().started;
        file(dead.join(PROCESSES), &format!("999999999 1\n{} {started}\n", sleeper.id()));
        remove_leftovers(base.path(), "demo").unwrap();
        assert!(!dead.exists());
        assert!(!sleeper.wait().unwrap().success(), "it was ended");
    }

    #[test]
    fn a_process_that_only_has_the_recorded_id_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let dead = base.path().join("demo-1");
        fs::create_dir(&dead).unwrap();
        let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
        file(dead.join(PROCESSES), &format!("999999999 1\n{} 1\n", sleeper.id()));
        remove_leftovers(base.path(), "demo").unwrap();
        assert!(!dead.exists());
        assert_eq!(sleeper.try_wait().unwrap(), None, "it still runs");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn a_run_at_the_same_time_and_other_directories_stay() {
        let base = tempfile::tempdir().unwrap();
        let running = WorkDir::create_in(base.path(), "demo-1").unwrap();
        for other in ["demo-logs", "demo-1-logs", "demonstration-1"] {
            fs::create_dir(base.path().join(other)).unwrap();
        }
        remove_leftovers(base.path(), "demo").unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 4);
        drop(running);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 3);
    }
}
