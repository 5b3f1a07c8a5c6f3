//! The node agent as a user runs it: a pod from its image, with directories of the node mounted where Istio's chart
//! mounts them, and the same environment.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use agent_api::Kubeconfig;
use agent_api::paths::{self, PLUGIN_NAME};
use testkit::containerd::API_ADDRESS;

use crate::cluster::{AGENT_NAMESPACE, API_PORT, Cluster};
use crate::failure::Failure;
use crate::images::{AGENT_IMAGE, AGENT_PROGRAM};
use crate::interrupt::Interrupt;
use crate::pods::{Container, NODE, Pod, RunningPod, Volume};

/// Namespace whose pods the agent is told to leave alone.
pub const EXCLUDED_NAMESPACE: &str = "kube-system";

const HEALTH_PORT: u16 = 8000;
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the agent may take to uninstall before it is killed.
const GRACE: Duration = Duration::from_secs(20);

/// Starts the agent's pod and waits until it says it is ready and the runtime has loaded the list with our plugin.
///
/// # Errors
/// With the agent's last words when it does not become ready.
pub fn start(cluster: &Cluster, interrupt: &Interrupt) -> Result<RunningPod, Failure> {
    let pod = cluster.kubelet().start(&pod(cluster))?;
    let Some(address) = pod.addresses.first().and_then(|ip| ip.parse().ok()) else {
        return Failure::unexpected("the agent's pod has no address");
    };
    let readiness = SocketAddr::new(address, HEALTH_PORT);
    let network = cluster.node.network()?;
    interrupt
        .wait_for("agent ready", PATIENCE, || {
            let state = cluster.cri.container_status(container(&pod).map_err(|e| e.to_string())?);
            let state = state.map_err(|e| e.to_string())?;
            let answer = network.run(|| e2e_guest::ask("GET", readiness, "/readyz")).map_err(|e| e.to_string())?;
            match answer {
                Ok(reply) if reply.status == 200 => Ok(()),
                Ok(reply) => Err(format!("/readyz says {} {}", reply.status, reply.body.trim())),
                Err(error) => Err(format!("{error}; container state {}, exit code {}", state.state, state.exit_code)),
            }
        })
        .map_err(|failure| with_last_words(&pod, failure))?;
    wait_until_loaded(cluster, interrupt, true)?;
    Ok(pod)
}

/// Waits until the plugin's kubeconfig holds `token`.
///
/// # Errors
/// When it does not come, with the agent's last words.
pub fn wait_for_token(cluster: &Cluster, interrupt: &Interrupt, pod: &RunningPod, token: &str) -> Result<(), Failure> {
    let path = paths::kubeconfig(&cluster.run_dir());
    let look = || {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let found = Kubeconfig::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        if found.token == token { Ok(()) } else { Err("it still holds another token".to_owned()) }
    };
    interrupt.wait_for("new token in the kubeconfig", PATIENCE, look).map_err(|failure| with_last_words(pod, failure))
}

/// Stops the agent's container as a kubelet does, and removes its pod. The agent must end by itself and in order.
///
/// # Errors
/// When it had to be killed or ended with an error.
pub fn stop(cluster: &Cluster, interrupt: &Interrupt, pod: &RunningPod) -> Result<(), Failure> {
    let id = container(pod)?;
    cluster.cri.stop_container(id, GRACE)?;
    let status = cluster.cri.container_status(id)?;
    if status.exit_code != 0 {
        let text = format!("the agent ended with exit code {} after SIGTERM", status.exit_code);
        return Err(with_last_words(pod, Failure::Unexpected(text)));
    }
    wait_until_loaded(cluster, interrupt, false)?;
    cluster.kubelet().delete(pod)
}

fn pod(cluster: &Cluster) -> Pod {
    let volume = |node: std::path::PathBuf, container: &str, readonly: bool| Volume {
        node,
        container: container.to_owned(),
        readonly,
    };
    let run_dir = cluster.run_dir().display().to_string();
    let environment = [
        ("KUBERNETES_SERVICE_HOST", API_ADDRESS),
        ("KUBERNETES_SERVICE_PORT", &API_PORT.to_string()),
        ("CNI_AGENT_RUN_DIR", &run_dir),
        ("EXCLUDE_NAMESPACES", EXCLUDED_NAMESPACE),
        ("POD_NAMESPACE", AGENT_NAMESPACE),
        ("POD_NAME", "istio-cni-node-7xk2p"),
        ("NODE_NAME", NODE),
        ("REPAIR_ENABLED", "false"),
        // There is no DaemonSet here whose absence would say that this is an uninstall.
        ("AMBIENT_DISABLE_SAFE_UPGRADE", "true"),
    ];
    Pod {
        namespace: AGENT_NAMESPACE.to_owned(),
        name: "istio-cni-node-7xk2p".to_owned(),
        labels: [("k8s-app".to_owned(), "istio-cni-node".to_owned())].into(),
        containers: vec![Container {
            name: AGENT_CONTAINER.to_owned(),
            image: AGENT_IMAGE.to_owned(),
            command: vec![AGENT_PROGRAM.to_owned(), "--log_output_level=info,cni-plugin:debug".to_owned()],
            environment: environment.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            user: 0,
            capabilities: vec!["DAC_OVERRIDE".to_owned()],
            volumes: vec![
                volume(cluster.node.cni_config(), "/host/etc/cni/net.d", false),
                volume(cluster.node.cni_bin(), "/host/opt/cni/bin", false),
                volume(cluster.run_dir(), &run_dir, false),
                volume(
                    cluster.service_account.borrow().directory().to_owned(),
                    "/var/run/secrets/kubernetes.io/serviceaccount",
                    true,
                ),
            ],
            ..Container::default()
        }],
        ..Pod::default()
    }
}

const AGENT_CONTAINER: &str = "install-cni";

fn container(pod: &RunningPod) -> Result<&str, Failure> {
    pod.container(AGENT_CONTAINER)
}

/// The runtime watches its CNI directory and follows a moment later: waits until its list has our plugin, or not.
fn wait_until_loaded(cluster: &Cluster, interrupt: &Interrupt, wanted: bool) -> Result<(), Failure> {
    let type_is_ours = format!("\"{PLUGIN_NAME}\"");
    let what = if wanted { "plugin in the runtime's list" } else { "plugin out of the runtime's list" };
    interrupt.wait_for(what, PATIENCE, || {
        let status = cluster.cri.status().map_err(|error| error.to_string())?;
        let loaded = status.info.get("cniconfig").ok_or("the runtime does not tell its CNI lists")?;
        if loaded.replace('\\', "").contains(&type_is_ours) == wanted { Ok(()) } else { Err("not reloaded".to_owned()) }
    })
}

fn with_last_words(pod: &RunningPod, failure: Failure) -> Failure {
    if matches!(failure, Failure::Interrupted) {
        return failure;
    }
    let text = fs::read_to_string(pod.logs.join(format!("{AGENT_CONTAINER}.log"))).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let tail = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default().join("\n  ");
    Failure::Unexpected(format!("{failure}; the agent's last words:\n  {tail}"))
}
