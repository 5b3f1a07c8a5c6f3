//! What else can be wrong with a node: immutable files, links, crowds of files, rivals of every kind, old tokens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use node::{LIST, Node, eventually, replace};

fn chattr(flag: &str, path: &Path) -> bool {
    Command::new("chattr").arg(flag).arg(path).output().is_ok_and(|output| output.status.success())
}

#[test]
fn an_immutable_list_is_named_with_what_to_do() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let list = node.list("10-net.conflist");
    if !chattr("+i", &list) {
        eprintln!("skipped: files cannot be made immutable here");
        return;
    }
    let agent = node.start();
    agent.misses("chattr -i");
    assert_eq!(node.read("10-net.conflist"), LIST);
    let names: Vec<_> = node.picture().into_keys().collect();
    assert!(chattr("-i", &list));
    assert_eq!(names, ["10-net.conflist"], "no temporary file was left");
    agent.becomes_ready();
    assert!(node.is_in("10-net.conflist"));
}

#[test]
fn directories_behind_links_are_as_good_as_others() {
    let node = Node::new();
    for dir in [&node.config.dirs.cni, &node.config.dirs.binaries_to[0]] {
        let elsewhere = dir.with_extension("real");
        std::fs::rename(dir, &elsewhere).unwrap();
        symlink(&elsewhere, dir).unwrap();
    }
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    replace(&node.list("10-net.conflist"), LIST);
    eventually(|| node.is_in("10-net.conflist"), || "not back".to_owned());
    agent.becomes_ready();
    agent.stop();
    assert_eq!(node.read("10-net.conflist"), LIST);
    assert!(node.config.dirs.cni.is_symlink());
}

#[test]
fn what_stands_in_the_place_of_the_plugin_is_replaced_or_named() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    symlink("/does/not/exist", node.plugin()).unwrap();
    assert_eq!(node.pass_once().missing(), None);
    assert!(node.plugin().metadata().unwrap().is_file(), "a dangling link");
    std::fs::remove_file(node.plugin()).unwrap();
    std::fs::create_dir(node.plugin()).unwrap();
    let missing = node.pass_once().missing().unwrap();
    assert!(missing.contains(node.plugin().to_str().unwrap()), "{missing}");
}

#[test]
fn ten_thousand_files_in_the_directory_change_nothing() {
    let node = Node::new();
    for number in 0..5_000 {
        node.write(&format!("old-{number}.conflist.bak"), LIST);
        node.write(&format!("z-{number}.conflist"), LIST);
    }
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    assert!(node.is_in("10-net.conflist"));
    node.write("10-net.conflist", LIST);
    eventually(|| node.is_in("10-net.conflist"), || "not back".to_owned());
    agent.stop();
    assert!(node.picture().into_values().all(|file| file.3 == LIST.as_bytes()), "all files are as they were");
}

#[test]
fn every_kind_of_rival_is_named_and_outlived_and_nothing_of_it_is_lost() {
    let newer = LIST.replace("k8s-pod-network", "renamed");
    type Fight<'a> = (&'a str, &'a dyn Fn(&Path));
    let ways: [Fight<'_>; 4] = [
        ("writes its own version", &|list| replace(list, &newer)),
        ("truncates and writes", &|list| std::fs::write(list, &newer).unwrap()),
        ("deletes and writes", &|list| {
            std::fs::remove_file(list).unwrap();
            std::fs::write(list, &newer).unwrap();
        }),
        ("puts ours aside", &|list| {
            std::fs::rename(list, list.with_extension("conflist.cilium_bak")).unwrap();
            std::fs::write(list, &newer).unwrap();
        }),
    ];
    for (way, fight) in ways {
        let node = Node::new();
        let name = "05-net.conflist";
        node.write(name, LIST);
        let agent = node.start_ready();
        let mut reverts = 0;
        while !agent.health.missing().is_some_and(|missing| missing.contains("keeps reverting")) {
            if node.is_in(name) {
                fight(&node.list(name));
                reverts += 1;
                assert!(reverts < 100, "{way}: the fight is never noticed");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        agent.misses(if way == "puts ours aside" { "cni.exclusive=false" } else { "ISTIO_OWNED_CNI_CONFIG" });
        agent.becomes_ready();
        assert!(node.is_in(name), "{way}");
        agent.stop();
        assert_eq!(node.read(name), newer, "{way}");
    }
}

#[test]
fn a_mode_that_somebody_changes_is_theirs_to_change() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    let list = node.list("10-net.conflist");
    std::fs::set_permissions(&list, PermissionsExt::from_mode(0o644)).unwrap();
    replace(&node.plugin(), "another version");
    eventually(|| std::fs::read_to_string(node.plugin()).is_ok_and(|it| it == node::PLUGIN), || "no look".to_owned());
    agent.becomes_ready();
    assert_eq!(list.metadata().unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_run_directory_that_goes_comes_back_with_the_kubeconfig() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    std::fs::remove_file(node.kubeconfig()).unwrap();
    eventually(|| node.kubeconfig().exists(), || "the kubeconfig is not back".to_owned());
    std::fs::remove_dir_all(&node.config.dirs.run).unwrap();
    eventually(|| node.kubeconfig().exists(), || "the directory is not back".to_owned());
    agent.becomes_ready();
    assert_eq!(node.config.dirs.run.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    agent.stop();
    assert_eq!(node.read("10-net.conflist"), LIST);
}

#[test]
fn a_run_directory_that_others_can_read_is_closed_to_them() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    std::fs::create_dir(&node.config.dirs.run).unwrap();
    std::fs::set_permissions(&node.config.dirs.run, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(node.pass_once().missing(), None);
    assert_eq!(node.config.dirs.run.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_token_without_successor_is_told_before_it_ends_and_stops_nothing() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = |begin: u64, end: u64| {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(format!("{{\"iat\":{begin},\"exp\":{end}}}")))
    };
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    node.rotate(&token(now - 3590, now + 60));
    let agent = node.start_ready();
    let concerns = || agent.health.concerns().unwrap_or_default();
    assert!(concerns().contains("kubelet has brought no new one"), "{}", concerns());
    assert_eq!(agent.health.missing(), None);
    node.rotate(&token(now - 3700, now - 100));
    eventually(|| concerns().contains("has ended"), concerns);
    assert_eq!(agent.health.missing(), None, "the server decides, not our clock");
    node.rotate(&token(now, now + 3600));
    eventually(|| !concerns().contains("token"), concerns);
}
