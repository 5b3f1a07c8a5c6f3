//! A stand-in API server, and an agent on a node of its cluster.

#![allow(dead_code)] // Each test program uses its own part of this.

use std::path::{Path, PathBuf};

use agent_api::ask::VERDICT_PATH;
use agent_api::paths;
use serde_json::{Value, json};
use testkit::api::ApiServer;

use crate::client::ask;
use crate::node::{Agent, LIST, Node, eventually};

/// A node of a cluster, with an agent that is ready.
pub struct Cluster {
    pub node: Node,
    pub api: ApiServer,
    pub agent: Agent,
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_with(|_, _| {})
    }

    pub fn start_with(prepare: impl Fn(&mut Node, &ApiServer)) -> Self {
        let api = ApiServer::start(([127, 0, 0, 1], 0).into()).unwrap();
        let mut node = Node::new();
        "127.0.0.1".clone_into(&mut node.config.kubeconfig.host);
        node.config.kubeconfig.port = api.addr().port().to_string();
        api.ca_pem().clone_into(&mut node.ca);
        node.rotate("token-1");
        node.write("10-net.conflist", LIST);
        prepare(&mut node, &api);
        let agent = node.start_ready();
        Self { node, api, agent }
    }

    pub fn agent_socket(&self) -> PathBuf {
        paths::agent_socket(&self.node.config.dirs.run)
    }

    pub fn log_socket(&self) -> PathBuf {
        paths::log_socket(&self.node.config.dirs.run)
    }

    pub fn verdict(&self, namespace: &str, pod: &str, uid: &str) -> Value {
        verdict(&self.agent_socket(), namespace, pod, uid)
    }

    /// Waits for this verdict, or for this reason for one.
    #[track_caller]
    pub fn comes_to_say(&self, namespace: &str, pod: &str, uid: &str, word: &str) {
        eventually(
            || {
                let answer = self.verdict(namespace, pod, uid);
                answer["verdict"] == word || answer["reason"] == word
            },
            || format!("{:?}, not {word}", self.verdict(namespace, pod, uid)),
        );
    }
}

pub fn verdict(socket: &Path, namespace: &str, pod: &str, uid: &str) -> Value {
    ask(socket, VERDICT_PATH, &json!({"verb": "ADD", "namespace": namespace, "pod": pod, "uid": uid}))
}

/// A pod of the mesh on the node.
pub fn pod(uid: &str, annotations: &Value) -> Value {
    let mut metadata = json!({"uid": uid, "annotations": {"sidecar.istio.io/status": "{}"}});
    for (key, value) in annotations.as_object().unwrap() {
        metadata["annotations"][key] = value.clone();
    }
    json!({"metadata": metadata, "spec": {"nodeName": "node-1",
        "containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}]}})
}
