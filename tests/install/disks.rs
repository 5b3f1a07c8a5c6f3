//! Full and read-only disks, and a kernel that gives no watches: nothing is damaged, and it is healed later.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;
mod own_mounts;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use node::{LIST, Node, eventually};
use own_mounts::{inside, inside_without_capabilities, make_read_only, make_writable, small_disk};

/// Takes all space, so that not even an empty file's first block is left.
fn fill(directory: &Path) {
    let mut file = std::fs::File::create(directory.join("filler")).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

fn free(directory: &Path) {
    std::fs::remove_file(directory.join("filler")).unwrap();
}

fn no_temporary_file_in(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().all(|entry| !entry.unwrap().file_name().to_string_lossy().contains(".tmp."))
}

#[test]
fn a_full_disk_keeps_the_old_list_and_the_node_heals_when_there_is_space() {
    if !inside("a_full_disk_keeps_the_old_list_and_the_node_heals_when_there_is_space") {
        return;
    }
    let node = Node::new();
    let cni = &node.config.dirs.cni;
    small_disk(cni, 64);
    node.write("10-net.conflist", LIST);
    fill(cni);
    let agent = node.start();
    agent.misses("disk is full");
    assert!(agent.health.missing().unwrap().contains("10-net.conflist"), "{:?}", agent.health.missing());
    assert_eq!(node.read("10-net.conflist"), LIST);
    assert!(no_temporary_file_in(cni));
    free(cni);
    agent.becomes_ready();
    assert!(node.is_in("10-net.conflist"));
    agent.stop();
    assert_eq!(node.read("10-net.conflist"), LIST);
}

#[test]
fn a_full_run_directory_keeps_the_old_kubeconfig_and_gets_the_new_token_later() {
    if !inside("a_full_run_directory_keeps_the_old_kubeconfig_and_gets_the_new_token_later") {
        return;
    }
    let node = Node::new();
    let run = &node.config.dirs.run;
    std::fs::create_dir(run).unwrap();
    small_disk(run, 64);
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    let old = std::fs::read_to_string(node.kubeconfig()).unwrap();
    fill(run);
    node.rotate("token-new");
    agent.misses("disk is full");
    assert_eq!(std::fs::read_to_string(node.kubeconfig()).unwrap(), old);
    assert!(node.is_in("10-net.conflist"), "the node is not uninstalled for that");
    free(run);
    agent.becomes_ready();
    assert!(std::fs::read_to_string(node.kubeconfig()).unwrap().contains("token-new"));
}

#[test]
fn a_read_only_plugin_directory_is_explained_and_the_list_is_not_touched() {
    if !inside("a_read_only_plugin_directory_is_explained_and_the_list_is_not_touched") {
        return;
    }
    let node = Node::new();
    let target = &node.config.dirs.binaries_to[0];
    node.write("10-net.conflist", LIST);
    make_read_only(target);
    let agent = node.start();
    agent.misses("cniBinDir");
    agent.misses("not touched before the plugin is there");
    assert_eq!(node.read("10-net.conflist"), LIST);
    eventually(|| node.kubeconfig().exists(), || "the kubeconfig does not depend on it".to_owned());
    make_writable(target);
    agent.becomes_ready();
    assert!(node.is_in("10-net.conflist"));
}

#[test]
fn permission_denied_names_owner_mode_and_the_missing_capability() {
    if !inside_without_capabilities("permission_denied_names_owner_mode_and_the_missing_capability") {
        return;
    }
    let node = Node::new();
    let target = &node.config.dirs.binaries_to[0];
    node.write("10-net.conflist", LIST);
    std::fs::set_permissions(target, PermissionsExt::from_mode(0o555)).unwrap();
    let agent = node.start();
    agent.misses("DAC_OVERRIDE");
    let missing = agent.health.missing().unwrap();
    assert!(missing.contains(target.to_str().unwrap()) && missing.contains("has mode 0555"), "{missing}");
    assert_eq!(node.read("10-net.conflist"), LIST);
    std::fs::set_permissions(target, PermissionsExt::from_mode(0o755)).unwrap();
    agent.becomes_ready();
}

#[test]
fn when_the_list_cannot_be_edited_at_the_end_pods_can_still_start() {
    if !inside("when_the_list_cannot_be_edited_at_the_end_pods_can_still_start") {
        return;
    }
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    make_read_only(&node.config.dirs.cni);
    agent.stop();
    assert!(node.is_in("10-net.conflist"), "it could not be changed");
    assert!(node.plugin().exists() && node.kubeconfig().exists(), "so what it names stays");
    make_writable(&node.config.dirs.cni);
    let errors = install_cni::install::uninstall::uninstall(&node.config);
    assert_eq!(errors, [""; 0]);
    assert!(node.read("10-net.conflist") == LIST && !node.plugin().exists() && !node.kubeconfig().exists());
}

#[test]
fn without_watches_the_node_is_looked_at_regularly() {
    if !inside("without_watches_the_node_is_looked_at_regularly") {
        return;
    }
    // A limit of this user namespace only; one like it is what a node with too many watchers has reached.
    std::fs::write("/proc/sys/user/max_inotify_instances", "0").unwrap();
    assert!(notify::recommended_watcher(|_| {}).is_err(), "the limit works");
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    node.write("10-net.conflist", LIST);
    eventually(|| node.is_in("10-net.conflist"), || "not back".to_owned());
    node.rotate("token-new");
    let kubeconfig = || std::fs::read_to_string(node.kubeconfig()).unwrap();
    eventually(|| kubeconfig().contains("token-new"), || "no new token".to_owned());
    agent.becomes_ready();
}
