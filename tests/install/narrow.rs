//! The plugin has a token of a service account of its own, which the agent asks for and renews.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod client;
mod cluster;
mod node;

use agent_api::logs::LOG_PATH;
use agent_api::{Kubeconfig, paths};
use client::post;
use cluster::Cluster;
use install_cni::install::token::subject;
use node::{Node, eventually};
use serde_json::json;
use testkit::api::{ApiServer, Behaviour};

const SUBJECT: &str = "system:serviceaccount:istio-system:plugin";

/// A node whose plugin gets tokens of the account `plugin`, which live this long.
fn start(seconds: u64, accepted: bool) -> Cluster {
    Cluster::start_with(|node, api| {
        with_account(node);
        api.set_service_account("istio-system", "plugin", seconds, accepted);
    })
}

fn with_account(node: &mut Node) {
    node.config.plugin.pod_namespace = "istio-system".to_owned();
    node.config.agent.plugin_service_account = Some("plugin".to_owned());
}

fn token(node: &Node) -> String {
    std::fs::read_to_string(node.kubeconfig())
        .map_or_else(|_| String::new(), |text| Kubeconfig::parse(&text).unwrap().token)
}

fn is_narrow(node: &Node) -> bool {
    subject(&token(node)).as_deref() == Some(SUBJECT)
}

/// What a person is told about it, if anything.
fn concern(cluster: &Cluster) -> Option<String> {
    cluster.agent.health.concerns().filter(|concerns| concerns.contains("service account plugin"))
}

#[track_caller]
fn becomes_own(node: &Node, own: &str) {
    eventually(|| token(node) == own, || format!("{:?}", subject(&token(node))));
}

fn token_requests(api: &ApiServer) -> usize {
    api.requests().iter().filter(|request| request.path.ends_with("/serviceaccounts/plugin/token?")).count()
}

#[test]
fn the_agents_own_token_is_never_in_the_kubeconfig_while_there_is_a_narrower_one() {
    let cluster = start(3600, true);
    let first = token(&cluster.node);
    assert!(is_narrow(&cluster.node), "{first}");
    assert!(concern(&cluster).is_none());
    // It was tried out before it was written.
    let requests = cluster.api.requests();
    assert!(requests.iter().any(|request| request.path.starts_with("/api/v1/namespaces/istio-system/pods/")));
    let before = node::identity(&cluster.node.kubeconfig());
    cluster.node.rotate("token-2");
    // A pass has seen it, for it sees this.
    std::fs::remove_file(cluster.node.plugin()).unwrap();
    eventually(|| cluster.node.plugin().exists(), || "no pass".to_owned());
    assert_eq!(node::identity(&cluster.node.kubeconfig()), before);
    assert_eq!(token_requests(&cluster.api), 1, "{:#?}", cluster.api.requests());
}

#[test]
fn a_token_is_renewed_before_it_ends_and_kept_while_there_is_no_successor() {
    let cluster = start(4, true);
    let first = token(&cluster.node);
    eventually(|| token(&cluster.node) != first, || "not renewed".to_owned());
    assert!(is_narrow(&cluster.node));
    cluster.api.set_behaviour(Behaviour::Status(500));
    let second = token(&cluster.node);
    eventually(|| concern(&cluster).is_some(), || "nobody is told".to_owned());
    assert!([&second, "token-1"].contains(&token(&cluster.node).as_str()));
    becomes_own(&cluster.node, "token-1");
    assert!(cluster.agent.health.missing().is_none(), "the node works");
    cluster.node.rotate("token-2");
    becomes_own(&cluster.node, "token-2");
    cluster.api.set_behaviour(Behaviour::Normal);
    eventually(|| is_narrow(&cluster.node), || token(&cluster.node));
    eventually(|| concern(&cluster).is_none(), || format!("{:?}", concern(&cluster)));
}

#[test]
fn a_token_that_a_plugin_finds_refused_is_renewed_at_once() {
    let cluster = start(3600, true);
    let first = token(&cluster.node);
    let line = r#"{"level":"debug","time":"2020-01-01T00:00:00Z","msg":"m","credentials":"refused"}"#;
    let tell = || post(&paths::log_socket(&cluster.node.config.dirs.run), LOG_PATH, &json!([line]).to_string());
    // Until the first one is old enough not to be taken for its successor.
    eventually(
        || {
            tell();
            token(&cluster.node) != first
        },
        || "not renewed".to_owned(),
    );
    assert!(is_narrow(&cluster.node));
}

#[test]
fn a_token_that_is_no_good_is_not_written() {
    let refused = start(3600, false);
    let no_account = Cluster::start_with(|node, _| with_account(node));
    let no_server = Cluster::start_with(|node, _| {
        with_account(node);
        node.config.kubeconfig.port = "1".to_owned();
    });
    for cluster in [&refused, &no_account, &no_server] {
        assert_eq!(token(&cluster.node), "token-1");
        assert!(concern(cluster).is_some());
    }
    assert!(concern(&refused).unwrap().contains("is not accepted"));
    refused.api.set_service_account("istio-system", "plugin", 3600, true);
    eventually(|| is_narrow(&refused.node), || token(&refused.node));
}

#[test]
fn a_successor_goes_on_with_the_token_it_finds() {
    let mut cluster = start(3600, true);
    let first = token(&cluster.node);
    let (list, kubeconfig) = (cluster.node.read("10-net.conflist"), std::fs::read(cluster.node.kubeconfig()).unwrap());
    cluster.agent.stop();
    // As an agent leaves it that was killed.
    cluster.node.write("10-net.conflist", &list);
    std::fs::create_dir_all(&cluster.node.config.dirs.run).unwrap();
    std::fs::write(cluster.node.kubeconfig(), kubeconfig).unwrap();
    cluster.api.set_behaviour(Behaviour::Status(503));
    cluster.agent = cluster.node.start_ready();
    eventually(|| concern(&cluster).is_some(), || "it was not renewed, but nobody is told".to_owned());
    assert_eq!(token(&cluster.node), first);
}
