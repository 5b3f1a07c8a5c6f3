//! Files of the CNI directory that are not as one would like them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use install_cni::install::{discover, edit};
use node::{LIST, NETWORK, Node, eventually, replace};

#[test]
fn a_new_first_list_is_followed_and_the_earlier_one_comes_back_as_it_was() {
    let node = Node::new();
    node.write("10-calico.conflist", LIST);
    let agent = node.start_ready();
    assert!(node.is_in("10-calico.conflist"));
    replace(&node.list("00-multus.conf"), NETWORK);
    eventually(|| node.is_in("00-multus.conflist"), || "multus does not run our plugin".to_owned());
    eventually(|| node.read("10-calico.conflist") == LIST, || "calico runs it as well".to_owned());
    agent.becomes_ready();
    std::fs::remove_file(node.list("00-multus.conflist")).unwrap();
    eventually(|| node.is_in("10-calico.conflist"), || "not back in calico's list".to_owned());
    agent.stop();
    assert_eq!(node.read("10-calico.conflist"), LIST);
}

#[test]
fn a_name_given_by_the_user_is_not_left_for_another_file() {
    let mut node = Node::new();
    node.config.conf_name = Some("20-mine.conflist".to_owned());
    node.write("10-other.conflist", LIST);
    let agent = node.start();
    agent.misses("20-mine.conflist");
    assert_eq!(node.read("10-other.conflist"), LIST);
    node.write("20-mine.conflist", LIST);
    agent.becomes_ready();
    assert!(node.is_in("20-mine.conflist"));
    assert_eq!(node.read("10-other.conflist"), LIST);
}

#[test]
fn files_that_are_no_list_are_left_as_they_are_and_named() {
    let noise: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let huge = vec![b' '; 50 << 20];
    let broken: [&[u8]; 9] = [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{\"name\":\"n\",\"plugins\":null}",
        b"{\"name\":\"n\",\"plugins\":{}}",
        b"{\"name\":\"n\",\"plugins\":[{\"type\":\"br",
        &noise,
        &huge,
    ];
    for content in broken {
        for named in [false, true] {
            let mut node = Node::new();
            node.config.conf_name = named.then(|| "10-net.conflist".to_owned());
            std::fs::write(node.list("10-net.conflist"), content).unwrap();
            let agent = node.start();
            agent.misses("10-net.conflist");
            assert!(std::fs::read(node.list("10-net.conflist")).unwrap() == content);
            // It stays alive, and goes on when the file has become one.
            node.write("10-net.conflist", LIST);
            agent.becomes_ready();
            agent.stop();
            assert_eq!(node.read("10-net.conflist"), LIST);
        }
    }
}

#[test]
fn a_list_that_is_being_written_byte_by_byte_is_not_touched_before_it_is_whole() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    node.write("20-other.conflist", LIST);
    let agent = node.start_ready();
    let newer = LIST.replace("k8s-pod-network", "renamed");
    let mut file = std::fs::File::create(node.list("10-net.conflist")).unwrap();
    let (last, most) = newer.as_bytes().split_last().unwrap();
    for (position, byte) in most.iter().enumerate() {
        file.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(if position == most.len() / 2 { 1500 } else { 2 }));
        assert_eq!(node.read("10-net.conflist").as_bytes(), &newer.as_bytes()[..=position]);
    }
    agent.misses("half written");
    assert_eq!(node.read("20-other.conflist"), LIST, "and the next file is not taken for that moment");
    file.write_all(&[*last]).unwrap();
    agent.becomes_ready();
    assert!(node.is_in("10-net.conflist"));
    agent.stop();
    assert_eq!(node.read("10-net.conflist"), newer);
}

#[test]
fn while_a_network_is_converted_there_is_always_a_configuration_for_the_pods() {
    for _ in 0..40 {
        let node = Node::new();
        node.write("10-net.conf", NETWORK);
        let before = node.picture();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runtime = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // What a runtime does: list, then read; a file that went in between makes it look again.
                    let files = discover::valid_files(&node.config.dirs.cni);
                    let files =
                        files.or_else(|_| discover::valid_files(&node.config.dirs.cni)).expect("a valid configuration");
                    if let Ok(text) = std::fs::read_to_string(&files[0]) {
                        assert!(text.contains("\"bridge\""), "the network itself is in it: {text}");
                    }
                    assert_eq!(edit::count(&node.read("10-net.conf")), 0, "no list under the old name");
                }
            });
            node.start_ready().stop();
            done.store(true, Ordering::Relaxed);
            runtime.join().unwrap();
        });
        assert_eq!(node.picture(), before);
    }
}

#[test]
fn a_rival_that_always_restores_its_list_is_named_and_outlived() {
    let node = Node::new();
    let name = "05-cilium.conflist";
    node.write(name, LIST);
    let agent = node.start_ready();
    let mut reverts = 0;
    while !agent.health.missing().is_some_and(|missing| missing.contains("keeps reverting")) {
        if node.is_in(name) {
            replace(&node.list(name), LIST);
            reverts += 1;
            assert!(reverts < 100, "the fight is never noticed");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.misses("cni.exclusive=false");
    agent.becomes_ready();
    assert!(node.is_in(name), "when the rival stops, we are in");
}

#[test]
fn stand_alone_mode_has_a_file_of_its_own_and_touches_no_other() {
    let mut node = Node::new();
    node.config.chained = false;
    node.config.conf_mode = 0o640;
    node.write("10-net.conflist", LIST);
    let before = node.picture();
    let agent = node.start_ready();
    let text = node.read("YYY-istio-cni.conf");
    assert!(
        text.starts_with("{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"istio-cni\",\n  \"type\": \"istio-cni\",\n")
    );
    assert_eq!(node.picture()["YYY-istio-cni.conf"].0 & 0o777, 0o640);
    std::fs::remove_file(node.list("YYY-istio-cni.conf")).unwrap();
    eventually(|| node.read("YYY-istio-cni.conf") == text, || "not restored".to_owned());
    agent.becomes_ready();
    agent.stop();
    assert_eq!(node.picture(), before);
}

#[test]
fn stand_alone_mode_does_not_overwrite_the_nodes_network() {
    let mut node = Node::new();
    node.config.chained = false;
    node.config.conf_name = Some("10-net.conflist".to_owned());
    node.write("10-net.conflist", LIST);
    let agent = node.start();
    agent.misses("not ours");
    agent.stop();
    assert_eq!(node.read("10-net.conflist"), LIST);
}

#[test]
fn settings_that_changed_with_an_upgrade_reach_the_list() {
    let mut node = Node::new();
    node.write("10-net.conf", NETWORK);
    let before = node.picture();
    let crashed = node.start_ready();
    node.config.plugin.plugin_log_level = "debug".to_owned();
    // The first agent's end would uninstall; it stands for one that was killed, so it must not see changes any more.
    let text = node.read("10-net.conflist");
    crashed.stop();
    std::fs::remove_file(node.list("10-net.conf")).unwrap();
    node.write("10-net.conflist", &text);
    let agent = node.start_ready();
    assert!(node.read("10-net.conflist").contains("\"plugin_log_level\": \"debug\""));
    agent.stop();
    let contents = |picture: std::collections::BTreeMap<String, (u32, u32, u32, Vec<u8>)>| {
        picture.into_iter().map(|(name, file)| (name, file.3)).collect::<Vec<_>>()
    };
    assert_eq!(contents(node.picture()), contents(before), "the network comes back all the same");
}
