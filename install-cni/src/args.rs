//! Flags and environment. The only reader of the environment.
//!
//! Names, defaults and leniency are Istio's: a flag wins over the environment, where an empty variable counts as set;
//! what cannot be parsed there is false or 0, while a bad flag is a usage error. Settings of Istio that do nothing here
//! are accepted and named in the log.

mod values;

use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use agent_api::PluginConfig;
use agent_api::paths::DEFAULT_RUN_DIR;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::config::{AgentConfig, CNI_DIR, Config, Dirs, HEALTH_PORT, MONITORING_PORT, comma_list};
use crate::install::kubeconfig::Source;
use crate::log::LogOptions;
use values::{flag_bool, flag_int, lenient_bool, lenient_int};

/// Installs the Istio CNI plugin on a node and keeps it there.
#[derive(Debug, Parser)]
#[command(name = "install-cni", disable_version_flag = true, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    install: InstallFlags,
    #[command(flatten)]
    log: LogFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the version.
    Version {
        /// Only the number.
        #[arg(short, long)]
        short: bool,
        /// The format.
        #[arg(short, long)]
        output: Option<Output>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

/// `--flag` alone is true, as is customary for Istio; the others need a value.
macro_rules! flags {
    (
        strings { $($(#[$string_meta:meta])* $string:ident = $string_name:literal),* $(,)? }
        bools { $($(#[$bool_meta:meta])* $bool:ident = $bool_name:literal),* $(,)? }
        ints { $($(#[$int_meta:meta])* $int:ident = $int_name:literal),* $(,)? }
    ) => {
        #[derive(Debug, Default, ClapArgs)]
        struct InstallFlags {
            $($(#[$string_meta])* #[arg(long = $string_name, overrides_with = stringify!($string))] $string: Option<String>,)*
            $($(#[$bool_meta])* #[arg(long = $bool_name, overrides_with = stringify!($bool), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flag_bool)] $bool: Option<bool>,)*
            $($(#[$int_meta])* #[arg(long = $int_name, overrides_with = stringify!($int), value_parser = flag_int, allow_hyphen_values = true)] $int: Option<i64>,)*
        }

        impl InstallFlags {
            /// Names of the flags that were given.
            fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$string.is_some() { given.push($string_name); })*
                $(if self.$bool.is_some() { given.push($bool_name); })*
                $(if self.$int.is_some() { given.push($int_name); })*
                given
            }
        }
    };
}

flags! {
    strings {
        /// The node's CNI configuration directory, as seen here.
        mounted_cni_net_dir = "mounted-cni-net-dir",
        /// Run directory; the same path here and on the node.
        cni_agent_run_dir = "cni-agent-run-dir",
        /// File to work on instead of the first valid one; in stand-alone mode the file to create.
        cni_conf_name = "cni-conf-name",
        #[arg(hide = true)]
        istio_owned_cni_config_filename = "istio-owned-cni-config-filename",
        /// CA certificates of the API server; default: the service account's.
        kube_ca_file = "kube-ca-file",
        #[arg(hide = true)]
        ztunnel_uds_address = "ztunnel-uds-address",
        #[arg(hide = true)]
        cni_network_config = "cni-network-config",
        #[arg(hide = true)]
        cni_network_config_file = "cni-network-config-file",
        #[arg(hide = true)]
        log_level = "log-level",
        #[arg(hide = true)]
        repair_broken_pod_label_key = "repair-broken-pod-label-key",
        #[arg(hide = true)]
        repair_broken_pod_label_value = "repair-broken-pod-label-value",
        #[arg(hide = true)]
        repair_node_name = "repair-node-name",
        #[arg(hide = true)]
        repair_sidecar_annotation = "repair-sidecar-annotation",
        #[arg(hide = true)]
        repair_init_container_name = "repair-init-container-name",
        #[arg(hide = true)]
        repair_init_container_termination_message = "repair-init-container-termination-message",
        #[arg(hide = true)]
        repair_label_selectors = "repair-label-selectors",
        #[arg(hide = true)]
        repair_field_selectors = "repair-field-selectors",
        #[arg(hide = true)]
        ctrlz_address = "ctrlz_address",
    }
    bools {
        /// Join the existing configuration (default), or write a file of our own.
        chained_cni_plugin = "chained-cni-plugin",
        #[arg(hide = true)]
        istio_owned_cni_config = "istio-owned-cni-config",
        /// Mode 0640 instead of 0600 for configuration files that are created.
        cni_conf_group_read = "cni-conf-group-read",
        /// The plugin does not check the API server's certificate.
        skip_tls_verify = "skip-tls-verify",
        /// Not supported: refuses to start.
        ambient_enabled = "ambient-enabled",
        #[arg(hide = true)]
        enable_ambient_detection_retry = "enable-ambient-detection-retry",
        #[arg(hide = true)]
        repair_enabled = "repair-enabled",
        #[arg(hide = true)]
        repair_delete_pods = "repair-delete-pods",
        #[arg(hide = true)]
        repair_label_pods = "repair-label-pods",
    }
    ints {
        /// Mode of the kubeconfig, for example 0600.
        kubeconfig_mode = "kubeconfig-mode",
        /// Port of /metrics; 0 or less for none [default: 15014].
        monitoring_port = "monitoring-port",
        #[arg(hide = true)]
        repair_init_container_exit_code = "repair-init-container-exit-code",
        #[arg(hide = true)]
        ctrlz_port = "ctrlz_port",
    }
}

#[derive(Debug, Default, ClapArgs)]
struct LogFlags {
    /// Comma list of [scope:]level; levels: debug, info, warn, error, fatal, none.
    #[arg(long = "log_output_level", default_value = "", overrides_with = "output_level")]
    output_level: String,
    /// JSON lines instead of text.
    #[arg(long = "log_as_json", overrides_with = "as_json", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flag_bool)]
    as_json: Option<bool>,
    /// stdout or stderr.
    #[arg(long = "log_target")]
    target: Vec<String>,
    #[arg(long = "log_stacktrace_level", hide = true)]
    _stacktrace_level: Option<String>,
    #[arg(long = "log_caller", hide = true)]
    _caller: Option<String>,
}

/// Flags without effect in this version.
const FLAGS_WITHOUT_EFFECT: [&str; 18] = [
    "ztunnel-uds-address",
    "cni-network-config",
    "cni-network-config-file",
    "log-level",
    "repair-enabled",
    "repair-delete-pods",
    "repair-label-pods",
    "repair-broken-pod-label-key",
    "repair-broken-pod-label-value",
    "repair-node-name",
    "repair-sidecar-annotation",
    "repair-init-container-name",
    "repair-init-container-termination-message",
    "repair-init-container-exit-code",
    "repair-label-selectors",
    "repair-field-selectors",
    "ctrlz_port",
    "ctrlz_address",
];
/// Variables without effect in this version that have no flag.
const VARIABLES_WITHOUT_EFFECT: [&str; 8] = [
    "AMBIENT_ENABLEMENT_SELECTOR",
    "AMBIENT_DNS_CAPTURE",
    "AMBIENT_IPV6",
    "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP",
    "FORCE_IPTABLES_BINARY",
    "REPAIR_REPAIR_PODS",
    "HOST_PROBE_SNAT_IP",
    "HOST_PROBE_SNAT_IPV6",
];

/// What to do.
#[derive(Debug)]
pub enum Task {
    /// Print this and end well.
    Print(String),
    /// Print this about the usage and end badly.
    Usage(String),
    /// Run the agent.
    Run(Box<Run>),
}

/// The agent's settings.
#[derive(Debug)]
pub struct Run {
    /// Settings of the installer.
    pub config: Config,
    /// Settings of the log.
    pub log: LogOptions,
    /// Things to tell once there is a log: the level is warning.
    pub warnings: Vec<String>,
    /// Things to tell once there is a log: the level is information.
    pub notes: Vec<String>,
}

impl Args {
    /// Reads the command line `words` (the program's name first) and the environment `variable`.
    pub fn task(words: impl IntoIterator<Item = OsString>, variable: &dyn Fn(&str) -> Option<String>) -> Task {
        let args = match Self::try_parse_from(words) {
            Ok(args) => args,
            Err(error) if error.use_stderr() => return Task::Usage(error.to_string()),
            Err(help) => return Task::Print(help.to_string()),
        };
        match args.command {
            Some(Command::Version { short, output }) => Task::Print(version(short, output)),
            None => Task::Run(Box::new(args.run(variable))),
        }
    }

    fn run(self, variable: &dyn Fn(&str) -> Option<String>) -> Run {
        let (notes, warnings) = (self.notes(variable), self.warnings(variable));
        let plain = |name: &str| variable(name).unwrap_or_default();
        let text = |flag: Option<String>, name: &str, default: &str| {
            flag.or_else(|| variable(name)).unwrap_or_else(|| default.to_owned())
        };
        let switch = |flag: Option<bool>, name: &str, default: bool| {
            flag.or_else(|| variable(name).map(|text| lenient_bool(&text))).unwrap_or(default)
        };
        let flags = self.install;
        let log = LogOptions::new(&self.log.output_level, self.log.as_json.unwrap_or(false), &self.log.target);
        let run_dir = text(flags.cni_agent_run_dir, "CNI_AGENT_RUN_DIR", DEFAULT_RUN_DIR);
        let dirs = Dirs {
            cni: PathBuf::from(text(flags.mounted_cni_net_dir, "MOUNTED_CNI_NET_DIR", CNI_DIR)),
            run: PathBuf::from(&run_dir),
            ..Dirs::default()
        };
        let ca_file = Some(text(flags.kube_ca_file, "KUBE_CA_FILE", "")).filter(|path| !path.is_empty());
        let ca_file = ca_file.map_or_else(|| dirs.service_account.join("ca.crt"), PathBuf::from);
        let insecure = switch(flags.skip_tls_verify, "SKIP_TLS_VERIFY", false);
        let mode = flags.kubeconfig_mode.or_else(|| variable("KUBECONFIG_MODE").map(|text| lenient_int(&text)));
        let kubeconfig = Source {
            host: plain("KUBERNETES_SERVICE_HOST"),
            port: plain("KUBERNETES_SERVICE_PORT"),
            protocol: Some(plain("KUBERNETES_SERVICE_PROTOCOL"))
                .filter(|p| !p.is_empty())
                .unwrap_or_else(|| "https".to_owned()),
            ca_file: (!insecure).then_some(ca_file),
            token_file: dirs.service_account.join("token"),
        };
        let plugin = PluginConfig {
            plugin_log_level: log.plugin_level.clone(),
            cni_agent_run_dir: run_dir,
            ambient_enabled: switch(flags.ambient_enabled, "AMBIENT_ENABLED", false),
            enablement_selectors: Vec::new(),
            exclude_namespaces: comma_list(&plain("EXCLUDE_NAMESPACES")),
            pod_namespace: plain("POD_NAMESPACE"),
            native_nftables: lenient_bool(&plain("NATIVE_NFTABLES")),
            enable_ambient_detection_retry: switch(
                flags.enable_ambient_detection_retry,
                "ENABLE_AMBIENT_DETECTION_RETRY",
                false,
            ),
            agent_host_network: lenient_bool(&plain("AGENT_HOST_NETWORK")),
        };
        let port = flags.monitoring_port.or_else(|| variable("MONITORING_PORT").map(|text| lenient_int(&text)));
        let agent = AgentConfig {
            pod_name: plain("POD_NAME"),
            metrics: monitoring_address(port),
            plugin_log: log.plugin_log(),
        };
        let group_read = switch(flags.cni_conf_group_read, "CNI_CONF_GROUP_READ", false);
        let config = Config {
            dirs,
            conf_name: Some(text(flags.cni_conf_name, "CNI_CONF_NAME", "")).filter(|name| !name.is_empty()),
            chained: switch(flags.chained_cni_plugin, "CHAINED_CNI_PLUGIN", true),
            owned: None,
            conf_mode: if group_read { 0o640 } else { 0o600 },
            kubeconfig_mode: mode.map_or(0o600, |mode| u32::try_from(mode & 0o7777).unwrap_or(0o600)),
            kubeconfig,
            plugin,
            health: (Ipv6Addr::UNSPECIFIED, HEALTH_PORT).into(),
            always_clean_up: lenient_bool(&plain("AMBIENT_DISABLE_SAFE_UPGRADE")),
            node_name: plain("NODE_NAME"),
            agent,
        };
        Run { config, log, warnings, notes }
    }

    fn warnings(&self, variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        let mut warnings = Vec::new();
        let owned = self.install.istio_owned_cni_config;
        if owned.unwrap_or_else(|| variable("ISTIO_OWNED_CNI_CONFIG").is_some_and(|text| lenient_bool(&text))) {
            warnings.push(
                "a CNI configuration file of our own (ISTIO_OWNED_CNI_CONFIG) is not supported yet; the first valid list is edited instead"
                    .to_owned(),
            );
        }
        warnings
    }

    fn notes(&self, variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        // What is switched off has no effect anywhere.
        let set = |name: &str| variable(name).is_some_and(|value| !value.is_empty() && flag_bool(&value) != Ok(false));
        let mut names: Vec<_> = self.install.given();
        names.retain(|name| FLAGS_WITHOUT_EFFECT.contains(name));
        let mut names: Vec<_> = names.into_iter().map(|name| format!("--{name}")).collect();
        let variables = FLAGS_WITHOUT_EFFECT.iter().map(|flag| flag.to_uppercase().replace('-', "_"));
        let variables = variables.chain(VARIABLES_WITHOUT_EFFECT.iter().map(|name| (*name).to_owned()));
        names.extend(variables.filter(|name| set(name)));
        if names.is_empty() {
            return Vec::new();
        }
        vec![format!("accepted, but without effect in this version: {}", names.join(", "))]
    }
}

/// Where metrics are served on this port: nowhere when it is none.
fn monitoring_address(port: Option<i64>) -> Option<SocketAddr> {
    let port = port.unwrap_or_else(|| MONITORING_PORT.into());
    let port = u16::try_from(port).ok().filter(|&port| port != 0)?;
    Some((Ipv6Addr::UNSPECIFIED, port).into())
}

fn version(short: bool, output: Option<Output>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match output {
        Some(Output::Json) => format!("{{\n  \"clientVersion\": {{\n    \"version\": \"{version}\"\n  }}\n}}\n"),
        Some(Output::Yaml) => format!("clientVersion:\n  version: {version}\n"),
        None if short => format!("{version}\n"),
        None => format!("install-cni {version} ({})\n", std::env::consts::ARCH),
    }
}

#[cfg(test)]
mod tests;
