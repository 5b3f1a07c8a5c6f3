//! An API server that does not give the pod away: the pod must not start, whatever the reason.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use agent_api::kubeconfig::ServerTrust;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use testkit::api::{ApiServer, Behaviour};
use testkit::netns::{Sandbox, available};

use crate::call::{Node, TOKEN, api_with, sidecar_pod};

/// The message, after asserting that the pod was not let through and that at least three attempts were made.
fn refusal(api: &ApiServer, code: u64) -> String {
    refusal_within(api, code, Duration::from_secs(5))
}

/// The same, with this patience for one request.
fn refusal_within(api: &ApiServer, code: u64, patience: Duration) -> String {
    let node = Node::with_agent(api);
    let (got, message) = node.call_with_patience(patience).error();
    assert_eq!(got, code, "{message}");
    assert!(!message.contains(TOKEN), "{message}");
    assert!(api.requests().len() >= 3, "{:?}", api.requests());
    message
}

#[test]
fn refused_credentials_name_the_request_and_the_answer() {
    for (status, hint) in [(401, "istio-cni-node"), (403, "ClusterRole")] {
        let api = api_with(sidecar_pod(&[]));
        api.set_behaviour(Behaviour::Status(status));
        let message = refusal(&api, 101);
        for part in ["GET", "/api/v1/namespaces/shop/pods/web", &status.to_string(), &api.url(), hint] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn an_expired_token_is_told() {
    let api = api_with(sidecar_pod(&[]));
    api.set_tokens(&["another"]);
    assert!(refusal(&api, 101).contains("401: Unauthorized"));
}

#[test]
fn an_unknown_pod_is_told() {
    let api = api_with(sidecar_pod(&[]));
    api.remove_pod("shop", "web");
    assert!(refusal(&api, 102).contains("404"));
}

#[test]
fn a_failing_api_server_does_not_let_a_pod_start() {
    for (behaviour, word) in [
        (Behaviour::Status(500), "500"),
        (Behaviour::Status(429), "429"),
        (Behaviour::Status(302), "302"),
        (Behaviour::Close, "incomplete"),
        (Behaviour::Garbage, "not HTTP"),
        (Behaviour::BadJson, "not a Pod"),
        (Behaviour::Truncated, "incomplete"),
        (Behaviour::Huge(9 * 1024 * 1024), "larger"),
    ] {
        let api = api_with(sidecar_pod(&[]));
        api.set_behaviour(behaviour.clone());
        let message = refusal(&api, 11);
        assert!(message.contains(word), "{behaviour:?}: {message}");
    }
}

#[test]
fn an_api_server_that_never_answers_does_not_hold_a_pod_for_ever() {
    let api = api_with(sidecar_pod(&[]));
    api.set_behaviour(Behaviour::Hang);
    let message = refusal_within(&api, 11, Duration::from_millis(800));
    assert!(message.contains("in time"), "{message}");
}

#[test]
fn something_else_that_answers_with_json_is_not_taken_for_a_pod_without_sidecar() {
    let api = api_with(serde_json::json!({"kind": "PodList", "items": []}));
    assert!(refusal(&api, 11).contains("not a Pod"));
}

#[test]
fn a_port_where_nobody_listens_is_named() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let node = Node::without_agent();
    node.write_kubeconfig_for(&format!("https://{address}"), ServerTrust::Insecure, TOKEN);
    let (code, message) = node.call_impatiently().error();
    assert!(code == 11 && message.contains(&address.to_string()) && message.contains("refused"), "{message}");
}

#[test]
fn a_server_of_another_authority_is_not_trusted() {
    let (api, other) = (api_with(sidecar_pod(&[])), api_with(sidecar_pod(&[])));
    let node = Node::without_agent();
    node.write_kubeconfig_for(&api.url(), ServerTrust::CaData(STANDARD.encode(other.ca_pem())), TOKEN);
    let (code, message) = node.call_impatiently().error();
    assert!(code == 11 && message.contains("TLS") && message.contains("authority"), "{message}");
    assert_eq!(api.requests(), []);
}

#[test]
fn two_authorities_in_one_bundle_are_both_trusted() {
    let (api, other) = (api_with(crate::call::plain_pod()), api_with(sidecar_pod(&[])));
    let node = Node::without_agent();
    let bundle = format!("{}{}", other.ca_pem(), api.ca_pem());
    node.write_kubeconfig_for(&api.url(), ServerTrust::CaData(STANDARD.encode(bundle)), TOKEN);
    assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
}

#[test]
fn a_name_that_does_not_resolve_is_named() {
    if !available() {
        return;
    }
    let node = Node::without_agent();
    node.write_kubeconfig_for("https://api.invalid:443", ServerTrust::Insecure, TOKEN);
    // In a namespace without a way out, so that nobody else is asked.
    let outcome = Sandbox::new().run(|| node.call_with_patience(Duration::from_millis(200)));
    let (code, message) = outcome.error();
    assert!(code == 11 && message.contains("api.invalid"), "{message}");
}
