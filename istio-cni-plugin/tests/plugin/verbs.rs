//! DEL, GC and STATUS, and a runtime that gives up.

use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::agent::{Reply, UnixHttp};
use testkit::api::Behaviour;

use crate::call::{Node, api_with, plain_pod};

/// Notices are not waited for, so they may arrive after the process has ended.
fn notices(agent: &UnixHttp, count: usize) -> Vec<(String, Value)> {
    let patience = Instant::now() + Duration::from_secs(10);
    while agent.requests().len() < count && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
    agent.requests().iter().map(|request| (request.path.clone(), request.json())).collect()
}

#[test]
fn a_teardown_tells_the_agent_and_never_fails_or_waits() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "DEL");
    let quiet = |node: &Node| {
        let outcome = node.call();
        assert_eq!((outcome.exit, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
    };
    quiet(&node);
    let agent = node.agent(Reply::empty());
    quiet(&node);
    let told = notices(&agent, 1);
    assert_eq!((told.len(), told[0].0.as_str(), &told[0].1["container_id"]), (1, "/v1/gone", &"c0ffee".into()));
    // Late and often, without a namespace, without a previous result.
    node.unset("CNI_NETNS");
    node.conf.as_object_mut().unwrap().remove("prevResult");
    quiet(&node);
    assert_eq!(notices(&agent, 2).len(), 2);
    for behaviour in [Behaviour::Hang, Behaviour::Status(500), Behaviour::Garbage, Behaviour::Close] {
        agent.set_behaviour(behaviour);
        quiet(&node);
    }
    node.pod("kube-system", "dns");
    quiet(&node);
    node.set("CNI_ARGS", "nonsense");
    quiet(&node);
    assert_eq!(notices(&agent, 6).len(), 6, "an excluded namespace is of no interest");
}

#[test]
fn a_collection_hands_over_the_sandboxes_that_are_left() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "GC");
    node.conf["cniVersion"] = "1.1.0".into();
    assert_eq!(node.call().exit, 0, "without an agent");
    let agent = node.agent(Reply::empty());
    assert_eq!(node.call().exit, 0, "a runtime that lists nothing");
    node.conf["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}, {"containerID": 7}]);
    assert_eq!(node.call().exit, 0, "a list that cannot be read");
    for (key, list) in [
        ("cni.dev/attachments", json!([{"containerID": "a", "ifname": "eth0", "more": 1}])),
        ("cni.dev/valid-attachments", json!([])),
    ] {
        node.conf.as_object_mut().unwrap().remove("cni.dev/valid-attachments");
        node.conf[key] = list;
        assert_eq!(node.call().exit, 0);
    }
    assert_eq!(
        notices(&agent, 2),
        [
            (
                "/v1/attachments".to_owned(),
                json!({"network": "k8s-pod-network", "valid": [{"containerID": "a", "ifname": "eth0"}]})
            ),
            ("/v1/attachments".to_owned(), json!({"network": "k8s-pod-network", "valid": []})),
        ]
    );
}

#[test]
fn status_is_an_error_only_where_the_agent_can_start_in_spite_of_it() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "STATUS");
    node.conf["cniVersion"] = "1.1.0".into();
    let outcome = node.call();
    assert_eq!((outcome.exit, outcome.stdout.as_str()), (0, ""), "an error would keep the agent away");
    assert!(outcome.stderr.contains("istio-cni-node"), "{outcome:?}");
    node.conf["agent_host_network"] = true.into();
    let (code, message) = node.call().error();
    assert!(code == 50 && message.contains("istio-cni-kubeconfig"), "{code} {message}");
    let api = api_with(plain_pod());
    let agent = node.agent(Reply::empty());
    assert_eq!(node.call().stderr, "");
    drop(agent);
    node.write_kubeconfig(&api, "t");
    assert_eq!(node.call().stderr, "", "an agent that restarts is not missed");
    node.conf["ambient_enabled"] = true.into();
    let (code, message) = node.call().error();
    assert!(code == 50 && message.contains("pluginevent.sock"), "{code} {message}");
    assert_eq!(api.requests(), [], "the runtime asks every few seconds");
}

#[test]
fn a_runtime_that_gives_up_gets_an_error_and_the_log_says_what_it_waited_for() {
    let api = api_with(plain_pod());
    api.set_behaviour(Behaviour::Hang);
    let node = Node::with_agent(&api);
    let sink = node.log_sink();
    let mut child = node.spawn();
    child.stdin.take().unwrap().write_all(node.conf.to_string().as_bytes()).unwrap();
    while api.requests().is_empty() {
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["code"], 11, "{object}");
    let message = object["msg"].as_str().unwrap();
    assert!(message.contains("SIGTERM") && message.contains("shop/web"), "{message}");
    let entries = notices(&sink, 1);
    assert!(entries[0].1.to_string().contains("SIGTERM"), "{entries:?}");
}

#[test]
fn a_runtime_that_gives_up_before_it_wrote_the_configuration_gets_an_error() {
    let node = Node::without_agent();
    let mut child = node.spawn();
    let held = child.stdin.take().unwrap();
    let waits = || std::fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap().contains("poll");
    while !waits() {
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(held);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(object["code"] == 5 && object["msg"].as_str().unwrap().contains("SIGTERM"), "{object}");
}
