//! The end of an agent that can ask a (stand-in) API server whether it is one for good.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use install_cni::daemonset;
use node::{LIST, Node};
use serde_json::{Value, json};
use testkit::api::{ApiServer, Behaviour};

const SET: &str = "/apis/apps/v1/namespaces/istio-system/daemonsets/istio-cni-node";

fn set(affinity: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "istio-cni-node", "namespace": "istio-system"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {"affinity": affinity, "containers": []}},
        },
    })
}

fn required(pool: &str) -> Value {
    let term = json!({"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})
}

/// Whether the node is installed after the end, and how often the API server was asked.
fn ends(prepare: impl Fn(&ApiServer)) -> (bool, usize) {
    let api = ApiServer::start(([127, 0, 0, 1], 0).into()).unwrap();
    let mut node = Node::new();
    std::fs::write(node.root.path().join("api-ca"), api.ca_pem()).unwrap();
    node.config.kubeconfig.host = "127.0.0.1".to_owned();
    node.config.kubeconfig.port = api.addr().port().to_string();
    node.config.kubeconfig.ca_file = Some(node.root.path().join("api-ca"));
    node.config.plugin.pod_namespace = "istio-system".to_owned();
    node.config.always_clean_up = false;
    node.write("10-net.conflist", LIST);
    let installed =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": {"pool": "a"}}});
    api.set_object("/api/v1/nodes/node-1", installed);
    let agent = node.start_asking(daemonset::question(&node.config));
    agent.becomes_ready();
    prepare(&api);
    agent.stop();
    let asked = api.requests().iter().filter(|request| request.path.starts_with(SET)).count();
    let parts = [node.is_in("10-net.conflist"), node.plugin().exists(), node.kubeconfig().exists()];
    assert!(parts.iter().all(|part| *part == parts[0]), "all or nothing: {parts:?}");
    assert!(parts[0] || node.read("10-net.conflist") == LIST);
    (parts[0], asked)
}

#[test]
fn an_upgrade_is_told_from_an_uninstall_by_one_question() {
    assert_eq!(ends(|api| api.set_object(SET, set(&json!({})))), (true, 1), "it is there");
    assert_eq!(ends(|_| ()), (false, 1), "it is gone");
    let going = |api: &ApiServer| {
        let mut set = set(&json!({}));
        set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        api.set_object(SET, set);
    };
    assert_eq!(ends(going), (false, 1), "it is being deleted");
    assert_eq!(ends(|api| api.set_tokens(&["another"])), (false, 1), "our token is not known any more");
    assert_eq!(ends(|api| api.set_behaviour(Behaviour::Status(403))), (false, 1), "our rights are gone");
}

#[test]
fn a_node_that_the_daemonset_is_no_longer_bound_to_is_uninstalled() {
    assert_eq!(ends(|api| api.set_object(SET, set(&required("a")))), (true, 1));
    assert_eq!(ends(|api| api.set_object(SET, set(&required("b")))), (false, 1));
}

#[test]
fn an_api_server_that_is_in_trouble_is_no_reason_to_uninstall() {
    for trouble in
        [Behaviour::Status(500), Behaviour::Status(503), Behaviour::Hang, Behaviour::Close, Behaviour::BadJson]
    {
        assert!(ends(|api| api.set_behaviour(trouble.clone())).0, "{trouble:?}");
    }
}
