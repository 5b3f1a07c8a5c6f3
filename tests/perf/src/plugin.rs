//! The plugin called as a runtime calls it, beside an empty process and another implementation.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use agent_api::Kubeconfig;
use agent_api::kubeconfig::ServerTrust;
use agent_api::paths::kubeconfig as kubeconfig_path;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::api::ApiServer;
use testkit::netns::Sandbox;
use testkit::process::Call;

use crate::series::{Subject, compare};

const ROUNDS: usize = 60;
const TOKEN: &str = "bench-token";
const ADDRESSES: &[&str] = &["10.0.0.2/24"];

/// A node: API server, run directory, and pods to be.
struct Node {
    run_dir: tempfile::TempDir,
    _api: ApiServer,
}

impl Node {
    fn new() -> Self {
        let run_dir = tempfile::tempdir().expect("a run directory");
        let api = ApiServer::start("127.0.0.1:0".parse().expect("an address")).expect("a stand-in API server");
        api.set_tokens(&[TOKEN]);
        api.set_pod("shop", "web", pod(true));
        api.set_pod("shop", "plain", pod(false));
        let trust = ServerTrust::CaData(STANDARD.encode(api.ca_pem()));
        let kubeconfig = Kubeconfig { server: api.url(), trust, token: TOKEN.to_owned() };
        fs::write(kubeconfig_path(run_dir.path()), kubeconfig.render()).expect("a kubeconfig");
        Self { run_dir, _api: api }
    }

    fn call(&self, command: &str, pod: (&str, &str), netns: &Path) -> Call {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.0, pod.1);
        let env: [(&str, OsString); 7] = [
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("CNI_COMMAND", command.into()),
            ("CNI_CONTAINERID", "c1".into()),
            ("CNI_NETNS", netns.into()),
            ("CNI_IFNAME", "eth0".into()),
            ("CNI_PATH", "/opt/cni/bin".into()),
            ("CNI_ARGS", args.into()),
        ];
        let stdin = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "istio-cni", "plugin_log_level": "info",
            "cni_agent_run_dir": self.run_dir.path(), "ambient_enabled": false, "enablement_selectors": [],
            "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system", "native_nftables": false,
            "enable_ambient_detection_retry": false,
            "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": netns}],
                           "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}]},
        });
        Call { env: env.map(|(name, value)| (name.to_owned(), value)).to_vec(), stdin: stdin.to_string() }
    }
}

fn pod(injected: bool) -> Value {
    let mut containers = vec![json!({"name": "app", "image": "registry.example/shop/app:1"})];
    let mut annotations = json!({"prometheus.io/scrape": "true"});
    if injected {
        containers.push(json!({"name": "istio-proxy", "args": ["proxy", "sidecar"],
                               "securityContext": {"runAsUser": 1337, "runAsGroup": 1337}}));
        annotations["sidecar.istio.io/status"] = "{}".into();
    }
    // About as large as pods are.
    let filler: Vec<Value> =
        (0..60).map(|n| json!({"name": format!("SETTING_{n}"), "value": "x".repeat(100)})).collect();
    containers[0]["env"] = filler.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop", "annotations": annotations},
           "spec": {"containers": containers}})
}

fn checked((took, output): (Duration, Output), what: &str) -> Duration {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
    took
}

/// Prints the tables.
pub fn measure(plugin: &Path, empty: &Path, peer: Option<&Path>) {
    let node = Node::new();
    let nothing = Call { env: Vec::new(), stdin: String::new() };
    let everyone: Vec<(&str, PathBuf)> = [("istio-cni", plugin)]
        .into_iter()
        .chain(peer.map(|it| ("peer", it)))
        .map(|(name, path)| (name, path.to_owned()))
        .collect();
    let against_empty = |title: &str, calls: &dyn Fn(usize) -> (Option<Sandbox>, Call)| {
        let mut subjects = vec![Subject::new("an empty static process", |_| nothing.time(empty).0)];
        for (name, path) in &everyone {
            subjects.push(Subject::new(*name, move |round| {
                let (_sandbox, call) = calls(round);
                checked(call.time(path), title)
            }));
        }
        compare(title, ROUNDS, subjects);
    };
    let here = Path::new("/var/run/netns/none");
    against_empty("VERSION", &|_| {
        (None, Call { env: vec![("CNI_COMMAND".to_owned(), "VERSION".into())], stdin: String::new() })
    });
    against_empty("DEL", &|_| (None, node.call("DEL", ("shop", "web"), here)));
    against_empty("ADD, excluded namespace", &|_| (None, node.call("ADD", ("kube-system", "dns"), here)));
    against_empty("ADD, pod outside the mesh, read from the API server", &|_| {
        (None, node.call("ADD", ("shop", "plain"), here))
    });
    against_empty("ADD, sidecar pod, read from the API server, rules applied", &|_| {
        let sandbox = Sandbox::with_addresses(ADDRESSES);
        let call = node.call("ADD", ("shop", "web"), &sandbox.path());
        (Some(sandbox), call)
    });

    println!("one ADD of a sidecar pod");
    for (name, path) in &everyone {
        let sandbox = Sandbox::with_addresses(ADDRESSES);
        let observed = node.call("ADD", ("shop", "web"), &sandbox.path()).observe(path);
        println!(
            "  {name:12} {} programs and {} processes started, {} KiB at its peak",
            observed.programs, observed.processes, observed.peak
        );
    }
}
