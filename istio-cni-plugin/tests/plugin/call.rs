//! One call of the plugin, and the node it finds.

use std::io::{Cursor, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agent_api::Kubeconfig;
use agent_api::kubeconfig::ServerTrust;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use istio_cni_plugin::{ABOUT, IstioCni, config::Environment, pod_get::Budget};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::agent::{Reply, UnixHttp};
use testkit::api::ApiServer;

pub const TOKEN: &str = "header.payload.signature";

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The only thing on stdout, which must be one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Code and message of the error object, which must be all of stdout.
    pub fn error(&self) -> (u64, String) {
        let object = self.json();
        assert_eq!(self.exit, 1, "{self:?}");
        assert!(object["cniVersion"].is_string(), "{object}");
        (object["code"].as_u64().expect("a code"), object["msg"].as_str().expect("a message").to_owned())
    }

    /// Asserts that the pod was passed with this result, and gives the reason in the log.
    pub fn reason(&self, result: &Value) -> String {
        assert_eq!((self.exit, &self.json()), (0, result), "{self:?}");
        let entries = self.stderr.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON log"));
        entries.filter_map(|entry| entry["reason"].as_str().map(str::to_owned)).next_back().unwrap_or_default()
    }
}

/// The plugin's side of a node.
pub struct Node {
    directory: TempDir,
    pub conf: Value,
    pub env: Vec<(String, String)>,
}

impl Node {
    /// A node whose run directory is empty, as after a reboot. The sandbox is that of pod `shop/web`.
    pub fn without_agent() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "istio-cni", "plugin_log_level": "info",
            "cni_agent_run_dir": directory.path(), "ambient_enabled": false, "enablement_selectors": [],
            "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system", "native_nftables": false,
            "enable_ambient_detection_retry": false,
            "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "vendor": 1}]}
        });
        let mut node = Self { directory, conf, env: Vec::new() };
        for (key, value) in [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_NETNS", "/var/run/netns/none-of-this-name"),
            ("CNI_IFNAME", "eth0"),
        ] {
            node.set(key, value);
        }
        node.pod("shop", "web");
        node
    }

    /// A node whose agent has written a kubeconfig for `api`.
    pub fn with_agent(api: &ApiServer) -> Self {
        let node = Self::without_agent();
        node.write_kubeconfig(api, TOKEN);
        node
    }

    pub fn write_kubeconfig(&self, api: &ApiServer, token: &str) {
        self.write_kubeconfig_for(&api.url(), ServerTrust::CaData(STANDARD.encode(api.ca_pem())), token);
    }

    pub fn write_kubeconfig_for(&self, server: &str, trust: ServerTrust, token: &str) {
        let kubeconfig = Kubeconfig { server: server.to_owned(), trust, token: token.to_owned() };
        std::fs::write(self.kubeconfig(), kubeconfig.render()).unwrap();
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.run_dir().join("istio-cni-kubeconfig")
    }

    pub fn run_dir(&self) -> &Path {
        self.directory.path()
    }

    pub fn set(&mut self, key: &str, value: &str) {
        self.unset(key);
        self.env.push((key.to_owned(), value.to_owned()));
    }

    pub fn unset(&mut self, key: &str) {
        self.env.retain(|(known, _)| known != key);
    }

    /// Whose sandbox it is, in the way of containerd.
    pub fn pod(&mut self, namespace: &str, name: &str) {
        let args = format!("K8S_POD_UID=u;K8S_POD_NAME={name};K8S_POD_NAMESPACE={namespace};IgnoreUnknown=1");
        self.set("CNI_ARGS", &args);
    }

    pub fn prev_result(&self) -> Value {
        self.conf["prevResult"].clone()
    }

    /// A stand-in for the agent on its socket for questions.
    pub fn agent(&self, reply: Reply) -> UnixHttp {
        UnixHttp::start(&agent_api::paths::agent_socket(self.run_dir()), reply).unwrap()
    }

    /// A stand-in for the agent on its socket for log entries.
    pub fn log_sink(&self) -> UnixHttp {
        UnixHttp::start(&agent_api::paths::log_socket(self.run_dir()), Reply::empty()).unwrap()
    }

    /// Runs the binary.
    pub fn call(&self) -> Outcome {
        self.call_with(&self.conf.to_string())
    }

    /// Starts the binary, with no PATH and nothing else of ours in its environment.
    pub fn spawn(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_istio-cni"))
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub fn call_with(&self, stdin: &str) -> Outcome {
        let mut child = self.spawn();
        // A plugin that refuses its environment does not read its input.
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { exit: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The same call in this process, with little patience towards an API server that keeps failing.
    pub fn call_impatiently(&self) -> Outcome {
        self.call_with_patience(Duration::from_secs(5))
    }

    /// The same, with this patience for one request.
    pub fn call_with_patience(&self, request: Duration) -> Outcome {
        let budget = Budget {
            agent: Duration::from_millis(200),
            enrolment: Duration::from_millis(500),
            total: Duration::from_millis(300),
            request,
            not_found: Duration::from_millis(100),
            first_pause: Duration::from_millis(5),
            longest_pause: Duration::from_millis(20),
        };
        let plugin = IstioCni::new(Environment::default()).with_budget(budget);
        let mut conf = self.conf.clone();
        conf["plugin_log_level"] = "none".into();
        let env = |name: &str| self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let stdin = Cursor::new(conf.to_string().into_bytes());
        let exit = cni::dispatch::run(ABOUT, &env, stdin, &mut stdout, &mut stderr, &plugin);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { exit: exit.into(), stdout: text(stdout), stderr: text(stderr) }
    }
}

/// A stand-in API server on loopback that knows pod `shop/web` as `pod`.
pub fn api_with(pod: Value) -> ApiServer {
    let api = ApiServer::start(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    api.set_tokens(&[TOKEN]);
    api.set_pod("shop", "web", pod);
    api
}

/// A pod outside the mesh.
pub fn plain_pod() -> Value {
    json!({"spec": {"containers": [{"name": "app"}]}})
}

/// A pod that the injector was at, with these further annotations.
pub fn sidecar_pod(annotations: &[(&str, &str)]) -> Value {
    let mut pod = json!({"metadata": {"annotations": {"sidecar.istio.io/status": "{}"}},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}]}});
    for (key, value) in annotations {
        pod["metadata"]["annotations"][key] = (*value).into();
    }
    pod
}
