//! What the agent tells on pods, and counts: traffic that is not captured although one would expect it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod client;
mod cluster;
mod node;

use std::net::{TcpListener, TcpStream};

use agent_api::ask::VERDICT_PATH;
use agent_api::logs::{LOG_PATH, MAX_BATCH};
use client::{ask, exchange, post};
use cluster::{Cluster, pod};
use node::eventually;
use serde_json::{Value, json};
use testkit::api::Behaviour;

/// All events that were sent to the API server.
fn events(cluster: &Cluster) -> Vec<Value> {
    let posts = cluster.api.requests().into_iter().filter(|request| request.method == "POST");
    posts.map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

/// An entry of a plugin's log, as it is in a batch.
fn entry(labels: &str) -> String {
    format!(r#"{{"level":"info","time":"2020-01-01T00:00:00.356374Z","msg":"m",{labels}}}"#)
}

#[test]
fn what_plugins_say_is_counted_and_uncaptured_traffic_is_told_on_the_pod_once() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cluster = Cluster::start_with(|node, api| {
        node.config.agent.metrics = Some(port);
        node.config.agent.pod_name = "istio-cni-node-x".to_owned();
        api.set_pod("shop", "web", pod("u1", &json!({})));
    });
    cluster.comes_to_say("shop", "web", "u1", "redirect");
    let outcome = r#""pod":"shop/web","verb":"ADD","decision":"redirect","reason":"redirect","elapsed_ms":1.5,"uncaptured":"IPv6""#;
    let batch = json!([entry(outcome), "nope"]).to_string();
    for body in [batch.as_str(), batch.as_str(), "garbage", &"x".repeat(MAX_BATCH + 1)] {
        assert_eq!(post(&cluster.log_socket(), LOG_PATH, body), (200, String::new()));
    }
    let elsewhere = json!([entry(r#""pod":"shop/elsewhere","uncaptured":"IPv6""#)]).to_string();
    assert_eq!(post(&cluster.log_socket(), LOG_PATH, &elsewhere).0, 200);
    assert_eq!(post(&cluster.log_socket(), "/other", "[]").0, 404);

    let events = || events(&cluster);
    eventually(|| !events().is_empty(), || "no event".to_owned());
    // A pod whose event comes after all that could have come for the first.
    cluster.api.set_pod("shop", "last", pod("u2", &json!({})));
    cluster.comes_to_say("shop", "last", "u2", "redirect");
    post(&cluster.log_socket(), LOG_PATH, &json!([entry(r#""pod":"shop/last","uncaptured":"IPv6""#)]).to_string());
    eventually(|| events().iter().any(|event| event["regarding"]["name"] == "last"), || format!("{:?}", events()));
    let events = events();
    assert_eq!(events.len(), 2, "{events:#?}");
    let event = &events[0];
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"TrafficNotCaptured".into()));
    assert_eq!((&event["regarding"]["uid"], &event["reportingInstance"]), (&"u1".into(), &"istio-cni-node-x".into()));
    assert!(event["note"].as_str().unwrap().contains("IPv6"), "{event}");

    // The outcome for a pod that is left alone is recorded with the answer.
    cluster.api.set_pod("shop", "plain", json!({"spec": {"nodeName": "node-1", "containers": [{"name": "app"}]}}));
    let asked = |verb: &str| {
        let question = json!({"verb": verb, "namespace": "shop", "pod": "plain"});
        ask(&cluster.agent_socket(), VERDICT_PATH, &question)
    };
    eventually(|| asked("CHECK")["verdict"] == "skip", || asked("CHECK").to_string());
    assert_eq!((&asked("CHECK")["recorded"], &asked("ADD")["recorded"]), (&Value::Null, &true.into()));

    let (status, text) =
        exchange(TcpStream::connect(port).unwrap(), "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 200);
    for line in [
        "istio_cni_installs_total{result=\"SUCCESS\"} 1",
        "istio_cni_plugin_decisions_total{verb=\"ADD\",decision=\"skip\",reason=\"no-istio-proxy\"} 1",
        "istio_cni_install_ready 1",
        "istio_cni_plugin_decisions_total{verb=\"ADD\",decision=\"redirect\",reason=\"redirect\"} 2",
        "istio_cni_plugin_add_duration_seconds_count 2",
        "istio_cni_uncaptured_family_total{family=\"IPv6\"} 2",
        "istio_cni_plugin_log_entries_total{result=\"received\"} 4",
        "istio_cni_plugin_log_entries_total{result=\"dropped\"} 4",
        "# EOF",
    ] {
        assert!(text.lines().any(|have| have == line), "no {line} in\n{text}");
    }
}

#[test]
fn an_api_server_that_takes_no_events_stops_nothing() {
    let cluster = Cluster::start_with(|_, api| api.set_pod("shop", "web", pod("u1", &json!({}))));
    cluster.comes_to_say("shop", "web", "u1", "redirect");
    cluster.api.set_behaviour(Behaviour::Status(403));
    let batch = json!([entry(r#""pod":"shop/web","uncaptured":"IPv6""#)]).to_string();
    let posts = || cluster.api.requests().iter().filter(|request| request.method == "POST").count();
    for tries in 1..3 {
        post(&cluster.log_socket(), LOG_PATH, &batch);
        eventually(|| posts() == tries, || format!("{} tries", posts()));
    }
    cluster.api.set_behaviour(Behaviour::Normal);
    post(&cluster.log_socket(), LOG_PATH, &batch);
    eventually(|| posts() == 3, || format!("{} tries", posts()));
    assert_eq!(cluster.verdict("shop", "web", "u1")["verdict"], "redirect");
}

#[test]
fn a_pod_with_a_sidecar_in_an_excluded_namespace_is_told_once_why_it_is_not_captured() {
    let cluster = Cluster::start_with(|_, api| {
        // Of those that are there from the start, only one would be captured elsewhere.
        api.set_pod("kube-system", "addon", pod("u1", &json!({})));
        api.set_pod("kube-system", "off", pod("u2", &json!({"sidecar.istio.io/inject": "false"})));
        api.set_pod("shop", "web", pod("u3", &json!({})));
    });
    let names = || -> Vec<String> {
        events(&cluster).iter().map(|event| event["regarding"]["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually(|| !names().is_empty(), || "no event".to_owned());
    // A change of it is no news; a successor of the same name is, and so is one whose annotations make no sense.
    cluster.api.set_pod("kube-system", "addon", pod("u1", &json!({"other": "x"})));
    cluster.api.remove_pod("kube-system", "addon");
    cluster.api.set_pod("kube-system", "addon", pod("u4", &json!({})));
    eventually(|| names().len() >= 2, || format!("{:?}", names()));
    cluster.api.set_pod("kube-system", "odd", pod("u5", &json!({"sidecar.istio.io/interceptionMode": "SOME"})));
    eventually(|| names().len() >= 3, || format!("{:?}", names()));
    let events = events(&cluster);
    let told: Vec<_> = events.iter().map(|event| event["regarding"]["uid"].as_str().unwrap()).collect();
    assert_eq!(told, ["u1", "u4", "u5"]);
    assert_eq!((&events[0]["type"], &events[0]["reason"]), (&"Warning".into(), &"NamespaceExcluded".into()));
    let note = events[0]["note"].as_str().unwrap();
    assert!(note.contains("namespace kube-system") && note.contains("EXCLUDE_NAMESPACES"), "{note}");
}
