//! Flags and environment. The only reader of the environment.
//!
//! Names and defaults are Istio's: a flag wins over the environment, where an empty variable counts as set. What would be
//! a silent mistake there is a fault here: the process names it and does not start. Settings of Istio that do nothing
//! here are accepted and named in the log.

mod flags;
mod reader;
pub mod selectors;
mod values;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use agent_api::PluginConfig;
use agent_api::paths::DEFAULT_RUN_DIR;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::config::{
    ADMIN_PORT, AgentConfig, CNI_DIR, Config, Dirs, HEALTH_PORT, MONITORING_PORT, OWNED_NAME, comma_list,
};
use crate::install::kubeconfig::Source;
use crate::log::LogOptions;
use flags::{AFTER_HELP, InstallFlags, LogFlags, variable_of};
use mesh::selectors::Selectors;
use reader::Reader;
use values::flag_bool;

/// Installs the Istio CNI plugin on a node and keeps it there.
#[derive(Debug, Parser)]
#[command(name = "install-cni", disable_version_flag = true, args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
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

/// Flags without effect in this version.
const FLAGS_WITHOUT_EFFECT: [&str; 16] = [
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
];
/// Variables without effect in this version that have no flag.
const VARIABLES_WITHOUT_EFFECT: [&str; 7] = [
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
    /// Settings that cannot be meant. The agent must not run with them.
    pub faults: Vec<String>,
    /// Things to tell once there is a log: the level is warning.
    pub warnings: Vec<String>,
    /// Things to tell once there is a log: the level is information.
    pub notes: Vec<String>,
}

impl Args {
    /// Reads the command line `words` (the program's name first) and the environment `variable`.
    pub fn task(words: impl IntoIterator<Item = OsString>, variable: &dyn Fn(&str) -> Option<String>) -> Task {
        let parsed = command().try_get_matches_from(words).and_then(|matches| Self::from_arg_matches(&matches));
        let args = match parsed {
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
        let notes = self.notes(variable);
        let mut warnings = Vec::new();
        let reader = Reader::new(variable);
        let flags = self.install;
        let log = LogOptions::new(&self.log.output_level, self.log.as_json.unwrap_or(false), &self.log.target);
        let dirs = Dirs {
            cni: PathBuf::from(reader.text(flags.mounted_cni_net_dir, "MOUNTED_CNI_NET_DIR", CNI_DIR)),
            run: PathBuf::from(reader.text(flags.cni_agent_run_dir, "CNI_AGENT_RUN_DIR", DEFAULT_RUN_DIR)),
            ..Dirs::default()
        };
        let insecure = reader.switch(flags.skip_tls_verify, "SKIP_TLS_VERIFY", false);
        let ca_file = reader.text(flags.kube_ca_file, "KUBE_CA_FILE", "");
        let kubeconfig = api_server(&reader, &dirs, (!insecure).then_some(ca_file));
        let ambient = reader.switch(flags.ambient_enabled, "AMBIENT_ENABLED", false);
        let detection_retry =
            reader.switch(flags.enable_ambient_detection_retry, "ENABLE_AMBIENT_DETECTION_RETRY", false);
        let plugin = PluginConfig {
            plugin_log_level: log.levels.plugin().as_str().to_owned(),
            cni_agent_run_dir: dirs.run.display().to_string(),
            ambient_enabled: ambient,
            enablement_selectors: enablement_selectors(&reader, &mut warnings, ambient),
            exclude_namespaces: comma_list(&reader.plain("EXCLUDE_NAMESPACES")),
            pod_namespace: reader.plain("POD_NAMESPACE"),
            native_nftables: reader.switch(None, "NATIVE_NFTABLES", false),
            enable_ambient_detection_retry: detection_retry,
            agent_host_network: reader.switch(None, "AGENT_HOST_NETWORK", false),
            refuse_uncaptured: reader.switch(None, "REFUSE_UNCAPTURED", false),
        };
        let agent = AgentConfig {
            pod_name: reader.plain("POD_NAME"),
            metrics: port(reader.number(flags.monitoring_port, "MONITORING_PORT"), MONITORING_PORT)
                .map(|port| (Ipv6Addr::UNSPECIFIED, port).into()),
            plugin_service_account: Some(reader.text(flags.plugin_service_account, "PLUGIN_SERVICE_ACCOUNT", ""))
                .filter(|name| !name.is_empty()),
            admin: admin_address(&reader, flags.ctrlz_address, flags.ctrlz_port),
            plugin_log: log.plugin_log(),
        };
        let group_read = reader.switch(flags.cni_conf_group_read, "CNI_CONF_GROUP_READ", false);
        let owned = reader.switch(flags.istio_owned_cni_config, "ISTIO_OWNED_CNI_CONFIG", false);
        let owned_name = owned_name(&reader, flags.istio_owned_cni_config_filename);
        let mode = reader.number(flags.kubeconfig_mode, "KUBECONFIG_MODE");
        let binary = reader.plain("FORCE_IPTABLES_BINARY");
        if !["", "legacy", "nft"].contains(&binary.as_str()) {
            reader.fault(format!("FORCE_IPTABLES_BINARY is {binary:?}, but legacy or nft is needed"));
        }
        let config = Config {
            dirs,
            conf_name: Some(reader.text(flags.cni_conf_name, "CNI_CONF_NAME", "")).filter(|name| !name.is_empty()),
            chained: reader.switch(flags.chained_cni_plugin, "CHAINED_CNI_PLUGIN", true),
            owned: owned.then_some(owned_name),
            conf_mode: if group_read { 0o640 } else { 0o600 },
            kubeconfig_mode: mode.map_or(0o600, |mode| u32::try_from(mode & 0o7777).unwrap_or(0o600)),
            kubeconfig,
            plugin,
            health: (Ipv6Addr::UNSPECIFIED, HEALTH_PORT).into(),
            always_clean_up: reader.switch(None, "AMBIENT_DISABLE_SAFE_UPGRADE", false),
            node_name: reader.plain("NODE_NAME"),
            agent,
        };
        warnings.extend(config.doubts());
        Run { config, log, faults: reader.into_faults(), warnings, notes }
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

/// The command line, where each flag names its variable of the environment.
fn command() -> clap::Command {
    Args::command().mut_args(|arg| {
        let Some(variable) = arg.get_long().and_then(variable_of) else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [env: {variable}]").trim_start().to_owned())
    })
}

/// The port that was given, or the usual one; `None` for a number that is no port.
fn port(given: Option<i64>, usual: u16) -> Option<u16> {
    u16::try_from(given.unwrap_or_else(|| usual.into())).ok().filter(|&port| port != 0)
}

/// Where log levels are served.
fn admin_address(reader: &Reader<'_>, address: Option<String>, number: Option<i64>) -> Option<SocketAddr> {
    const NAME: &str = "CTRLZ_ADDRESS";
    let port = port(reader.number(number, "CTRLZ_PORT"), ADMIN_PORT)?;
    let address = reader.text(address, NAME, "localhost");
    let ip = match address.as_str() {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        "" | "*" => Ipv6Addr::UNSPECIFIED.into(),
        address => address.parse::<IpAddr>().ok().or_else(|| {
            reader.fault(format!("{NAME} is {address:?}, but localhost, * or an IP address is needed"));
            None
        })?,
    };
    Some((ip, port).into())
}

/// Where the kubeconfig's parts come from; without `ca_file` the server's certificate is not checked, and an empty one
/// is the service account's.
fn api_server(reader: &Reader<'_>, dirs: &Dirs, ca_file: Option<String>) -> Source {
    let default_ca = |path: String| if path.is_empty() { dirs.service_account.join("ca.crt") } else { path.into() };
    let protocol = Some(reader.plain("KUBERNETES_SERVICE_PROTOCOL")).filter(|protocol| !protocol.is_empty());
    Source {
        host: reader.plain("KUBERNETES_SERVICE_HOST"),
        port: reader.plain("KUBERNETES_SERVICE_PORT"),
        protocol: protocol.unwrap_or_else(|| "https".to_owned()),
        ca_file: ca_file.map(default_ca),
        token_file: dirs.service_account.join("token"),
    }
}

/// The name has two variables: the program's own, and the one that Istio's chart sets.
fn owned_name(reader: &Reader<'_>, flag: Option<String>) -> String {
    const CHARTS: &str = "ISTIO_OWNED_CNI_CONF_FILENAME";
    let name = reader.text(flag, "ISTIO_OWNED_CNI_CONFIG_FILENAME", "");
    let charts = reader.plain(CHARTS);
    if !name.is_empty() && !charts.is_empty() && name != charts {
        reader
            .fault(format!("ISTIO_OWNED_CNI_CONFIG_FILENAME is {name:?} and {CHARTS} is {charts:?}; which is meant?"));
    }
    [name, charts].into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| OWNED_NAME.to_owned())
}

/// A list that is no list is a fault in every mode; one that Kubernetes would not take only where it is used.
fn enablement_selectors(reader: &Reader<'_>, warnings: &mut Vec<String>, ambient: bool) -> Vec<serde_json::Value> {
    const NAME: &str = "AMBIENT_ENABLEMENT_SELECTOR";
    let entries = selectors::parse(&reader.plain(NAME)).unwrap_or_else(|error| {
        reader.fault(format!("{NAME} is not a YAML list of selectors: {error}"));
        Vec::new()
    });
    if let Err(error) = Selectors::compile(&entries) {
        if ambient {
            reader.fault(format!("{NAME}: {error}"));
        } else {
            warnings.push(format!("{NAME}: {error}; without ambient mode that does no harm"));
        }
    }
    entries
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
