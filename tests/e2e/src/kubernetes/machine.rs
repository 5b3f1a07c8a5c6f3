//! The machine that a node ran on must be as it was: settings, mounts, control groups, files.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::work_dir::WorkDir;

use crate::failure::Failure;

/// Settings that belong to the whole machine and that a kubelet, a runtime or an API server would like to change.
const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
/// Directories whose files such programs write.
const DIRECTORIES: [&str; 5] =
    ["/etc/cni/net.d", "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/run/istio-cni"];

/// What must be the same afterwards.
pub struct Machine {
    work: PathBuf,
    name: String,
    settings: Vec<Option<String>>,
    listings: Vec<Vec<String>>,
}

impl Machine {
    /// Looks before a node is started in `work`.
    pub fn before(work: &WorkDir) -> Self {
        Self { work: work.path().to_owned(), name: work.name().to_owned(), settings: settings(), listings: listings() }
    }

    /// Looks after the node and its directory are gone.
    ///
    /// # Errors
    /// What is left or has changed.
    pub fn must_be_as_before(&self) -> Result<(), Failure> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(Failure::system("read our mounts"))?;
        if let Some(line) = mounts.lines().find(|line| line.contains(&self.name)) {
            return Failure::unexpected(format!("a mount is left: {line}"));
        }
        let groups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        let groups = groups.map(|group| group.join(&self.name));
        if let Some(left) = groups.chain([self.work.clone()]).find(|path| path.exists()) {
            return Failure::unexpected(format!("{} is left", left.display()));
        }
        if self.settings != settings() {
            return Failure::unexpected(format!("a setting of the machine has changed: {SETTINGS:?}"));
        }
        if self.listings != listings() {
            return Failure::unexpected(format!("a directory of the machine has changed: {DIRECTORIES:?}"));
        }
        Ok(())
    }
}

fn settings() -> Vec<Option<String>> {
    SETTINGS.iter().map(|path| fs::read_to_string(Path::new("/proc/sys").join(path)).ok()).collect()
}

fn listings() -> Vec<Vec<String>> {
    let names = |directory: &&str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    DIRECTORIES.iter().map(names).collect()
}
