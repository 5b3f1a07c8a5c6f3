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
