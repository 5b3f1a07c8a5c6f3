//! The programs themselves: which are started, how often, and what they see of the host.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iptables_rules::apply::exec::{self, Host, Note, Programs};
use iptables_rules::plan::Plan;
use sys::netns::Netns;
use testkit::netns::{Sandbox, available};

use crate::{KEEP, REPLACE, SEARCH, captures_all, listing, plan, run, tproxy};

/// Programs on a search path of their own that note each start, and then do `then`.
struct Shims {
    dir: PathBuf,
}

impl Shims {
    fn new(name: &str, version: &str, then: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("legacy-shims-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            for suffix in ["-save", "-restore"] {
                let (path, log) = (dir.join(format!("{program}{suffix}")), dir.join("log"));
                let version = if version.is_empty() {
                    String::new()
                } else {
                    format!("if [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n")
                };
                let script = format!(
                    "#!/bin/sh\necho {program}{suffix} $* >>{}\n{version}{then}\nexec /usr/sbin/{program}{suffix} \"$@\"\n",
                    log.display()
                );
                fs::write(&path, script).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        Self { dir }
    }

    fn search(&self) -> &str {
        self.dir.to_str().unwrap()
    }

    /// What was started since the last question.
    fn started(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        fs::remove_file(self.dir.join("log")).ok();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl Drop for Shims {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

#[test]
fn one_restore_per_family_the_first_time_and_only_a_look_the_second_time() {
    if !available() {
        return;
    }
    let (shims, sandbox, nothing) = (Shims::new("count", "", ""), Sandbox::new(), Plan::default());
    let plan = plan(&tproxy());
    let go = |plan: &Plan, known: &Plan, policy| {
        sandbox.run(|| run(plan, known, policy, shims.search())).unwrap();
        shims.started()
    };
    let restores = [
        "iptables-legacy-save --version",
        "iptables-legacy-restore --noflush --wait=30",
        "ip6tables-legacy-save --version",
        "ip6tables-legacy-restore --noflush --wait=30",
    ];
    let saves = ["iptables-legacy-save", "ip6tables-legacy-save"];
    assert_eq!(go(&nothing, &plan, REPLACE), [] as [&str; 0], "clean-up of nothing");
    assert_eq!(go(&plan, &nothing, KEEP), restores);
    assert_eq!(go(&plan, &nothing, KEEP), saves);
    assert_eq!(go(&nothing, &plan, REPLACE), [&saves[..], &restores[..]].concat());
    assert_eq!(go(&nothing, &plan, REPLACE), [] as [&str; 0], "clean-up after clean-up");
    let v4 = Plan { v6: Vec::new(), ..plan };
    assert_eq!(go(&v4, &nothing, KEEP), restores[..2]);
}

/// Applies from the host's file system into the sandbox's namespace.
fn apply_on_host(sandbox: &Sandbox, search: &str, netns: &Path) -> Vec<Note> {
    let (plan, mut notes) = (Plan { v6: Vec::new(), ..plan(&captures_all()) }, Vec::new());
    let host = Host { search: OsStr::new(search), on_host: true, netns: Some(netns) };
    sandbox.run(|| exec::apply(&plan, &Plan::default(), KEEP, Programs::Legacy, host, &mut notes)).unwrap();
    notes
}

#[test]
fn a_lock_that_somebody_holds_on_the_host_does_not_delay_a_pod() {
    if !available() {
        return;
    }
    let lock = fs::File::options().create(true).truncate(false).write(true).open("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    let sandbox = Sandbox::new();
    // With the host's lock this would fail after half a minute.
    assert_eq!(apply_on_host(&sandbox, SEARCH, &sandbox.path()), []);
    assert!(listing(&sandbox, false).contains("ISTIO_OUTPUT"));
}

#[test]
fn programs_for_a_pod_see_a_lock_of_the_pod_and_no_name_services_of_the_host() {
    if !available() {
        return;
    }
    let look = "{ tr '\\0' '\\n' </proc/$$/environ; /usr/bin/wc -c </etc/nsswitch.conf; /usr/bin/stat -L -c %i /run/xtables.lock; } >>${0%/*}/seen";
    let nsswitch = fs::metadata("/etc/nsswitch.conf").unwrap().len();
    for (version, by_variable) in [("iptables v1.8.9 (legacy)", true), ("iptables v1.8.4 (legacy)", false)] {
        let (shims, sandbox) = (Shims::new(&format!("sandbox-{by_variable}"), version, look), Sandbox::new());
        assert_eq!(apply_on_host(&sandbox, shims.search(), &sandbox.path()), []);
        let seen = fs::read_to_string(shims.dir.join("seen")).unwrap();
        let lines: Vec<&str> = seen.lines().collect();
        let [environment @ .., name_services, lock] = &lines[..] else { panic!("{seen}") };
        let inode = fs::metadata(sandbox.path()).unwrap().ino().to_string();
        assert_eq!(*name_services, "0", "{seen}");
        if by_variable {
            assert_eq!(environment, [format!("XTABLES_LOCKFILE={}", sandbox.path().display())]);
            assert_ne!(*lock, inode);
        } else {
            assert!(environment.iter().any(|line| line.starts_with("PATH=")), "{seen}");
            assert_eq!(*lock, inode);
        }
    }
    assert_eq!(fs::metadata("/etc/nsswitch.conf").unwrap().len(), nsswitch);
}

#[test]
fn without_legacy_programs_the_error_names_them() {
    if !available() {
        return;
    }
    let error = Sandbox::new().run(|| run(&plan(&captures_all()), &Plan::default(), KEEP, "/nowhere")).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("iptables-legacy-restore") && told.contains("/nowhere"), "{told}");
}

#[test]
fn a_pod_with_users_of_its_own_gets_its_rules() {
    if !available() {
        return;
    }
    let mut command = Command::new("unshare");
    let pod = command.args(["-U", "-n", "sh", "-c", "echo; exec sleep 600"]);
    let mut pod = pod.stdout(Stdio::piped()).spawn().unwrap();
    // Its namespaces are there once it speaks.
    pod.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", pod.id()), "0 100000 65536").unwrap();
    }
    let path = PathBuf::from(format!("/proc/{}/ns/net", pod.id()));
    let (plan, mut notes) = (Plan { v6: Vec::new(), ..plan(&captures_all()) }, Vec::new());
    let host = Host { search: OsStr::new(SEARCH), on_host: true, netns: Some(&path) };
    let netns = Netns::open(&path).unwrap();
    let apply = || exec::apply(&plan, &Plan::default(), KEEP, Programs::Legacy, host, &mut notes);
    let first = netns.run(apply).unwrap();
    let again =
        netns.run(|| exec::apply(&plan, &Plan::default(), KEEP, Programs::Legacy, host, &mut Vec::new())).unwrap();
    pod.kill().unwrap();
    pod.wait().unwrap();
    assert!(!first.unwrap().is_empty());
    assert_eq!((again.unwrap(), notes), (Vec::new(), Vec::new()));
}
