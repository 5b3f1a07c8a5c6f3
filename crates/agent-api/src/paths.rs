//! Names of files that both sides know. All of them equal Istio's.

use std::path::{Path, PathBuf};

/// `type` of the plugin in a CNI list, and the file name of its binary.
pub const PLUGIN_NAME: &str = "istio-cni";
/// File name of the rule engine's command, shipped beside the plugin.
pub const IPTABLES_NAME: &str = "istio-iptables";
/// Default run directory; the same path in the agent's container and on the host.
pub const DEFAULT_RUN_DIR: &str = "/var/run/istio-cni";
/// File name of the plugin's kubeconfig in the run directory.
pub const KUBECONFIG_NAME: &str = "istio-cni-kubeconfig";
/// File name of the plugin's rolling log in the run directory.
pub const PLUGIN_LOG_NAME: &str = "istio-cni.log";
/// File name of the socket on which the agent answers questions about pods, in the run directory. It is ours: an agent
/// without it is one that cannot answer.
pub const AGENT_SOCKET_NAME: &str = "agent.sock";
/// File name of the socket that takes ambient pods, in the run directory.
pub const EVENT_SOCKET_NAME: &str = "pluginevent.sock";
/// File name of the socket that takes log entries, in the run directory.
pub const LOG_SOCKET_NAME: &str = "log.sock";
/// Prefix of the agent's own pods: the name of the DaemonSet is part of the contract with the plugin.
pub const AGENT_POD_PREFIX: &str = "istio-cni-node-";

/// Path of the plugin's kubeconfig in `run_dir`.
pub fn kubeconfig(run_dir: &Path) -> PathBuf {
    run_dir.join(KUBECONFIG_NAME)
}

/// Path of the plugin's rolling log in `run_dir`.
pub fn plugin_log(run_dir: &Path) -> PathBuf {
    run_dir.join(PLUGIN_LOG_NAME)
}

/// Path of the socket for questions in `run_dir`.
pub fn agent_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(AGENT_SOCKET_NAME)
}

/// Path of the socket for ambient pods in `run_dir`.
pub fn event_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(EVENT_SOCKET_NAME)
}

/// Path of the socket for log entries in `run_dir`.
pub fn log_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(LOG_SOCKET_NAME)
}
