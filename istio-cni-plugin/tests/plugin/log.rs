//! What a person finds afterwards.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use testkit::api::Behaviour;

use crate::call::{Node, TOKEN, api_with, plain_pod};

fn entries(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

#[test]
fn the_file_in_the_run_directory_tells_what_stderr_tells() {
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    node.conf["plugin_log_level"] = "debug".into();
    let outcome = node.call();
    let path = node.run_dir().join("istio-cni.log");
    let file = std::fs::read_to_string(&path).unwrap();
    assert_eq!(file, outcome.stderr);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let entries = entries(&file);
    let last = entries.last().unwrap();
    assert_eq!((&last["level"], &last["pod"], &last["if"]), (&"info".into(), &"shop/web".into(), &"eth0".into()));
    assert_eq!(last["container_id"], "c0ffee");
    let time = last["time"].as_str().unwrap();
    assert!(time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
    assert!(entries.iter().any(|entry| entry["msg"].as_str().unwrap().contains("previous result")));
    assert!(!file.contains(TOKEN));
}

#[test]
fn an_error_is_in_the_log_too() {
    let node = Node::without_agent();
    let outcome = node.call();
    let entries = entries(&outcome.stderr);
    assert_eq!(entries.len(), 1, "{outcome:?}");
    assert_eq!((&entries[0]["level"], &entries[0]["code"]), (&"error".into(), &5.into()));
    assert_eq!(entries[0]["msg"], outcome.json()["msg"]);
}

#[test]
fn level_none_is_silent_on_stderr_and_in_the_file() {
    let mut node = Node::without_agent();
    node.conf["plugin_log_level"] = "none".into();
    let outcome = node.call();
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (1, ""));
    assert!(!node.run_dir().join("istio-cni.log").exists());
}

#[test]
fn a_log_that_cannot_be_written_stops_no_pod() {
    let mut node = Node::without_agent();
    node.pod("kube-system", "dns");
    std::fs::create_dir(node.run_dir().join("istio-cni.log")).unwrap();
    let outcome = node.call();
    assert_eq!((outcome.exit, outcome.json()), (0, node.prev_result()));
    assert!(outcome.stderr.contains("cannot be written"), "{outcome:?}");
}

#[test]
fn the_agents_log_gets_every_entry_of_a_call_at_once() {
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    node.conf["plugin_log_level"] = "debug".into();
    let sink = node.log_sink();
    let outcome = node.call();
    while sink.requests().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let sent = sink.requests();
    assert_eq!((sent.len(), sent[0].method.as_str(), sent[0].path.as_str()), (1, "POST", "/log"));
    let Value::Array(lines) = sent[0].json() else { panic!("{sent:?}") };
    let lines: String = lines.iter().map(|line| line.as_str().expect("a string")).collect();
    assert_eq!(lines, outcome.stderr);
    let last = entries(&lines).pop().unwrap();
    for (key, value) in [("verb", "ADD"), ("decision", "skip"), ("reason", "no-istio-proxy"), ("source", "api-server")]
    {
        assert_eq!(last[key], value, "{last}");
    }
    assert!(last["elapsed_ms"].is_number(), "{last}");
    node.set("CNI_COMMAND", "DEL");
    node.call();
    assert_eq!(sink.requests().len(), 1, "a teardown has nothing to say");
}

#[test]
fn while_a_pod_waits_for_the_api_server_the_agents_log_says_so() {
    let api = api_with(plain_pod());
    api.set_behaviour(Behaviour::FailFirst { n: 1, status: 500 });
    let node = Node::with_agent(&api);
    let sink = node.log_sink();
    assert_eq!(node.call().exit, 0);
    let first = sink.requests()[0].json();
    assert!(first[0].as_str().unwrap().contains("is repeated"), "{first}");
}

#[test]
fn a_refused_token_is_something_the_agent_gets_to_know() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    node.write_kubeconfig(&api, "another token");
    let sink = node.log_sink();
    // Once renewed, the call goes on with it.
    std::thread::scope(|scope| {
        let call = scope.spawn(|| node.call());
        while !sink.requests().iter().any(|request| request.json().to_string().contains("refused")) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        node.write_kubeconfig(&api, TOKEN);
        assert_eq!(call.join().unwrap().exit, 0);
    });
}

#[test]
fn an_agent_that_takes_no_entries_costs_a_pod_nothing() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    let sink = node.log_sink();
    for behaviour in [Behaviour::Hang, Behaviour::Status(500), Behaviour::Close] {
        sink.set_behaviour(behaviour);
        let outcome = node.call();
        assert_eq!(outcome.reason(&node.prev_result()), "no-istio-proxy");
    }
}
