//! Runs one test in a mount namespace of its own, as root there: the test program starts itself again.

#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

const INSIDE: &str = "INSTALL_TEST_OWN_MOUNTS";

/// True inside; outside the test `name` is run inside and false is returned. Where the system does not allow it the
/// test does nothing, unless REQUIRE_NETNS=1 says that it must.
#[track_caller]
pub fn inside(name: &str) -> bool {
    inside_with(name, &[])
}

/// As [`inside`], with the capabilities a pod has that drops them all: permissions hold for root too.
#[track_caller]
pub fn inside_without_capabilities(name: &str) -> bool {
    inside_with(name, &["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"])
}

#[track_caller]
fn inside_with(name: &str, wrapper: &[&str]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        let required = std::env::var("REQUIRE_NETNS").is_ok_and(|value| value == "1");
        assert!(!required, "no mount namespace of our own can be had here, but REQUIRE_NETNS=1");
        eprintln!("skipped: no mount namespace of our own can be had here");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let output =
        unshare().args(wrapper).arg(program).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// `unshare` for a new user, mount and network namespace.
pub fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--net", "--"]);
    command
}

/// An empty file system of this many KiB at `path`.
pub fn small_disk(path: &Path, kib: u32) {
    run("mount", &["-t", "tmpfs", "-o", &format!("size={kib}k,mode=755"), "tmpfs", path.to_str().unwrap()]);
}

/// From now on nothing can be written at `path`, which has its content.
pub fn make_read_only(path: &Path) {
    let path = path.to_str().unwrap();
    run("mount", &["--bind", path, path]);
    run("mount", &["-o", "remount,ro,bind", path]);
}

pub fn make_writable(path: &Path) {
    run("umount", &[path.to_str().unwrap()]);
}

#[track_caller]
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
