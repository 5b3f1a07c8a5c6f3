//! A process that is killed at any moment: the node works all the while, and the next process ends what was begun.
//!
//! Moments are those of the runner: before a step, after its note in the journal, after the new file is complete but
//! not visible. After a kill nothing more is done by that process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use agent_api::Kubeconfig;
use install_cni::health::Health;
use install_cni::install::pass::Installer;
use install_cni::install::runner::Runner;
use install_cni::install::uninstall::{uninstall, uninstall_with};
use install_cni::install::{discover, edit};
use node::{LIST, NETWORK, Node};

/// How a node is before, and how the agent is set up on it.
struct Scenario {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    owned: bool,
    chained: bool,
}

const fn chained(name: &'static str, files: &'static [(&'static str, &'static str)]) -> Scenario {
    Scenario { name, files, owned: false, chained: true }
}

const SCENARIOS: [Scenario; 6] = [
    chained("a list", &[("10-net.conflist", LIST), ("20-other.conf", NETWORK)]),
    chained("a single network", &[("10-net.conf", NETWORK)]),
    chained("a list under the wrong name", &[("10-net.json", NETWORK), ("20-net.conflist", LIST)]),
    Scenario { name: "a file of our own", files: &[("10-net.conflist", LIST)], owned: true, chained: true },
    Scenario { name: "our own, of a network", files: &[("10-net.conf", NETWORK)], owned: true, chained: true },
    Scenario { name: "stand-alone", files: &[("10-net.conflist", LIST)], owned: false, chained: false },
];

impl Scenario {
    fn node(&self) -> Node {
        let mut node = Node::new();
        node.config.chained = self.chained;
        node.config.owned = self.owned.then(|| "02-istio-cni.conflist".to_owned());
        for (name, text) in self.files {
            node.write(name, text);
        }
        node
    }
}

/// One pass of a process that is killed after some moments; false when it came to its end before.
fn killed_pass(node: &Node, moments: usize) -> bool {
    let runner = Runner::open(&node.config.dirs.run).stopping_after(moments);
    let mut installer = Installer::with_runner(Arc::new(node.config.clone()), Arc::new(Health::default()), runner);
    installer.pass();
    installer.runner().stopped()
}

#[track_caller]
fn installs(node: &Node) {
    let health = node.pass_once();
    assert_eq!(health.missing(), None);
}

/// What has to hold at every moment: a runtime finds the network, and what a list names can run.
#[track_caller]
fn works(node: &Node, context: &str) {
    let files = discover::valid_files(&node.config.dirs.cni).unwrap_or_else(|error| panic!("{context}: {error}"));
    let first = std::fs::read_to_string(&files[0]).unwrap();
    assert!(first.contains("\"bridge\""), "{context}: {first}");
    for (name, (_, _, _, bytes)) in node.picture() {
        let text = String::from_utf8(bytes).unwrap();
        let ours = edit::count(&text) > 0 || serde_json::from_str(&text).is_ok_and(|value| edit::is_ours(&value));
        if !name.contains(".tmp.") && ours {
            let mode = node.plugin().metadata().map_or(0, |data| data.permissions().mode());
            assert!(mode & 0o111 != 0, "{context}: {name} names a plugin that cannot run");
            assert!(node.kubeconfig().exists(), "{context}: {name} names a plugin without kubeconfig");
        }
    }
    if let Ok(text) = std::fs::read_to_string(node.kubeconfig()) {
        Kubeconfig::parse(&text).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
}

/// No trace of a process that was killed while writing.
#[track_caller]
fn is_tidy(node: &Node, context: &str) {
    let dirs = &node.config.dirs;
    for dir in [&dirs.cni, &dirs.run, &dirs.binaries_to[0]] {
        assert_eq!(names(dir).iter().find(|name| name.contains(".tmp.")), None, "{context}");
    }
}

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Contents only: the owner of a file and its mode are looked at where they are the subject.
fn contents(node: &Node) -> BTreeMap<String, String> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    node.picture().into_iter().map(|(name, file)| (name, text(file.3))).collect()
}

/// Everything of ours is gone, and the rest as it was.
#[track_caller]
fn is_as_before(node: &Node, scenario: &Scenario, context: &str) {
    let before: BTreeMap<_, _> =
        scenario.files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    assert_eq!(contents(node), before, "{context}");
    let dirs = &node.config.dirs;
    assert!(names(&dirs.binaries_to[0]).is_empty(), "{context}: {:?}", names(&dirs.binaries_to[0]));
    assert!(names(&dirs.run).is_empty(), "{context}: {:?}", names(&dirs.run));
}

#[test]
fn an_installation_that_is_killed_at_any_moment_is_ended_by_the_next_process() {
    for scenario in &SCENARIOS {
        let whole = scenario.node();
        installs(&whole);
        for moments in 1.. {
            let context = format!("{}, killed after {moments}", scenario.name);
            let node = scenario.node();
            let killed = killed_pass(&node, moments);
            works(&node, &context);
            installs(&node);
            works(&node, &context);
            is_tidy(&node, &context);
            assert_eq!(contents(&node), contents(&whole), "{context}");
            assert_eq!(uninstall(&node.config), [""; 0], "{context}");
            is_as_before(&node, scenario, &context);
            if !killed {
                assert!(moments > 10, "{context}: there are more moments than that");
                break;
            }
        }
    }
}

#[test]
fn an_installation_that_was_killed_can_be_uninstalled_at_once() {
    for scenario in &SCENARIOS {
        for moments in 1.. {
            let context = format!("{}, killed after {moments}", scenario.name);
            let node = scenario.node();
            let killed = killed_pass(&node, moments);
            assert_eq!(uninstall(&node.config), [""; 0], "{context}");
            works(&node, &context);
            is_as_before(&node, scenario, &context);
            if !killed {
                break;
            }
        }
    }
}

#[test]
fn an_uninstall_that_is_killed_at_any_moment_is_ended_or_undone_by_the_next_process() {
    for scenario in &SCENARIOS {
        let whole = scenario.node();
        installs(&whole);
        for moments in 1.. {
            let context = format!("{}, killed after {moments}", scenario.name);
            let [ended, undone] = [true, false].map(|_| {
                let node = scenario.node();
                installs(&node);
                let mut runner = Runner::open(&node.config.dirs.run).stopping_after(moments);
                uninstall_with(&node.config, &mut runner);
                works(&node, &context);
                (node, runner.stopped())
            });
            assert_eq!(uninstall(&ended.0.config), [""; 0], "{context}");
            is_as_before(&ended.0, scenario, &context);
            installs(&undone.0);
            works(&undone.0, &context);
            assert_eq!(contents(&undone.0), contents(&whole), "{context}");
            if !ended.1 {
                break;
            }
        }
    }
}

#[test]
fn a_refresh_or_an_upgrade_that_is_killed_leaves_the_old_or_the_new_version() {
    for moments in 1.. {
        let context = format!("killed after {moments}");
        let mut node = SCENARIOS[1].node();
        installs(&node);
        node.rotate("token-new");
        node.config.plugin.plugin_log_level = "debug".to_owned();
        let image = node.config.dirs.binaries_from.join("istio-cni");
        std::fs::write(&image, "newer").unwrap();
        let killed = killed_pass(&node, moments);
        works(&node, &context);
        let plugin = std::fs::read_to_string(node.plugin()).unwrap();
        assert!([node::PLUGIN, "newer"].contains(&plugin.as_str()), "{context}: {plugin}");
        installs(&node);
        is_tidy(&node, &context);
        assert_eq!(std::fs::read_to_string(node.plugin()).unwrap(), "newer");
        assert!(std::fs::read_to_string(node.kubeconfig()).unwrap().contains("token-new"));
        assert!(node.read("10-net.conflist").contains("debug"));
        assert_eq!(uninstall(&node.config), [""; 0], "{context}");
        is_as_before(&node, &SCENARIOS[1], &context);
        if !killed {
            break;
        }
    }
}
