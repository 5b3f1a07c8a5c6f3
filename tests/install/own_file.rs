//! A file of our own that copies the network's configuration, in the life of a node.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use install_cni::install::edit;
use node::{LIST, NETWORK, Node, eventually, replace};

const OWN: &str = "02-istio-cni.conflist";

fn node() -> Node {
    let mut node = Node::new();
    node.config.owned = Some(OWN.to_owned());
    node
}

#[test]
fn our_copy_follows_every_change_of_the_network_and_leaves_its_file_alone() {
    let node = node();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    assert!(node.is_in(OWN) && node.read("10-net.conflist") == LIST);
    for newer in [LIST.replace("12345678901234567890", "1450"), LIST.replace("portmap", "bandwidth")] {
        replace(&node.list("10-net.conflist"), &newer);
        eventually(|| edit::remove(&node.read(OWN)).is_ok_and(|copy| copy == newer), || node.read(OWN));
        assert_eq!(node.read("10-net.conflist"), newer);
    }
    // The network agent moves to another form of file.
    std::fs::remove_file(node.list("10-net.conflist")).unwrap();
    node.write("10-net.conf", NETWORK);
    eventually(|| node.read(OWN).contains("mynet"), || node.read(OWN));
    agent.becomes_ready();
    agent.stop();
    assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), ["10-net.conf"]);
    assert_eq!(node.read("10-net.conf"), NETWORK);
}

#[test]
fn our_copy_is_restored_and_made_only_when_there_is_a_network() {
    let node = node();
    let agent = node.start();
    agent.misses("no network configuration yet");
    assert!(node.picture().is_empty());
    node.write("10-net.conflist", LIST);
    agent.becomes_ready();
    std::fs::remove_file(node.list(OWN)).unwrap();
    eventually(|| node.is_in(OWN), || "not restored".to_owned());
    node.write(OWN, LIST);
    eventually(|| node.is_in(OWN), || "our plugin is not back".to_owned());
    agent.becomes_ready();
}

#[test]
fn a_copy_does_not_outlive_its_network_but_a_reboot() {
    let node = node();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    std::fs::remove_file(node.list("10-net.conflist")).unwrap();
    eventually(|| !node.list(OWN).exists(), || "pods would get a network that is gone".to_owned());
    agent.misses("no network configuration yet");
    node.write("10-net.conflist", LIST);
    agent.becomes_ready();
    drop(agent);
    // After a reboot: our file is there, the network agent has not started, and the run directory is empty.
    node.pass_once();
    std::fs::remove_file(node.list("10-net.conflist")).unwrap();
    std::fs::remove_dir_all(&node.config.dirs.run).unwrap();
    let copy = node.read(OWN);
    let agent = node.start();
    agent.misses("no network configuration yet");
    assert_eq!(node.read(OWN), copy, "without it pods would start outside the mesh");
    node.write("10-net.conflist", LIST);
    agent.becomes_ready();
}

#[test]
fn a_file_that_sorts_before_ours_is_noticed() {
    let node = node();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    node.write("00-new.conflist", LIST);
    agent.misses("00-new.conflist sorts before our 02-istio-cni.conflist");
    agent.misses("ISTIO_OWNED_CNI_CONFIG_FILENAME");
    assert_eq!(node.read("00-new.conflist"), LIST);
    std::fs::remove_file(node.list("00-new.conflist")).unwrap();
    agent.becomes_ready();
}

#[test]
fn a_name_of_the_user_behind_another_file_is_told_and_obeyed() {
    let mut node = Node::new();
    node.config.conf_name = Some("20-mine.conflist".to_owned());
    node.write("20-mine.conflist", LIST);
    node.write("10-other.conflist", LIST);
    let agent = node.start_ready();
    assert!(node.is_in("20-mine.conflist"));
    let concerns = agent.health.concerns().unwrap();
    assert!(concerns.contains("10-other.conflist sorts before 20-mine.conflist"), "{concerns}");
    assert!(concerns.contains("names the plugin bridge, which is not in"), "{concerns}");
    std::fs::write(node.plugin().with_file_name("bridge"), "").unwrap();
    std::fs::remove_file(node.list("10-other.conflist")).unwrap();
    eventually(|| agent.health.concerns().is_none(), || format!("{:?}", agent.health.concerns()));
}

#[test]
fn switching_between_the_modes_moves_our_plugin_and_leaves_nothing_behind() {
    let mut node = node();
    node.write("10-net.conf", NETWORK);
    for _ in 0..2 {
        node.config.owned = Some(OWN.to_owned());
        assert_eq!(node.pass_once().missing(), None);
        assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), [OWN, "10-net.conf"]);
        assert_eq!(node.read("10-net.conf"), NETWORK);
        node.config.owned = None;
        assert_eq!(node.pass_once().missing(), None);
        assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), ["10-net.conflist"]);
        node.config.chained = false;
        assert_eq!(node.pass_once().missing(), None);
        assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), ["10-net.conf", "YYY-istio-cni.conf"]);
        node.config.chained = true;
        assert_eq!(node.pass_once().missing(), None);
        assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), ["10-net.conflist"]);
    }
}
