//! What the agent is to plugins: answers about pods from a cache that follows the API server, and a sink for logs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod client;
mod cluster;
mod node;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use agent_api::ask::{ATTACHMENTS_PATH, GONE_PATH, MAX_BODY, VERDICT_PATH};
use agent_api::logs::LOG_PATH;
use agent_api::paths;
use client::{exchange, post, request};
use cluster::{Cluster, pod, verdict};
use node::eventually;
use serde_json::json;
use testkit::agent::{Reply, UnixHttp};
use testkit::api::Behaviour;

const PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";

#[test]
fn a_plugin_is_told_what_becomes_of_a_pod() {
    let cluster = Cluster::start_with(|node, api| {
        node.config.plugin.pod_namespace = "istio-system".to_owned();
        api.set_pod("shop", "web", pod("u1", &json!({PORTS: "80"})));
        api.set_pod("shop", "bad", pod("u2", &json!({PORTS: "eighty"})));
        api.set_pod("shop", "static", pod("u3", &json!({"kubernetes.io/config.hash": "hash"})));
        let mut plain = pod("u4", &json!({}));
        plain["spec"]["containers"] = json!([{"name": "app"}]);
        api.set_pod("shop", "plain", plain);
        let mut elsewhere = pod("u5", &json!({}));
        elsewhere["spec"]["nodeName"] = "node-2".into();
        api.set_pod("shop", "elsewhere", elsewhere);
        // More than one page.
        (0..120).for_each(|n| api.set_pod("many", &format!("p{n}"), pod(&format!("m{n}"), &json!({}))));
    });
    cluster.comes_to_say("shop", "web", "u1", "redirect");
    let answer = cluster.verdict("shop", "web", "");
    assert_eq!(
        (&answer["verdict"], &answer["redirection"]["exclude_outbound_ports"]),
        (&"redirect".into(), &"80".into())
    );
    let refusal = cluster.verdict("shop", "bad", "u2");
    assert_eq!(refusal["verdict"], "refuse");
    assert!(refusal["message"].as_str().unwrap().starts_with("pod shop/bad: annotation traffic."), "{refusal}");
    for (namespace, name, uid, verdict, reason) in [
        ("shop", "static", "hash", "redirect", "redirect"),
        ("shop", "plain", "u4", "skip", "no-istio-proxy"),
        ("shop", "web", "u0", "unknown", "other-pod"),
        ("shop", "elsewhere", "u5", "unknown", "no-such-pod"),
        ("many", "p119", "m119", "redirect", "redirect"),
        ("kube-system", "dns", "", "skip", "namespace-excluded"),
        ("istio-system", "istio-cni-node-1", "", "skip", "self-agent-pod"),
    ] {
        let answer = cluster.verdict(namespace, name, uid);
        assert_eq!((&answer["verdict"], &answer["reason"]), (&verdict.into(), &reason.into()), "{namespace}/{name}");
    }
    for (path, body) in [(GONE_PATH, r#"{"verb":"DEL"}"#), (ATTACHMENTS_PATH, r#"{"valid":[]}"#)] {
        assert_eq!(post(&cluster.agent_socket(), path, body), (200, String::new()));
    }
    let reads = cluster.api.requests();
    assert!(reads.iter().all(|request| request.path.contains("spec.nodeName%3Dnode-1")), "{reads:?}");
}

#[test]
fn a_pod_that_is_new_to_the_agent_too_is_waited_for() {
    let cluster = Cluster::start();
    cluster.comes_to_say("shop", "web", "u1", "no-such-pod");
    let socket = cluster.agent_socket();
    let asked = std::thread::spawn(move || verdict(&socket, "shop", "web", "u1"));
    cluster.api.set_pod("shop", "web", pod("u1", &json!({})));
    assert_eq!(asked.join().unwrap()["verdict"], "redirect");
    // A successor of the same name.
    cluster.api.remove_pod("shop", "web");
    cluster.api.set_pod("shop", "web", pod("u2", &json!({})));
    cluster.comes_to_say("shop", "web", "u2", "redirect");
    assert_eq!(cluster.verdict("shop", "web", "u1")["reason"], "other-pod");
}

#[test]
fn a_watch_that_breaks_is_made_anew_whatever_was_missed() {
    let cluster = Cluster::start();
    for (round, forget) in [false, true, true].into_iter().enumerate() {
        let name = format!("web-{round}");
        cluster.comes_to_say("shop", &name, "", "no-such-pod");
        cluster.api.break_watches(forget);
        cluster.api.set_pod("shop", &name, pod(&name, &json!({})));
        cluster.comes_to_say("shop", &name, &name, "redirect");
    }
    cluster.api.set_behaviour(Behaviour::Status(500));
    cluster.api.break_watches(false);
    // Not known whether it is still the same, but its UID is.
    cluster.comes_to_say("shop", "web-0", "", "not-ready");
    assert_eq!(cluster.verdict("shop", "web-0", "web-0")["verdict"], "redirect");
    cluster.api.set_behaviour(Behaviour::Normal);
    cluster.comes_to_say("shop", "web-0", "", "redirect");
}

#[test]
fn a_new_token_is_used_as_soon_as_the_old_one_is_refused() {
    let cluster = Cluster::start_with(|_, api| api.set_tokens(&["token-1"]));
    cluster.comes_to_say("shop", "web", "u1", "no-such-pod");
    cluster.node.rotate("token-2");
    cluster.api.set_tokens(&["token-2"]);
    cluster.api.break_watches(false);
    cluster.api.set_pod("shop", "web", pod("u1", &json!({})));
    cluster.comes_to_say("shop", "web", "u1", "redirect");
}

#[test]
fn without_the_api_server_or_the_nodes_name_the_agent_works_and_says_that_it_does_not_know() {
    let no_server = Cluster::start_with(|node, _| node.config.kubeconfig.port = "1".to_owned());
    let no_rights = Cluster::start_with(|_, api| api.set_behaviour(Behaviour::Status(403)));
    let no_name = Cluster::start_with(|node, _| node.config.node_name.clear());
    for cluster in [no_server, no_rights, no_name] {
        let answer = cluster.verdict("shop", "web", "u1");
        assert_eq!((&answer["verdict"], &answer["reason"]), (&"unknown".into(), &"not-ready".into()));
        assert_eq!(cluster.verdict("kube-system", "dns", "")["verdict"], "skip");
        assert!(cluster.agent.health.missing().is_none());
    }
}

#[test]
fn sockets_are_for_root_only_come_back_and_go_with_the_agent() {
    let cluster = Cluster::start();
    let mode = |path: &PathBuf| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(&cluster.node.config.dirs.run), 0o700);
    let sockets = [cluster.agent_socket(), cluster.log_socket()];
    let answers = |socket: &PathBuf| {
        UnixStream::connect(socket).is_ok_and(|stream| exchange(stream, &request("POST", "/v1/gone", "{}")).0 != 0)
    };
    for socket in &sockets {
        assert_eq!(mode(socket), 0o600);
        std::fs::remove_file(socket).unwrap();
        eventually(|| answers(socket), || format!("{} does not come back", socket.display()));
        std::fs::rename(node_file(&cluster, "other"), socket).unwrap();
        eventually(|| answers(socket), || format!("{} does not come back after a file", socket.display()));
    }
    cluster.agent.becomes_ready();
    let Cluster { agent, .. } = cluster;
    agent.stop();
    assert!(sockets.iter().all(|socket| !socket.exists()));
}

/// A file in the run directory.
fn node_file(cluster: &Cluster, name: &str) -> PathBuf {
    let path = cluster.node.config.dirs.run.join(name);
    std::fs::write(&path, "no socket").unwrap();
    path
}

#[test]
fn two_agents_do_not_fight_for_a_socket() {
    let cluster = Cluster::start();
    let newer = UnixHttp::start(&cluster.log_socket(), Reply::status(418)).unwrap();
    cluster.agent.misses("another agent has taken it over");
    assert_eq!(post(&cluster.log_socket(), LOG_PATH, "[]").0, 418);
    drop(newer);
    cluster.agent.becomes_ready();
    assert_eq!(post(&cluster.log_socket(), LOG_PATH, "[]").0, 200);
}

#[test]
fn a_log_socket_that_cannot_be_made_stops_nothing_but_is_told() {
    let run = std::sync::Mutex::new(None);
    let cluster = std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            Cluster::start_with(|node, _| {
                std::fs::create_dir_all(node.config.dirs.run.join("log.sock/in-the-way")).unwrap();
                *run.lock().unwrap() = Some(node.config.dirs.run.clone());
            })
        });
        let kubeconfig = || run.lock().unwrap().as_ref().is_some_and(|run| paths::kubeconfig(run).exists());
        eventually(kubeconfig, || "the node is not installed".to_owned());
        let run = run.lock().unwrap().clone().unwrap();
        eventually(|| paths::agent_socket(&run).exists(), || "no other socket".to_owned());
        assert!(!started.is_finished(), "not ready without the socket");
        std::fs::remove_dir_all(run.join("log.sock")).unwrap();
        started.join().unwrap()
    });
    assert_eq!(post(&cluster.log_socket(), LOG_PATH, "[]"), (200, String::new()));
}

#[test]
fn nobody_holds_the_agent_up() {
    let cluster = Cluster::start();
    let socket = cluster.agent_socket();
    assert_eq!(post(&socket, VERDICT_PATH, "garbage").0, 400);
    assert_eq!(post(&socket, VERDICT_PATH, &" ".repeat(MAX_BODY + 1)).0, 413);
    assert_eq!(post(&socket, "/v1/other", "{}").0, 404);
    assert_eq!(exchange(UnixStream::connect(&socket).unwrap(), "no HTTP\r\n\r\n").0, 400);
    // More than are served at once, which say nothing or stop half-way.
    let half = "POST /v1/verdict HTTP/1.1\r\nContent-Length: 100\r\n\r\n{";
    let idle: Vec<_> = (0..150)
        .map(|n| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(&half.as_bytes()[..if n % 2 == 0 { half.len() } else { 0 }]).unwrap();
            stream
        })
        .collect();
    assert_eq!(cluster.verdict("kube-system", "dns", "")["verdict"], "skip");
    for stream in idle {
        assert_eq!(exchange(stream, "").0, 0, "closed without an answer");
    }
}

#[test]
fn another_user_of_the_node_is_turned_away() {
    use std::os::unix::fs::PermissionsExt;

    let cluster = Cluster::start();
    // As if the permissions of directory and socket had been loosened.
    let socket = cluster.agent_socket();
    for (path, mode) in [(cluster.node.root.path(), 0o755), (&cluster.node.config.dirs.run, 0o755), (&socket, 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let asked = testkit::process::as_user(65534, || {
        exchange(UnixStream::connect(&socket).unwrap(), &request("POST", GONE_PATH, "{}")).0
    });
    match asked {
        Ok(status) => assert_eq!(status, 0),
        Err(_) => {
            assert!(!std::env::var("REQUIRE_NETNS").is_ok_and(|value| value == "1"), "only root can do this test")
        }
    }
    assert_eq!(post(&socket, GONE_PATH, "{}").0, 200);
}
