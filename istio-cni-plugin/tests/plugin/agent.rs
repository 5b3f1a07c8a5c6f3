//! The agent is asked first, and whatever it does, the pod gets its answer.

use serde_json::{Value, json};
use testkit::agent::Reply;
use testkit::api::Behaviour;
use testkit::netns::{Sandbox, available};

use crate::call::{Node, api_with, plain_pod, sidecar_pod};

fn redirection() -> Value {
    json!({"target_port": "15001", "redirect_mode": "REDIRECT", "no_redirect_uid": "1337", "no_redirect_gid": "1337",
        "include_ip_cidrs": "*", "exclude_ip_cidrs": "", "include_inbound_ports": "*",
        "exclude_inbound_ports": "3306,15020,15021,15090", "include_outbound_ports": "", "exclude_outbound_ports": "15020",
        "exclude_interfaces": "", "reroute_virtual_interfaces": "", "dns_redirect": false, "dual_stack": false,
        "invalid_drop": false})
}

#[test]
fn the_agent_knows_the_pod_and_nobody_else_is_asked() {
    let api = api_with(sidecar_pod(&[]));
    let node = Node::with_agent(&api);
    let agent = node.agent(Reply::json(&json!({"verdict": "skip", "reason": "no-sidecar-status"})));
    assert_eq!(node.call().reason(&node.prev_result()), "no-sidecar-status");
    let asked = agent.requests();
    assert_eq!((asked.len(), asked[0].method.as_str(), asked[0].path.as_str()), (1, "POST", "/v1/verdict"));
    let question = asked[0].json();
    for (key, value) in [
        ("verb", "ADD"),
        ("pod", "web"),
        ("namespace", "shop"),
        ("uid", "u"),
        ("container_id", "c0ffee"),
        ("netns", "/var/run/netns/none-of-this-name"),
        ("ifname", "eth0"),
    ] {
        assert_eq!(question[key], value, "{question}");
    }
    assert_eq!(question["ips"], json!(["10.0.0.2/24"]));
    assert_eq!(api.requests(), []);
}

#[test]
fn an_outcome_that_the_agent_has_is_not_told_to_it_again() {
    let mut node = Node::without_agent();
    let agent = node.agent(Reply::json(&json!({"verdict": "skip", "reason": "no-istio-proxy", "recorded": true})));
    let sink = node.log_sink();
    assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
    assert!(std::fs::read_to_string(node.run_dir().join("istio-cni.log")).unwrap().contains("pod is left alone"));
    // What the agent cannot know is told.
    node.conf["plugin_log_level"] = "debug".into();
    node.call();
    agent.set_reply(Reply::json(&json!({"verdict": "skip", "reason": "no-istio-proxy"})));
    node.call();
    while sink.requests().len() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let sent: Vec<bool> =
        sink.requests().iter().map(|request| request.json().to_string().contains("pod is left alone")).collect();
    assert_eq!(sent.iter().filter(|told| **told).count(), 1, "{sent:?}");
}

#[test]
fn pods_that_names_decide_about_do_not_trouble_the_agent() {
    let mut node = Node::without_agent();
    let agent = node.agent(Reply::json(&json!({"verdict": "refuse", "message": "never"})));
    for (namespace, name) in [("kube-system", "dns"), ("istio-system", "istio-cni-node-x"), ("", "")] {
        node.pod(namespace, name);
        assert_eq!(node.call().exit, 0, "{namespace}/{name}");
    }
    assert_eq!(agent.requests(), []);
}

#[test]
fn what_the_agent_says_is_programmed() {
    if !available() {
        return;
    }
    let mut node = Node::without_agent();
    let sandbox = Sandbox::with_addresses(&["10.0.0.2/24"]);
    node.set("CNI_NETNS", &sandbox.path().display().to_string());
    let answer = json!({"verdict": "redirect", "redirection": redirection(), "warnings": ["odd but fine"]});
    let _agent = node.agent(Reply::json(&answer));
    let outcome = node.call();
    assert_eq!(outcome.reason(&node.prev_result()), "redirect");
    assert!(outcome.stderr.contains("odd but fine"), "{outcome:?}");
    assert!(sandbox.saved_rules().contains("--dport 3306 -j RETURN"));
    node.set("CNI_COMMAND", "CHECK");
    assert_eq!(node.call().exit, 0);
    sandbox.sh("nft flush ruleset");
    assert_eq!(node.call().error().0, 106);
}

#[test]
fn a_pod_that_the_agent_refuses_does_not_start_and_says_why() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    let _agent = node.agent(Reply::json(&json!({"verdict": "refuse", "message": "annotation x is wrong; mend it"})));
    assert_eq!(node.call().error(), (103, "annotation x is wrong; mend it".to_owned()));
    assert_eq!(api.requests(), []);
}

#[test]
fn an_agent_that_does_not_know_or_makes_no_sense_is_replaced_by_the_api_server() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    let agent = node.agent(Reply::empty());
    let half = json!({"verdict": "redirect", "redirection": {"target_port": "15001"}});
    for reply in [
        Reply::json(&json!({"verdict": "unknown", "reason": "no-such-pod"})),
        Reply::json(&json!({"verdict": "of a later version"})),
        Reply::json(&json!({})),
        Reply::json(&json!([])),
        Reply::json(&half),
        Reply::json(&json!({"verdict": 7})),
        Reply::empty(),
        Reply::status(404),
        Reply::status(500),
    ] {
        api.clear_requests();
        agent.set_reply(reply.clone());
        assert_eq!(node.call_impatiently().exit, 0, "{reply:?}");
        assert_eq!(api.requests().len(), 1, "{reply:?}");
    }
    agent.set_reply(Reply::json(&json!({"verdict": "skip", "reason": "x"})));
    for behaviour in [
        Behaviour::Hang,
        Behaviour::Close,
        Behaviour::Garbage,
        Behaviour::BadJson,
        Behaviour::Truncated,
        Behaviour::Huge(3 << 20),
    ] {
        api.clear_requests();
        agent.set_behaviour(behaviour.clone());
        assert_eq!(node.call_impatiently().exit, 0, "{behaviour:?}");
        assert_eq!(api.requests().len(), 1, "{behaviour:?}");
    }
    for behaviour in [Behaviour::Chunked, Behaviour::UntilClose] {
        api.clear_requests();
        agent.set_behaviour(behaviour.clone());
        assert_eq!((node.call_impatiently().exit, api.requests().len()), (0, 0), "{behaviour:?}");
    }
}

#[test]
fn a_socket_of_the_wrong_type_is_no_agent() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    let path = node.run_dir().join("agent.sock");
    std::fs::write(&path, "").unwrap();
    assert_eq!(node.call().exit, 0);
    std::fs::remove_file(&path).unwrap();
    let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    assert_eq!(node.call().exit, 0);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(node.call().exit, 0);
    assert_eq!(api.requests().len(), 3);
}

#[test]
fn without_agent_and_credentials_a_pod_that_may_be_of_the_mesh_does_not_start() {
    let node = Node::without_agent();
    let agent = node.agent(Reply::json(&json!({"verdict": "unknown"})));
    let (code, message) = node.call().error();
    assert!(code == 5 && message.contains("shop/web"), "{code} {message}");
    drop(agent);
    assert_eq!(node.call().error().0, 5);
}
