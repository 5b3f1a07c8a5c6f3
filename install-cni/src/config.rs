//! Everything the agent was told, checked, in one place.
//!
//! Made by `args` from flags and environment, and by tests directly; nothing else reads the environment. The paths
//! that Istio fixes are constants here, so that only tests use others.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use agent_api::PluginConfig;
use agent_api::kubeconfig::server_url;
use agent_api::paths::DEFAULT_RUN_DIR;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::install::choose::STANDALONE_NAME;
use crate::install::kubeconfig::Source;
use crate::log::plugin::PluginLog;

/// Where the image has the binaries.
pub const BINARIES_FROM: &str = "/opt/cni/bin";
/// Where the node's directory of CNI plugins is mounted.
pub const BINARIES_TO: &str = "/host/opt/cni/bin";
/// Where the node's CNI configuration directory is mounted, unless told otherwise.
pub const CNI_DIR: &str = "/host/etc/cni/net.d";
/// Where the list that each pod's network was made with is kept, if that is mounted.
pub const ATTACHMENTS_DIR: &str = "/host/var/lib/cni/results";
/// Where kubelet mounts token and CA certificates.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Name of the configuration file of our own, unless told otherwise.
pub const OWNED_NAME: &str = "02-istio-cni.conflist";
/// Port of `/healthz` and `/readyz`.
pub const HEALTH_PORT: u16 = 8000;
/// Port of `/metrics`, unless told otherwise.
pub const MONITORING_PORT: u16 = 15014;
/// Port of the log levels, unless told otherwise.
pub const ADMIN_PORT: u16 = 9876;
/// Version of the stand-alone configuration file.
const STANDALONE_VERSION: &str = "0.3.1";

/// A setting that cannot be worked with. The process ends and touches nothing.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A path is needed.
    #[error("{name} is {value:?}, but an absolute path is needed")]
    NotAbsolute {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A bare file name is needed.
    #[error("{name} is {value:?}, but a file name without directories is needed")]
    NotAName {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Runtimes read lists from such names only, and single plugins from the others.
    #[error("{name} is {value:?}, but {needed}, or no runtime would read the file")]
    WrongEnding {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A service account without its namespace.
    #[error("PLUGIN_SERVICE_ACCOUNT is set, but POD_NAMESPACE is not, so its namespace is not known")]
    NoNamespace,
    /// Ambient mode.
    #[error(
        "AMBIENT_ENABLED is true, but this version has no ambient mode: pods of ambient namespaces would stay outside \
         the mesh without a word. Set ambient.enabled to false, or use Istio's own CNI agent"
    )]
    Ambient,
    /// The API server is not known, and cannot become known while the process runs.
    #[error("{0}")]
    NoApiServer(String),
}

/// Directories, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// The image's binaries.
    pub binaries_from: PathBuf,
    /// The node's directories of CNI plugins.
    pub binaries_to: Vec<PathBuf>,
    /// The node's CNI configuration directory.
    pub cni: PathBuf,
    /// What CNI's library keeps about each pod's network; it need not be there.
    pub attachments: PathBuf,
    /// Token and CA certificates.
    pub service_account: PathBuf,
    /// Run directory; the node sees it under the same path.
    pub run: PathBuf,
}

impl Default for Dirs {
    fn default() -> Self {
        Self {
            binaries_from: BINARIES_FROM.into(),
            binaries_to: vec![BINARIES_TO.into()],
            cni: CNI_DIR.into(),
            attachments: ATTACHMENTS_DIR.into(),
            service_account: SERVICE_ACCOUNT_DIR.into(),
            run: DEFAULT_RUN_DIR.into(),
        }
    }
}

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directories.
    pub dirs: Dirs,
    /// The file to work on, if the user names one.
    pub conf_name: Option<String>,
    /// Join an existing configuration, or write one of our own.
    pub chained: bool,
    /// Name of a file of our own that copies the network's configuration, if we are to have one. In chained mode only.
    pub owned: Option<String>,
    /// Mode of configuration files that we create.
    pub conf_mode: u32,
    /// Mode of the kubeconfig.
    pub kubeconfig_mode: u32,
    /// Where the kubeconfig's parts come from.
    pub kubeconfig: Source,
    /// The plugin's settings.
    pub plugin: PluginConfig,
    /// Where `/healthz` and `/readyz` are served.
    pub health: SocketAddr,
    /// Uninstall at every end, without asking whether it is one for good.
    pub always_clean_up: bool,
    /// Name of the node; without it its pods are not known.
    pub node_name: String,
    /// What the agent does beside installing.
    pub agent: AgentConfig,
}

/// Settings of what the agent does beside installing.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Name of the agent's own pod, or nothing.
    pub pod_name: String,
    /// Where `/metrics` is served, if it is.
    pub metrics: Option<SocketAddr>,
    /// Service account of our namespace whose token the plugin gets; `None` for the agent's own.
    pub plugin_service_account: Option<String>,
    /// Where log levels are served, if they are.
    pub admin: Option<SocketAddr>,
    /// How entries of plugins are logged, and the levels of the whole log.
    pub plugin_log: PluginLog,
}

impl Config {
    /// Looks for settings that cannot work.
    ///
    /// # Errors
    /// [`ConfigError`], the first that applies.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.plugin.ambient_enabled {
            return Err(ConfigError::Ambient);
        }
        absolute("MOUNTED_CNI_NET_DIR", &self.dirs.cni)?;
        absolute("CNI_AGENT_RUN_DIR", &self.dirs.run)?;
        if let Some(name) = &self.conf_name {
            file_name("CNI_CONF_NAME", name)?;
            if !self.chained && name.ends_with(".conflist") {
                return Err(wrong_ending(
                    "CNI_CONF_NAME",
                    name,
                    "a single plugin (CHAINED_CNI_PLUGIN=false) needs .conf",
                ));
            }
        }
        if let Some(name) = &self.owned {
            file_name("ISTIO_OWNED_CNI_CONFIG_FILENAME", name)?;
            if !name.ends_with(".conflist") {
                return Err(wrong_ending("ISTIO_OWNED_CNI_CONFIG_FILENAME", name, "a list needs .conflist"));
            }
        }
        if self.agent.plugin_service_account.is_some() && self.plugin.pod_namespace.is_empty() {
            return Err(ConfigError::NoNamespace);
        }
        for (value, name) in [(&self.kubeconfig.host, "HOST"), (&self.kubeconfig.port, "PORT")] {
            if value.is_empty() {
                let text = format!(
                    "KUBERNETES_SERVICE_{name} is not set, so the API server is not known; is this running in a pod?"
                );
                return Err(ConfigError::NoApiServer(text));
            }
        }
        Ok(())
    }

    /// Settings that work, but are probably not what is meant.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.owned.is_some() && !self.chained {
            doubts.push("ISTIO_OWNED_CNI_CONFIG has no effect with CHAINED_CNI_PLUGIN=false".to_owned());
        }
        if self.owned.is_some() && self.owned == self.conf_name {
            doubts.push(
                "CNI_CONF_NAME names the file of our own, so there will never be a network to copy; name the network's \
                 file, or leave it empty"
                    .to_owned(),
            );
        }
        if self.kubeconfig_mode & !0o777 != 0 || self.kubeconfig_mode & 0o400 == 0 {
            let mode = self.kubeconfig_mode;
            doubts.push(format!("KUBECONFIG_MODE gives the mode {mode:04o}; octal numbers begin with 0, as in 0600"));
        }
        if self.kubeconfig.ca_file.is_none() {
            doubts.push("SKIP_TLS_VERIFY is true: anybody between node and API server can take the token".to_owned());
        }
        doubts
    }

    /// Tells the log once what the settings are. None of them is a secret.
    pub fn tell(&self) {
        let octal = |mode: u32| format!("{mode:04o}");
        let kubeconfig = &self.kubeconfig;
        let binaries: Vec<_> = self.dirs.binaries_to.iter().map(|path| path.display().to_string()).collect();
        tracing::info!(
            cni_dir = %self.dirs.cni.display(),
            binaries = binaries.join(","),
            run_dir = %self.dirs.run.display(),
            conf_name = self.conf_name.as_deref().unwrap_or("the first valid one"),
            chained = self.chained,
            own_file = self.owned.as_deref().filter(|_| self.chained).unwrap_or("none"),
            conf_mode = octal(self.conf_mode),
            plugin_service_account = self.agent.plugin_service_account.as_deref().unwrap_or("the agent's own"),
            kubeconfig_mode = octal(self.kubeconfig_mode),
            api_server = server_url(&kubeconfig.protocol, &kubeconfig.host, &kubeconfig.port),
            ca_file = %kubeconfig.ca_file.as_deref().unwrap_or(Path::new("none")).display(),
            plugin_log_level = self.plugin.plugin_log_level,
            exclude_namespaces = self.plugin.exclude_namespaces.join(","),
            enablement_selectors = self.plugin.enablement_selectors.len(),
            pod_namespace = self.plugin.pod_namespace,
            node_name = self.node_name,
            native_nftables = self.plugin.native_nftables,
            always_clean_up = self.always_clean_up,
            health = %self.health,
            "settings"
        );
    }

    /// The plugin's settings, with what was changed while the agent ran.
    fn plugin_now(&self) -> PluginConfig {
        let mut plugin = self.plugin.clone();
        if let Some(level) = self.agent.plugin_log.levels().changed_plugin() {
            level.as_str().clone_into(&mut plugin.plugin_log_level);
        }
        plugin
    }

    /// The plugin's element inside a list.
    pub fn element(&self) -> Map<String, Value> {
        // Numbers that JSON cannot express are the only possible error, and there is none.
        self.plugin_now().element(None).unwrap_or_default()
    }

    /// The name of the file of stand-alone mode.
    pub fn standalone_name(&self) -> &str {
        self.conf_name.as_deref().unwrap_or(STANDALONE_NAME)
    }

    /// The whole file of stand-alone mode.
    pub fn standalone_text(&self) -> String {
        let element = Value::Object(self.plugin_now().element(Some(STANDALONE_VERSION)).unwrap_or_default());
        format!("{element:#}\n")
    }
}

/// Items of a comma list, without white space and empty ones.
pub fn comma_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn file_name(name: &'static str, value: &str) -> Result<(), ConfigError> {
    if value.contains('/') || matches!(value, "." | "..") {
        return Err(ConfigError::NotAName { name, value: value.to_owned() });
    }
    Ok(())
}

fn wrong_ending(name: &'static str, value: &str, needed: &'static str) -> ConfigError {
    ConfigError::WrongEnding { name, value: value.to_owned(), needed }
}

fn absolute(name: &'static str, path: &Path) -> Result<(), ConfigError> {
    if path.is_absolute() { Ok(()) } else { Err(ConfigError::NotAbsolute { name, value: path.display().to_string() }) }
}
