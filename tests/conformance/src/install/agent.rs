//! The installer on a made-up node: what a case sets, and passes over it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use agent_api::PluginConfig;
use install_cni::args::selectors;
use install_cni::config::{AgentConfig, Config, Dirs, OWNED_NAME, comma_list};
use install_cni::health::Health;
use install_cni::install::kubeconfig::Source;
use install_cni::install::pass::Installer;
use serde_json::Value;

/// Settings as in a case's `config`, on a node below `root` with a token and an image with the plugin.
///
/// # Errors
/// When the node cannot be made.
pub(super) fn config(settings: &Value, root: &Path) -> Result<Config, String> {
    let at = |name: &str| root.join(name);
    let dirs = Dirs {
        binaries_from: at("image"),
        binaries_to: vec![at("bin")],
        cni: at("net.d"),
        attachments: at("attachments"),
        service_account: at("account"),
        run: at("run"),
    };
    for dir in [&dirs.binaries_from, &dirs.cni, &dirs.service_account] {
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
    }
    for (path, text) in [
        (dirs.binaries_from.join("istio-cni"), "plugin"),
        (dirs.service_account.join("token"), "token"),
        (dirs.service_account.join("ca.crt"), "CA"),
    ] {
        fs::write(path, text).map_err(|error| error.to_string())?;
    }
    let text = |key: &str| settings[key].as_str().unwrap_or_default().to_owned();
    let named = |key: &str| Some(text(key)).filter(|name| !name.is_empty());
    let on = |key: &str| settings[key] == true;
    let owned = named("istio_owned_cni_config_filename").unwrap_or_else(|| OWNED_NAME.to_owned());
    let chained = settings["chained_cni_plugin"] != false;
    let kubeconfig = Source {
        host: "10.96.0.1".to_owned(),
        port: "443".to_owned(),
        protocol: "https".to_owned(),
        ca_file: Some(dirs.service_account.join("ca.crt")),
        token_file: dirs.service_account.join("token"),
    };
    let plugin = PluginConfig {
        plugin_log_level: text("plugin_log_level"),
        cni_agent_run_dir: text("cni_agent_run_dir"),
        ambient_enabled: on("ambient_enabled"),
        enablement_selectors: selectors::parse(&text("ambient_enablement_selector"))?,
        exclude_namespaces: comma_list(&text("exclude_namespaces")),
        pod_namespace: text("pod_namespace"),
        native_nftables: on("native_nftables"),
        enable_ambient_detection_retry: on("enable_ambient_detection_retry"),
        refuse_uncaptured: false,
        agent_host_network: false,
    };
    Ok(Config {
        dirs,
        conf_name: named("cni_conf_name"),
        chained,
        owned: (on("istio_owned_cni_config") && chained).then_some(owned),
        conf_mode: if on("cni_conf_group_read") { 0o640 } else { 0o600 },
        kubeconfig_mode: 0o600,
        kubeconfig,
        plugin,
        health: ([127, 0, 0, 1], 0).into(),
        always_clean_up: false,
        node_name: "node-1".to_owned(),
        agent: AgentConfig::default(),
    })
}

/// An agent, looked at between its passes.
pub(super) struct Agent {
    installer: Installer,
    health: Arc<Health>,
}

impl Agent {
    /// One that has done nothing yet.
    pub(super) fn new(config: &Config) -> Self {
        let health = Arc::new(Health::default());
        Self { installer: Installer::new(Arc::new(config.clone()), Arc::clone(&health)), health }
    }

    /// One pass; what is missing afterwards.
    pub(super) fn pass(&mut self) -> Option<String> {
        self.installer.pass();
        self.health.missing()
    }
}

/// One pass of a new agent; what is missing afterwards.
pub(super) fn pass(config: &Config) -> Option<String> {
    Agent::new(config).pass()
}
