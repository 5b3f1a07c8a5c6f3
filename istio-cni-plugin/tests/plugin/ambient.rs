//! Pods of ambient mode are handed to the agent, and do not start without it.

use std::time::Duration;

use agent_api::paths::event_socket;
use serde_json::{Value, json};
use testkit::agent::{Reply, UnixHttp};
use testkit::api::{ApiServer, Behaviour};

use crate::call::{Node, api_with, plain_pod, sidecar_pod};

const LABEL: &str = "istio.io/dataplane-mode";

/// A node in ambient mode with the selectors that Istio's chart installs, and pod `shop/web` in an ambient namespace.
fn node(pod: Value) -> (Node, ApiServer) {
    let api = api_with(pod);
    api.set_namespace("shop", json!({LABEL: "ambient"}));
    let mut node = Node::with_agent(&api);
    node.conf["ambient_enabled"] = true.into();
    node.conf["enablement_selectors"] = json!([
        {"podSelector": {"matchLabels": {LABEL: "ambient"}}},
        {"podSelector": {"matchExpressions": [{"key": LABEL, "operator": "NotIn", "values": ["none"]}]},
         "namespaceSelector": {"matchLabels": {LABEL: "ambient"}}}
    ]);
    (node, api)
}

fn enroller(node: &Node, reply: Reply) -> UnixHttp {
    UnixHttp::start(&event_socket(node.run_dir()), reply).unwrap()
}

#[test]
fn an_ambient_pod_is_enrolled_before_it_starts() {
    let (node, api) = node(plain_pod());
    let agent = enroller(&node, Reply::empty());
    assert_eq!(node.call().reason(&node.prev_result()), "ambient");
    let events = agent.requests();
    assert_eq!((events.len(), events[0].method.as_str(), events[0].path.as_str()), (1, "POST", "/cmdadd"));
    assert_eq!(
        events[0].json(),
        json!({"Netns": "/var/run/netns/none-of-this-name", "PodName": "web", "PodNamespace": "shop",
            "IPs": [{"Interface": null, "Address": {"IP": "10.0.0.2", "Mask": "////AA=="}, "Gateway": ""}],
            "PodUID": "u", "ContainerID": "c0ffee"})
    );
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn a_pod_that_is_not_ambient_gets_what_it_gets_without_ambient_mode() {
    let labelled_none = json!({"metadata": {"labels": {LABEL: "none"}}, "spec": {"containers": [{"name": "app"}]}});
    for (pod, reason) in
        [(labelled_none, "no-istio-proxy"), (sidecar_pod(&[("sidecar.istio.io/inject", "false")]), "inject-disabled")]
    {
        let (node, api) = node(pod);
        let agent = enroller(&node, Reply::status(500));
        assert_eq!(node.call().reason(&node.prev_result()), reason);
        assert_eq!((agent.requests().len(), api.requests().len()), (0, 2), "{reason}");
    }
}

#[test]
fn a_pod_that_the_agent_does_not_enrol_does_not_start() {
    let (node, _api) = node(plain_pod());
    let agent = enroller(&node, Reply { status: 500, body: b"ztunnel is not connected".to_vec() });
    let (code, message) = node.call().error();
    assert!(code == 105 && message.contains("500") && message.contains("ztunnel is not connected"), "{code} {message}");
    agent.set_reply(Reply::status(201));
    assert_eq!(node.call().error().0, 105);
    agent.set_reply(Reply::empty());
    for behaviour in [Behaviour::Hang, Behaviour::Close, Behaviour::Garbage, Behaviour::Truncated] {
        agent.clear_requests();
        agent.set_behaviour(behaviour.clone());
        let (code, message) = node.call_impatiently().error();
        assert!(code == 11 && message.contains("istio-cni-node"), "{behaviour:?}: {code} {message}");
        assert_eq!(agent.requests().len(), 1, "{behaviour:?}");
    }
    drop(agent);
    assert_eq!(node.call_impatiently().error().0, 11);
}

#[test]
fn an_agent_that_is_just_starting_is_waited_for() {
    let (node, _api) = node(plain_pod());
    std::thread::scope(|scope| {
        let call = scope.spawn(|| node.call());
        while !std::fs::read_to_string(node.run_dir().join("istio-cni.log")).unwrap_or_default().contains("waiting") {
            std::thread::sleep(Duration::from_millis(2));
        }
        let agent = enroller(&node, Reply::empty());
        assert_eq!(call.join().unwrap().exit, 0);
        assert_eq!(agent.requests().len(), 1);
    });
}

#[test]
fn when_nobody_can_say_whether_a_pod_is_ambient_it_does_not_start() {
    let (mut node, api) = node(plain_pod());
    let agent = enroller(&node, Reply::empty());
    api.set_behaviour(Behaviour::Status(500));
    for retry in [false, true] {
        node.conf["enable_ambient_detection_retry"] = retry.into();
        assert_eq!(node.call_impatiently().error().0, 11, "{retry}");
    }
    api.set_behaviour(Behaviour::Normal);
    api.clear_requests();
    node.conf["enablement_selectors"] =
        json!([{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}]);
    let (code, message) = node.call().error();
    assert!(code == 7 && message.contains("AMBIENT_ENABLEMENT_SELECTOR"), "{code} {message}");
    assert_eq!((api.requests().len(), agent.requests().len()), (0, 0));
}

#[test]
fn a_check_of_an_ambient_pod_enrols_nobody() {
    let (mut node, _api) = node(plain_pod());
    let agent = enroller(&node, Reply::empty());
    node.set("CNI_COMMAND", "CHECK");
    assert_eq!(node.call().exit, 0);
    assert_eq!(agent.requests(), []);
}
