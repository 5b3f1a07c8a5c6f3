//! What we claim about our agent on a real Kubernetes, claim by claim. Each holds or ends the run.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent_api::Kubeconfig;
use agent_api::paths::{self, DEFAULT_RUN_DIR, PLUGIN_NAME};

use crate::cluster::outside_servers;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::kubernetes::manifests::{self, APP_NAMESPACE};
use crate::kubernetes::node::Node;
use crate::kubernetes::{pods, rollout};
use crate::plugin_log;
use crate::report::Progress;
use crate::snapshot::Snapshot;
use crate::traffic::{Server, Subject};

/// Longest wait for anything the agent does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const AGENT_NAMESPACE: &str = "istio-system";
pub(crate) const EXCLUDED_NAMESPACE: &str = "kube-system";
pub(crate) const DAEMON_SET: &str = "daemonset/istio-cni-node";
pub(crate) const CNI_CONFIG: &str = "/etc/cni/net.d";
pub(crate) const CNI_BIN: &str = "/opt/cni/bin";

/// Proves the claims on `node`.
pub struct Story<'a> {
    /// The cluster.
    pub node: &'a Node,
    /// Whether to stop.
    pub interrupt: &'a Interrupt,
    /// Where they are told.
    pub progress: &'a Progress,
}

impl Story<'_> {
    /// From the installation to the uninstall.
    ///
    /// # Errors
    /// The first claim that does not hold.
    pub fn tell(&self) -> Result<(), Failure> {
        let kubectl = &self.node.kubectl;
        kubectl.apply(manifests::NAMESPACES)?;
        kubectl.apply(&manifests::envoy_config())?;
        let (lists, plugins) = (self.snapshot(CNI_CONFIG)?, self.snapshot(CNI_BIN)?);
        let unmeshed = self.pod("before", EXCLUDED_NAMESPACE, None, Server::Direct)?;
        self.progress.say(&format!("without us a pod is Ready after {}", seconds(unmeshed)));

        self.install(&lists)?;
        self.pods()?;
        self.failing_pod()?;
        self.rotate_token()?;
        rollout::update_under_load(self)?;
        rollout::stuck_update(self)?;
        self.uninstall(&lists, &plugins)
    }

    fn install(&self, lists: &Snapshot) -> Result<(), Failure> {
        let before = Instant::now();
        self.node.kubectl.apply(manifests::AGENT)?;
        self.rolled_out()?;
        let took = before.elapsed();
        let changes = lists.differences(&self.snapshot(CNI_CONFIG)?);
        if changes.is_empty() || !self.node.file(CNI_BIN).join(PLUGIN_NAME).is_file() {
            return Failure::unexpected("the agent is Ready, but the plugin or its list entry is not there");
        }
        self.wait_until_loaded(true)?;
        self.progress.say(&format!(
            "agent Ready {} after its manifest was applied; {}; plugin in place",
            seconds(took),
            changes.join(", ")
        ));
        Ok(())
    }

    fn pods(&self) -> Result<(), Failure> {
        self.pod("plain", APP_NAMESPACE, Some("no-istio-proxy"), Server::Direct)?;
        self.pod("excluded", EXCLUDED_NAMESPACE, Some("namespace-excluded"), Server::Direct)?;
        self.pod("web", APP_NAMESPACE, Some(plugin_log::REDIRECTED), Server::Envoy)?;
        Ok(())
    }

    /// Creates a pod, and sends requests in and out. `reason` is the plugin's, `None` when it must not be asked.
    fn pod(&self, name: &str, namespace: &str, reason: Option<&str>, server: Server) -> Result<Duration, Failure> {
        self.interrupt.check()?;
        let meshed = server == Server::Envoy;
        let manifest = if meshed { manifests::injected(name) } else { manifests::plain(namespace, name) };
        let (_, took) = pods::start(self.node, namespace, name, &manifest)?;
        let (pod, log) = pods::look(self.node, namespace, name)?;
        let told = match reason {
            Some(_) => plugin_log::outcome(&self.run_dir(), &pod.name)?.map(|outcome| outcome.reason),
            None => None,
        };
        if told.as_deref() != reason {
            return Failure::unexpected(format!("{}: the plugin's log says {told:?}, not {reason:?}", pod.name));
        }
        let subject = Subject { cri: &self.node.cri, pod: &pod, access_log: meshed.then_some(log) };
        subject.wait_until_ready(self.interrupt)?;
        let inbound = subject.inbound(self.interrupt, &self.node.outside()?)?;
        let outbound = subject.outbound(self.interrupt, &outside_servers(self.node.ipv6))?;
        for (direction, served_by) in [("inbound", inbound), ("outbound", outbound)] {
            if served_by != server {
                return Failure::unexpected(format!("{}: {direction} was {served_by}, not {server}", pod.name));
            }
        }
        self.progress.say(&format!(
            "pod {}: {}, Ready after {}, requests in and out over {} served by {}",
            pod.name,
            reason.unwrap_or("no plugin"),
            seconds(took),
            if pod.addresses.len() > 1 { "IPv4 and IPv6" } else { "IPv4" },
            server.in_words()
        ));
        Ok(took)
    }

    /// A pod that asks for the impossible waits, and both who made it and who runs the cluster can see why.
    fn failing_pod(&self) -> Result<(), Failure> {
        let (name, annotation, value) = ("asks-too-much", "traffic.sidecar.istio.io/excludeOutboundPorts", "some-port");
        let kubectl = &self.node.kubectl;
        kubectl.feed(&["create", "-f", "-"], &manifests::injected_with(name, annotation, value))?;
        let explains = |text: &str| [annotation, value].iter().all(|word| text.contains(word));
        self.interrupt.wait_for("an event that explains the failing pod", PATIENCE, || {
            let events = pods::events(kubectl, APP_NAMESPACE, name).map_err(|failure| failure.to_string())?;
            let found = events.iter().any(|event| event.starts_with("FailedCreatePodSandBox") && explains(event));
            if found { Ok(()) } else { Err(format!("{events:?}")) }
        })?;
        let pod = format!("{APP_NAMESPACE}/{name}");
        self.interrupt.wait_for("a line in the agent's log that explains the failing pod", PATIENCE, || {
            let log = kubectl.run(&["logs", DAEMON_SET, "--namespace", AGENT_NAMESPACE]);
            let log = log.map_err(|failure| failure.to_string())?;
            let found = log.lines().any(|line| line.contains(&pod) && explains(line));
            if found { Ok(()) } else { Err(format!("it holds\n{log}")) }
        })?;
        pods::delete(kubectl, APP_NAMESPACE, &[name])?;
        self.progress.say(&format!("pod {pod} waits; its events and `kubectl logs` of the agent name {annotation}"));
        Ok(())
    }

    /// The kubelet renews a token only when most of its life is over, ten minutes at least. A kubelet that was started
    /// anew has no token in memory: it asks for new ones and swaps them into the volumes as at any other rotation.
    fn rotate_token(&self) -> Result<(), Failure> {
        let before = self.token()?;
        self.node.restart("kubelet")?;
        let start = Instant::now();
        self.interrupt.wait_for("another token in the kubeconfig", PATIENCE * 3, || match self.token() {
            Ok(token) if token == before => Err("it holds the old one".to_owned()),
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.to_string()),
        })?;
        self.progress
            .say(&format!("token rotated by the kubelet: the plugin has it {} later", seconds(start.elapsed())));
        self.pod("web-after-rotation", APP_NAMESPACE, Some(plugin_log::REDIRECTED), Server::Envoy)?;
        Ok(())
    }

    fn uninstall(&self, lists: &Snapshot, plugins: &Snapshot) -> Result<(), Failure> {
        // The kubelet removes the log together with the pod.
        let log = ["logs", "--follow", "--tail=10", DAEMON_SET, "--namespace", AGENT_NAMESPACE];
        let mut last_words = self.node.kubectl.follow(&log, &self.node.logs().join("agent-at-uninstall.log"))?;
        self.node.kubectl.feed(&["delete", "-f", "-"], manifests::AGENT)?;
        self.wait_until_loaded(false)?;
        last_words.wait().map_err(Failure::system("wait for kubectl logs"))?;
        let selector = "--selector=k8s-app=istio-cni-node";
        self.interrupt.wait_for("the agent's pod gone", PATIENCE, || {
            let left = self.node.kubectl.list(&["pods", "--namespace", AGENT_NAMESPACE, selector]);
            match left.map_err(|failure| failure.to_string())?.len() {
                0 => Ok(()),
                some => Err(format!("{some} left")),
            }
        })?;
        for (path, before) in [(CNI_CONFIG, lists), (CNI_BIN, plugins)] {
            let differences = before.differences(&self.snapshot(path)?);
            if !differences.is_empty() {
                return Failure::unexpected(format!("after the uninstall, {path}: {}", differences.join(", ")));
            }
        }
        self.progress.say("uninstalled: CNI directory and plugin directory are byte for byte as before");
        pods::delete(&self.node.kubectl, APP_NAMESPACE, &["--all"])?;
        pods::delete(&self.node.kubectl, EXCLUDED_NAMESPACE, &["before", "excluded"])?;
        self.progress.say("pods from before the uninstall deleted in order");
        Ok(())
    }

    /// Waits until the DaemonSet's pods are of its latest template, and Ready.
    pub(crate) fn rolled_out(&self) -> Result<(), Failure> {
        let wait = ["rollout", "status", DAEMON_SET, "--namespace", AGENT_NAMESPACE, "--timeout=90s"];
        self.node.kubectl.run(&wait).map(drop)
    }

    fn token(&self) -> Result<String, Failure> {
        let path = paths::kubeconfig(&self.run_dir());
        let text = fs::read_to_string(&path).map_err(Failure::system(format!("read {}", path.display())))?;
        let parsed = Kubeconfig::parse(&text);
        parsed.map(|found| found.token).map_err(|e| Failure::Unexpected(format!("{}: {e}", path.display())))
    }

    /// The runtime follows its CNI directory a moment later: waits until its list has our plugin, or not.
    fn wait_until_loaded(&self, wanted: bool) -> Result<(), Failure> {
        let ours = format!("\"{PLUGIN_NAME}\"");
        self.interrupt.wait_for("the runtime's list with or without our plugin", PATIENCE, || {
            let status = self.node.cri.status().map_err(|error| error.to_string())?;
            let loaded = status.info.get("cniconfig").ok_or("the runtime does not tell its CNI lists")?;
            if loaded.replace('\\', "").contains(&ours) == wanted { Ok(()) } else { Err("not reloaded".to_owned()) }
        })
    }

    fn snapshot(&self, path: &str) -> Result<Snapshot, Failure> {
        Snapshot::of(&self.node.file(path))
    }

    /// The run directory that plugin and agent share, seen from the machine.
    pub(crate) fn run_dir(&self) -> PathBuf {
        // `/var/run` is a link to `/run` on every node.
        self.node.file(&DEFAULT_RUN_DIR.replacen("/var", "", 1))
    }
}

/// A time for people.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
