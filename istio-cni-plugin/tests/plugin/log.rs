//! What a person finds afterwards.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

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
