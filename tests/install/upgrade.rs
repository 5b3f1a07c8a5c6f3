//! From Istio's own agent to ours and back: the files it writes are taken over, and it can take over ours.
//!
//! The texts below are in the form in which Istio's agent writes them: sorted keys, two spaces, and the elements of
//! several of its versions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use std::sync::atomic::{AtomicBool, Ordering};

use install_cni::install::uninstall::uninstall;
use install_cni::install::{convert, edit};
use node::{LIST, NETWORK, Node};
use serde_json::{Value, json};

/// Elements as Istio's versions have written them: 1.30, 1.24, 1.16, 1.5.
fn elements() -> [Value; 4] {
    [
        json!({
            "ambient_enabled": false, "cni_agent_run_dir": "/var/run/istio-cni", "dns": {},
            "enable_ambient_detection_retry": false, "enablement_selectors": [], "exclude_namespaces": ["kube-system"],
            "ipam": {}, "name": "istio-cni", "native_nftables": false, "plugin_log_level": "info",
            "pod_namespace": "istio-system", "type": "istio-cni"
        }),
        json!({
            "ambient_enabled": false, "cni_agent_run_dir": "/var/run/istio-cni", "dns": {},
            "exclude_namespaces": ["kube-system"], "ipam": {}, "name": "istio-cni", "plugin_log_level": "info",
            "pod_namespace": "istio-system", "type": "istio-cni"
        }),
        json!({
            "ambient_enabled": false, "kubernetes": {
                "cni_bin_dir": "/opt/cni/bin", "exclude_namespaces": ["kube-system"],
                "intercept_type": "iptables", "kubeconfig": "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig"
            },
            "log_level": "debug", "log_uds_address": "/var/run/istio-cni/log.sock", "name": "istio-cni", "type": "istio-cni"
        }),
        json!({
            "kubernetes": {"cni_bin_dir": "/opt/cni/bin", "exclude_namespaces": [], "kubeconfig": "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig"},
            "log_level": "info", "name": "istio-cni", "type": "istio-cni"
        }),
    ]
}

/// What Istio's agent makes of a configuration.
fn rewritten(text: &str, element: &Value) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    if list.get("type").is_some() {
        list.as_object_mut().unwrap().remove("cniVersion");
        list = json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [list]});
    }
    list["plugins"].as_array_mut().unwrap().push(element.clone());
    list.sort_all_objects();
    format!("{list:#}\n")
}

/// A node that runs with Istio's agent.
fn istios(file: &str, text: &str, element: &Value) -> Node {
    let node = Node::new();
    let dirs = &node.config.dirs;
    node.write(file, &rewritten(text, element));
    std::fs::create_dir(&dirs.run).unwrap();
    std::fs::write(node.kubeconfig(), "apiVersion: v1\n").unwrap();
    for (name, content) in [("istio-cni", "the Go plugin"), ("istio-cni.tmp.4077", "half of it")] {
        let path = dirs.binaries_to[0].join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    node
}

/// The plugins of a list that are not ours.
fn others(text: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(text).unwrap();
    list["plugins"].as_array().unwrap().iter().filter(|plugin| !edit::is_ours(plugin)).cloned().collect()
}

#[test]
fn a_node_of_istios_agent_is_taken_over_and_given_back_without_it() {
    for element in elements() {
        for (file, text) in [("10-net.conflist", LIST), ("10-net.conflist", NETWORK)] {
            let node = istios(file, text, &element);
            let before = others(&node.read(file));
            assert_eq!(node.pass_once().missing(), None);
            let list: Value = serde_json::from_str(&node.read(file)).unwrap();
            let ours = list["plugins"].as_array().unwrap().last().unwrap().clone();
            assert_eq!(ours, Value::Object(node.config.element()), "no settings of the old one are left");
            assert_eq!((edit::count(&node.read(file)), others(&node.read(file))), (1, before.clone()));
            assert_eq!(std::fs::read_to_string(node.plugin()).unwrap(), node::PLUGIN);
            assert!(std::fs::read_to_string(node.kubeconfig()).unwrap().contains("token-0"));
            assert_eq!(uninstall(&node.config), [""; 0]);
            assert_eq!(others(&node.read(file)), before);
            assert_eq!(edit::count(&node.read(file)), 0);
            assert_eq!(std::fs::read_dir(&node.config.dirs.binaries_to[0]).unwrap().count(), 0, "half files as well");
        }
    }
}

#[test]
fn while_a_node_is_taken_over_there_is_no_moment_without_plugin() {
    let [element, ..] = elements();
    for _ in 0..20 {
        let node = istios("10-net.conflist", LIST, &element);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runtime = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(edit::count(&node.read("10-net.conflist")), 1, "a pod would start outside the mesh");
                    assert!(std::fs::read(node.plugin()).is_ok_and(|plugin| !plugin.is_empty()), "no plugin");
                    assert!(node.kubeconfig().exists(), "no kubeconfig");
                }
            });
            node.pass_once();
            done.store(true, Ordering::Relaxed);
            runtime.join().unwrap();
        });
    }
}

#[test]
fn a_file_of_its_own_of_istios_agent_is_followed_or_left() {
    let [element, ..] = elements();
    for owned in [true, false] {
        let mut node = istios("02-istio-cni.conflist", LIST, &element);
        node.write("10-net.conflist", LIST);
        node.config.owned = owned.then(|| "02-istio-cni.conflist".to_owned());
        assert_eq!(node.pass_once().missing(), None);
        assert_eq!(node.list("02-istio-cni.conflist").exists(), owned);
        assert_eq!(node.is_in("10-net.conflist"), !owned);
        assert_eq!(uninstall(&node.config), [""; 0]);
        assert_eq!(node.picture().into_keys().collect::<Vec<_>>(), ["10-net.conflist"]);
        assert_eq!(node.read("10-net.conflist"), LIST);
    }
}

#[test]
fn istios_agent_finds_nothing_in_our_files_that_it_does_not_know() {
    for (file, text) in [("10-net.conflist", LIST), ("10-net.conf", NETWORK)] {
        let node = Node::new();
        node.write(file, text);
        node.pass_once();
        let list: Value = serde_json::from_str(&node.read("10-net.conflist")).unwrap();
        let [known, ..] = elements();
        let keys =
            |value: &Value| value.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(keys(list["plugins"].as_array().unwrap().last().unwrap()), keys(&known));
        assert!(list["name"].is_string() && list["cniVersion"].is_string());
        // It drops our element and puts its own at the end; its uninstall leaves a list of the network alone.
        let mut theirs = list.clone();
        theirs["plugins"].as_array_mut().unwrap().pop();
        let theirs = rewritten(&theirs.to_string(), &known);
        assert_eq!(convert::origin(&theirs), None, "it is theirs now");
        node.write("10-net.conflist", &theirs);
        assert_eq!(uninstall(&node.config), [""; 0]);
        let network = others(&node.read("10-net.conflist"));
        assert_eq!(network, others(&list.to_string()));
    }
}
