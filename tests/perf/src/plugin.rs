//! The plugin called as a runtime calls it, beside an empty process and another implementation.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use agent_api::Kubeconfig;
use agent_api::kubeconfig::ServerTrust;
use agent_api::paths::kubeconfig as kubeconfig_path;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::api::ApiServer;
use testkit::netns::Sandbox;
use testkit::process::Call;

use crate::agent::{Agent, NODE};
use crate::series::{Subject, compare};

const ROUNDS: usize = 60;
const TOKEN: &str = "bench-token";
const ADDRESSES: &[&str] = &["10.0.0.2/24"];

/// A node: API server, run directory, and pods to be.
struct Node {
    run_dir: tempfile::TempDir,
    api: ApiServer,
    _agent: Option<Agent>,
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
        Self { run_dir, api, _agent: None }
    }

    /// The same with the agent `program`, which knows the pods.
    fn with_agent(program: &Path) -> Self {
        let node = Self::new();
        let agent = Agent::start(program, node.run_dir.path(), &node.api, TOKEN);
        Self { _agent: Some(agent), ..node }
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
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": annotations},
           "spec": {"nodeName": NODE, "containers": containers}})
}

fn checked((took, output): (Duration, Output), what: &str) -> Duration {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
    took
}

/// A program that is measured.
struct Program {
    name: &'static str,
    path: PathBuf,
    node: Node,
}

/// Prints the tables. A peer gets everything but an agent that answers questions, which only our plugin asks.
pub fn measure(plugin: &Path, agent: &Path, empty: &Path, peer: Option<&Path>) {
    let asking = Program { name: "istio-cni, agent", path: plugin.to_owned(), node: Node::with_agent(agent) };
    let reading = Program { name: "istio-cni, API server", path: plugin.to_owned(), node: Node::new() };
    let peer = peer.map(|path| Program { name: "peer, API server", path: path.to_owned(), node: Node::new() });
    let everyone = || [&asking, &reading].into_iter().chain(&peer);
    let nothing = Call { env: Vec::new(), stdin: String::new() };
    let against_empty = |title: &str, programs: &[&Program], calls: &dyn Fn(&Node) -> Call| {
        let mut subjects = vec![Subject::new("an empty static process", |_| nothing.time(empty).0)];
        for program in programs {
            subjects
                .push(Subject::new(program.name, move |_| checked(calls(&program.node).time(&program.path), title)));
        }
        compare(title, ROUNDS, subjects);
    };
    let all: Vec<&Program> = everyone().collect();
    let without_agent: Vec<&Program> = std::iter::once(&reading).chain(&peer).collect();
    let here = Path::new("/var/run/netns/none");
    against_empty("VERSION", &without_agent, &|_| Call {
        env: vec![("CNI_COMMAND".to_owned(), "VERSION".into())],
        stdin: String::new(),
    });
    against_empty("DEL", &all, &|node| node.call("DEL", ("shop", "web"), here));
    against_empty("ADD, excluded namespace", &without_agent, &|node| node.call("ADD", ("kube-system", "dns"), here));
    against_empty("ADD, pod outside the mesh", &all, &|node| node.call("ADD", ("shop", "plain"), here));
    // Made before and looked at after the series: the kernel is busy with a namespace for a while after either.
    let sandboxes: Vec<Sandbox> = (0..ROUNDS * all.len()).map(|_| Sandbox::with_addresses(ADDRESSES)).collect();
    let next = RefCell::new(sandboxes.iter());
    against_empty("ADD, sidecar pod, rules applied", &all, &|node| {
        let sandbox = next.borrow_mut().next().expect("a namespace for each round");
        node.call("ADD", ("shop", "web"), &sandbox.path())
    });
    sandboxes.iter().for_each(verify);
    drop(sandboxes);

    let together = |program: &Program, count: usize| {
        let sandboxes: Vec<Sandbox> = (0..count).map(|_| Sandbox::with_addresses(ADDRESSES)).collect();
        let calls: Vec<Call> =
            sandboxes.iter().map(|sandbox| program.node.call("ADD", ("shop", "web"), &sandbox.path())).collect();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for call in &calls {
                scope.spawn(|| checked(call.time(&program.path), "ADD"));
            }
        });
        let took = started.elapsed();
        sandboxes.iter().for_each(verify);
        took
    };
    let eight = all.iter().map(|program| Subject::new(program.name, move |_| together(program, 8)));
    compare("eight sidecar ADDs at once, all of them", ROUNDS / 4, eight.collect());
    let sixty_four = [&asking, &reading].map(|program| Subject::new(program.name, move |_| together(program, 64)));
    compare("64 sidecar ADDs at once, all of them, rules verified", 3, sixty_four.into());

    println!("one ADD of a sidecar pod");
    for program in everyone() {
        let sandbox = Sandbox::with_addresses(ADDRESSES);
        program.node.api.clear_requests();
        let observed = program.node.call("ADD", ("shop", "web"), &sandbox.path()).observe(&program.path);
        println!(
            "  {:44} {} programs and {} processes started, {} requests to the API server, {} KiB at its peak",
            program.name,
            observed.programs,
            observed.processes,
            program.node.api.requests().len(),
            observed.peak
        );
    }
}

/// A sidecar ADD has left its rules.
fn verify(sandbox: &Sandbox) {
    let rules = sandbox.saved_rules();
    assert!(rules.contains("-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006"), "no rules:\n{rules}");
}
