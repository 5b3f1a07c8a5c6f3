//! Who passes, and what is asked on the way.

use std::io::{Read, Write};
use std::net::TcpListener;

use agent_api::kubeconfig::ServerTrust;
use testkit::api::Behaviour;

use crate::call::{Node, TOKEN, api_with, plain_pod, sidecar_pod};

#[test]
fn the_agents_own_pod_starts_on_a_node_without_kubeconfig() {
    let mut node = Node::without_agent();
    for (namespace, name, ambient) in
        [("istio-system", "istio-cni-node-x7k2p", false), ("istio-system", "istio-cni-node-x7k2p", true)]
    {
        node.pod(namespace, name);
        node.conf["ambient_enabled"] = ambient.into();
        assert_eq!(node.call().reason(&node.prev_result()), "self-agent-pod");
    }
}

#[test]
fn the_agents_own_pod_asks_nobody_even_when_the_token_is_dead() {
    let api = api_with(plain_pod());
    api.set_tokens(&[]);
    let mut node = Node::with_agent(&api);
    node.pod("istio-system", "istio-cni-node-x7k2p");
    assert_eq!(node.call().reason(&node.prev_result()), "self-agent-pod");
    assert_eq!(api.requests(), []);
}

#[test]
fn the_agents_name_in_another_namespace_opens_no_door() {
    let mut node = Node::without_agent();
    node.pod("shop", "istio-cni-node-x7k2p");
    assert_eq!(node.call().error().0, 5);
    node.conf["pod_namespace"] = "".into();
    node.pod("istio-system", "istio-cni-node-x7k2p");
    assert_eq!(node.call().error().0, 5);
}

#[test]
fn an_excluded_namespace_needs_no_agent() {
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    node.pod("kube-system", "coredns-1");
    assert_eq!(node.call().reason(&node.prev_result()), "namespace-excluded");
    assert_eq!(api.requests(), []);
    std::fs::remove_file(node.kubeconfig()).unwrap();
    assert_eq!(node.call().reason(&node.prev_result()), "namespace-excluded");
    node.conf["cni_agent_run_dir"] = "/var/run/no-such-directory".into();
    assert_eq!(node.call().reason(&node.prev_result()), "namespace-excluded");
}

#[test]
fn a_sandbox_without_a_pod_is_let_through_quietly() {
    let mut node = Node::without_agent();
    node.unset("CNI_ARGS");
    let outcome = node.call();
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
}

#[test]
fn pods_outside_the_mesh_are_looked_at_once_and_left_alone() {
    let mut without_status = sidecar_pod(&[]);
    without_status["metadata"]["annotations"] = serde_json::json!({});
    let mut with_init = sidecar_pod(&[]);
    with_init["spec"]["initContainers"] = serde_json::json!([{"name": "istio-init"}]);
    for (pod, reason) in [
        (plain_pod(), "no-istio-proxy"),
        (without_status, "no-sidecar-status"),
        (with_init, "has-istio-init"),
        (sidecar_pod(&[("sidecar.istio.io/interceptionMode", "NONE")]), "interception-none"),
        (sidecar_pod(&[("sidecar.istio.io/inject", "false")]), "inject-disabled"),
    ] {
        let api = api_with(pod);
        let node = Node::with_agent(&api);
        assert_eq!(node.call().reason(&node.prev_result()), reason);
        let requests = api.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert!(requests[0].authorised && requests[0].path == "/api/v1/namespaces/shop/pods/web", "{requests:?}");
    }
}

#[test]
fn the_result_is_handed_on_byte_for_byte() {
    let mut node = Node::without_agent();
    node.pod("kube-system", "dns");
    let previous = r#"{ "ips":[ {"address" : "10.0.0.2/24","x":1.50}], "cniVersion":"1.0.0", "dns":{} }"#;
    let conf = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","type":"istio-cni","exclude_namespaces":["kube-system"],"prevResult":{previous}}}"#
    );
    let outcome = node.call_with(&conf);
    assert_eq!((outcome.exit, outcome.stdout.trim_end()), (0, previous));
}

#[test]
fn a_pod_that_the_api_server_does_not_know_yet_is_waited_for() {
    let api = api_with(plain_pod());
    for status in [404, 500, 401] {
        api.clear_requests();
        api.set_behaviour(Behaviour::FailFirst { n: 2, status });
        let node = Node::with_agent(&api);
        assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
        assert_eq!(api.requests().len(), 3);
    }
}

#[test]
fn a_token_renewed_while_a_pod_waits_is_used() {
    let api = api_with(plain_pod());
    let node = Node::with_agent(&api);
    node.write_kubeconfig(&api, "expired");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.call());
        while api.requests().is_empty() {
            std::thread::yield_now();
        }
        // The agent replaces the file by a rename.
        let fresh = std::fs::read_to_string(node.kubeconfig()).unwrap().replace("expired", TOKEN);
        let temporary = node.run_dir().join("kubeconfig.tmp");
        std::fs::write(&temporary, fresh).unwrap();
        std::fs::rename(&temporary, node.kubeconfig()).unwrap();
        assert_eq!(waiting.join().unwrap().reason(&node.prev_result()), "no-istio-proxy");
    });
    let authorised: Vec<bool> = api.requests().iter().map(|request| request.authorised).collect();
    assert_eq!((authorised.first(), authorised.last()), (Some(&false), Some(&true)));
}

#[test]
fn every_way_to_send_a_body_is_understood() {
    for behaviour in [Behaviour::Normal, Behaviour::Chunked, Behaviour::UntilClose] {
        let api = api_with(plain_pod());
        api.set_behaviour(behaviour.clone());
        let node = Node::with_agent(&api);
        assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy", "{behaviour:?}");
        assert_eq!(api.requests().len(), 1, "{behaviour:?}");
    }
}

#[test]
fn names_and_missing_trust_work_too() {
    let api = api_with(plain_pod());
    let node = Node::without_agent();
    node.write_kubeconfig_for(&api.url().replace("127.0.0.1", "localhost"), ServerTrust::Insecure, TOKEN);
    assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
}

#[test]
fn a_name_with_odd_characters_stays_in_its_place() {
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    node.pod("shop", "..%2f../a b?x");
    assert_eq!(node.call_impatiently().error().0, 102);
    assert_eq!(api.requests()[0].path, "/api/v1/namespaces/shop/pods/..%252f..%2Fa%20b%3Fx");
}

#[test]
fn an_api_server_behind_a_plain_proxy_is_read_without_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::without_agent();
    let server = format!("http://{}/cluster/one/", listener.local_addr().unwrap());
    node.write_kubeconfig_for(&server, ServerTrust::Insecure, TOKEN);
    let request = std::thread::scope(|scope| {
        let proxy = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let pod = r#"{"kind":"Pod","metadata":{"name":"web"},"spec":null}"#;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{pod}", pod.len()).unwrap();
            String::from_utf8(request).unwrap()
        });
        assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
        proxy.join().unwrap()
    });
    assert!(request.starts_with("GET /cluster/one/api/v1/namespaces/shop/pods/web HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("Authorization: Bearer {TOKEN}\r\n")), "{request}");
}
