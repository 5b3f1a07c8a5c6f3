//! The flags, with their words in `--help`. What they mean together is decided next door.

use clap::Args as ClapArgs;

use super::values::{flag_bool, flag_int};

const NODE: &str = "Where things are on the node";
const LISTS: &str = "CNI configuration";
const CREDENTIALS: &str = "The plugin's credentials";
const AMBIENT: &str = "Ambient mode";
const HEALTH: &str = "Health";
const LOG: &str = "Log";
const NOTHING: &str = "Accepted, without effect in this version";

/// `--flag` alone is true, as is customary for Istio; the others need a value.
macro_rules! flags {
    (
        strings { $($(#[$string_meta:meta])* $string:ident = $string_name:literal),* $(,)? }
        bools { $($(#[$bool_meta:meta])* $bool:ident = $bool_name:literal),* $(,)? }
        ints { $($(#[$int_meta:meta])* $int:ident = $int_name:literal),* $(,)? }
    ) => {
        #[derive(Debug, Default, ClapArgs)]
        pub(super) struct InstallFlags {
            $($(#[$string_meta])* #[arg(long = $string_name, overrides_with = stringify!($string), value_name = "TEXT")] pub(super) $string: Option<String>,)*
            $($(#[$bool_meta])* #[arg(long = $bool_name, overrides_with = stringify!($bool), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flag_bool, value_name = "BOOL")] pub(super) $bool: Option<bool>,)*
            $($(#[$int_meta])* #[arg(long = $int_name, overrides_with = stringify!($int), value_parser = flag_int, allow_hyphen_values = true, value_name = "NUMBER")] pub(super) $int: Option<i64>,)*
        }

        impl InstallFlags {
            /// Names of the flags that were given.
            pub(super) fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$string.is_some() { given.push($string_name); })*
                $(if self.$bool.is_some() { given.push($bool_name); })*
                $(if self.$int.is_some() { given.push($int_name); })*
                given
            }
        }

        /// All names above: those that are also variables of the environment.
        const NAMES: &[&str] = &[$($string_name,)* $($bool_name,)* $($int_name,)*];
    };
}

flags! {
    strings {
        /// The node's CNI configuration directory, as seen here [default: /host/etc/cni/net.d]
        #[arg(help_heading = NODE)]
        mounted_cni_net_dir = "mounted-cni-net-dir",
        /// Run directory; the same path here and on the node [default: /var/run/istio-cni]
        #[arg(help_heading = NODE)]
        cni_agent_run_dir = "cni-agent-run-dir",
        /// The network's file, instead of the first valid one; in stand-alone mode the file to create
        #[arg(help_heading = LISTS)]
        cni_conf_name = "cni-conf-name",
        /// Name of the file of our own [default: 02-istio-cni.conflist]
        #[arg(help_heading = LISTS)]
        istio_owned_cni_config_filename = "istio-owned-cni-config-filename",
        /// CA certificates of the API server [default: the service account's]
        #[arg(help_heading = CREDENTIALS)]
        kube_ca_file = "kube-ca-file",
        /// Service account of this pod's namespace whose token the plugin gets, instead of this pod's own
        #[arg(help_heading = CREDENTIALS)]
        plugin_service_account = "plugin-service-account",
        #[arg(help_heading = NOTHING)]
        ztunnel_uds_address = "ztunnel-uds-address",
        #[arg(help_heading = NOTHING)]
        cni_network_config = "cni-network-config",
        #[arg(help_heading = NOTHING)]
        cni_network_config_file = "cni-network-config-file",
        #[arg(help_heading = NOTHING)]
        log_level = "log-level",
        #[arg(help_heading = NOTHING)]
        repair_broken_pod_label_key = "repair-broken-pod-label-key",
        #[arg(help_heading = NOTHING)]
        repair_broken_pod_label_value = "repair-broken-pod-label-value",
        #[arg(help_heading = NOTHING)]
        repair_node_name = "repair-node-name",
        #[arg(help_heading = NOTHING)]
        repair_sidecar_annotation = "repair-sidecar-annotation",
        #[arg(help_heading = NOTHING)]
        repair_init_container_name = "repair-init-container-name",
        #[arg(help_heading = NOTHING)]
        repair_init_container_termination_message = "repair-init-container-termination-message",
        #[arg(help_heading = NOTHING)]
        repair_label_selectors = "repair-label-selectors",
        #[arg(help_heading = NOTHING)]
        repair_field_selectors = "repair-field-selectors",
        /// Where log levels can be changed while the agent runs [default: localhost]
        #[arg(help_heading = LOG)]
        ctrlz_address = "ctrlz_address",
    }
    bools {
        /// Join the existing configuration, or write a file with our plugin alone [default: true]
        #[arg(help_heading = LISTS)]
        chained_cni_plugin = "chained-cni-plugin",
        /// A file of our own that copies the network's one and sorts before it [default: false]
        #[arg(help_heading = LISTS)]
        istio_owned_cni_config = "istio-owned-cni-config",
        /// Mode 0640 instead of 0600 for configuration files that are created [default: false]
        #[arg(help_heading = LISTS)]
        cni_conf_group_read = "cni-conf-group-read",
        /// The plugin does not check the API server's certificate [default: false]
        #[arg(help_heading = CREDENTIALS)]
        skip_tls_verify = "skip-tls-verify",
        /// Not supported: refuses to start [default: false]
        #[arg(help_heading = AMBIENT)]
        ambient_enabled = "ambient-enabled",
        /// Goes into the plugin's configuration [default: false]
        #[arg(help_heading = AMBIENT)]
        enable_ambient_detection_retry = "enable-ambient-detection-retry",
        #[arg(help_heading = NOTHING)]
        repair_enabled = "repair-enabled",
        #[arg(help_heading = NOTHING)]
        repair_delete_pods = "repair-delete-pods",
        #[arg(help_heading = NOTHING)]
        repair_label_pods = "repair-label-pods",
    }
    ints {
        /// Mode of the kubeconfig [default: 0600]
        #[arg(help_heading = CREDENTIALS)]
        kubeconfig_mode = "kubeconfig-mode",
        /// Port of /metrics; 0 or less for none [default: 15014]
        #[arg(help_heading = HEALTH)]
        monitoring_port = "monitoring-port",
        #[arg(help_heading = NOTHING)]
        repair_init_container_exit_code = "repair-init-container-exit-code",
        /// Port of the same (/scopez); 0 or less for none [default: 9876]
        #[arg(help_heading = LOG)]
        ctrlz_port = "ctrlz_port",
    }
}

#[derive(Debug, Default, ClapArgs)]
pub(super) struct LogFlags {
    /// Comma list of [scope:]level; levels: debug, info, warn, error, fatal, none
    #[arg(long = "log_output_level", default_value = "", hide_default_value = true, overrides_with = "output_level", help_heading = LOG)]
    pub(super) output_level: String,
    /// JSON lines instead of text
    #[arg(long = "log_as_json", overrides_with = "as_json", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flag_bool, help_heading = LOG)]
    pub(super) as_json: Option<bool>,
    /// stdout or stderr
    #[arg(long = "log_target", help_heading = LOG)]
    pub(super) target: Vec<String>,
    #[arg(long = "log_stacktrace_level", help_heading = NOTHING)]
    _stacktrace_level: Option<String>,
    #[arg(long = "log_caller", help_heading = NOTHING)]
    _caller: Option<String>,
}

/// The variable that a flag of this name can be given as, if any.
pub(super) fn variable_of(name: &str) -> Option<String> {
    NAMES.contains(&name).then(|| name.to_uppercase().replace('-', "_"))
}

/// What follows the flags in `--help`.
pub(super) const AFTER_HELP: &str = "\
Most flags can be given as a variable of the environment instead, which is named in [env: ]; a flag wins.

Variables without a flag:
  EXCLUDE_NAMESPACES            comma list: pods of these namespaces are never touched
  POD_NAMESPACE, NODE_NAME      of this pod, from the downward API
  NATIVE_NFTABLES               nftables rules instead of the iptables-compatible form [default: false]
  AGENT_HOST_NETWORK            this pod is on the node's network, so STATUS of the plugin may be strict [default: false]
  AMBIENT_ENABLEMENT_SELECTOR   YAML list of {podSelector, namespaceSelector}, for the plugin's configuration
  AMBIENT_DISABLE_SAFE_UPGRADE  uninstall at every end, not only at an uninstall [default: false]
  KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, KUBERNETES_SERVICE_PROTOCOL
                                the API server, as every pod has it [default protocol: https]
";
