//! Flags, and the environment behind them.
//!
//! Precedence, high to low: flag, second variable, first variable, default. A variable counts when it is set, even to
//! nothing. A switch whose variable cannot be read is off; the same mistake in a flag is a usage error.

use clap::Parser;

use crate::config::options::Options;

/// What to do with the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing at all.
    Nothing,
    /// Print them.
    Print,
    /// Remove all that are ours.
    Remove,
    /// Put them in place.
    Apply,
}

/// Redirects a pod's traffic to its sidecar proxy.
#[derive(Debug, Default, Parser)]
#[command(name = "istio-iptables", version, disable_help_subcommand = true)]
pub struct Args {
    /// Port outbound TCP is redirected to [default: 15001]
    #[arg(short = 'p', long, value_name = "PORT")]
    envoy_port: Option<String>,
    /// Port inbound TCP is redirected to [default: 15006]
    #[arg(short = 'z', long, value_name = "PORT")]
    inbound_capture_port: Option<String>,
    /// Port that bypasses inbound capture [default: 15008]
    #[arg(short = 'e', long, value_name = "PORT")]
    inbound_tunnel_port: Option<String>,
    /// UIDs whose traffic is the proxy's own [default: that of user $ENVOY_USER, or 1337]
    #[arg(short = 'u', long, value_name = "LIST")]
    proxy_uid: Option<String>,
    /// GIDs whose traffic is the proxy's own [default: the UIDs]
    #[arg(short = 'g', long, value_name = "LIST")]
    proxy_gid: Option<String>,
    /// REDIRECT or TPROXY
    #[arg(short = 'm', long, value_name = "MODE")]
    istio_inbound_interception_mode: Option<String>,
    /// Inbound ports to capture; * for all
    #[arg(short = 'b', long, value_name = "LIST")]
    istio_inbound_ports: Option<String>,
    /// Inbound ports not captured when all others are
    #[arg(short = 'd', long, value_name = "LIST")]
    istio_local_exclude_ports: Option<String>,
    /// Interfaces never captured
    #[arg(short = 'c', long, value_name = "LIST")]
    istio_exclude_interfaces: Option<String>,
    /// Outbound destinations to capture; * for all
    #[arg(short = 'i', long, value_name = "LIST")]
    istio_service_cidr: Option<String>,
    /// Outbound destinations never captured
    #[arg(short = 'x', long, value_name = "LIST")]
    istio_service_exclude_cidr: Option<String>,
    /// Outbound ports captured whatever the destination
    #[arg(short = 'q', long, value_name = "LIST")]
    istio_outbound_ports: Option<String>,
    /// Outbound ports never captured
    #[arg(short = 'o', long, value_name = "LIST")]
    istio_local_outbound_ports_exclude: Option<String>,
    /// Interfaces whose incoming traffic is treated as outbound
    #[arg(short = 'k', long, value_name = "LIST")]
    kube_virt_interfaces: Option<String>,
    /// Mark of TPROXY mode (not supported yet)
    #[arg(short = 't', long, value_name = "MARK")]
    istio_inbound_tproxy_mark: Option<String>,
    /// Route table of TPROXY mode (not supported yet)
    #[arg(short = 'r', long, value_name = "TABLE")]
    istio_inbound_tproxy_route_table: Option<String>,
    #[command(flatten)]
    switches: Switches,
}

/// On or off.
#[derive(Debug, Default, clap::Args)]
struct Switches {
    /// Print the rules and change nothing
    #[arg(short = 'n', long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    dry_run: Option<bool>,
    /// Do nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    skip_rule_apply: Option<bool>,
    /// Check that traffic is redirected (not supported yet)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    run_validation: Option<bool>,
    /// Capture DNS
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    redirect_dns: Option<bool>,
    /// With --redirect-dns: all of port 53, not only the servers of resolv.conf
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    capture_all_dns: Option<bool>,
    /// Drop packets that connection tracking calls invalid
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    drop_invalid: Option<bool>,
    /// Look for an IPv6 address beside the first one
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    dual_stack: Option<bool>,
    /// Replace rules that differ; always done
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    reconcile: Option<bool>,
    /// Remove all rules of ours
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    cleanup_only: Option<bool>,
    /// Rules of native nftables (not supported yet)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    native_nftables: Option<bool>,
}

impl Args {
    /// The options, from flags and from the variables that `env` knows.
    pub fn options(&self, env: impl Fn(&str) -> Option<String>) -> Options {
        let defaults = Options::default();
        let text =
            |flag: &Option<String>, name: &str, default: String| flag.clone().or_else(|| env(name)).unwrap_or(default);
        let on = |flag: Option<bool>, names: [&str; 2]| {
            let set = || names.iter().rev().filter(|name| !name.is_empty()).find_map(|name| env(name));
            flag.unwrap_or_else(|| set().is_some_and(|value| boolean(&value).unwrap_or(false)))
        };
        Options {
            // The only flag without a variable.
            envoy_port: self.envoy_port.clone().unwrap_or(defaults.envoy_port),
            inbound_capture_port: text(
                &self.inbound_capture_port,
                "INBOUND_CAPTURE_PORT",
                defaults.inbound_capture_port,
            ),
            inbound_tunnel_port: text(&self.inbound_tunnel_port, "INBOUND_TUNNEL_PORT", defaults.inbound_tunnel_port),
            proxy_uid: text(&self.proxy_uid, "PROXY_UID", defaults.proxy_uid),
            proxy_gid: text(&self.proxy_gid, "PROXY_GID", defaults.proxy_gid),
            mode: text(&self.istio_inbound_interception_mode, "ISTIO_INBOUND_INTERCEPTION_MODE", defaults.mode),
            tproxy_mark: text(&self.istio_inbound_tproxy_mark, "ISTIO_INBOUND_TPROXY_MARK", defaults.tproxy_mark),
            tproxy_route_table: text(
                &self.istio_inbound_tproxy_route_table,
                "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
                defaults.tproxy_route_table,
            ),
            inbound_ports: text(&self.istio_inbound_ports, "ISTIO_INBOUND_PORTS", defaults.inbound_ports),
            inbound_ports_exclude: text(
                &self.istio_local_exclude_ports,
                "ISTIO_LOCAL_EXCLUDE_PORTS",
                defaults.inbound_ports_exclude,
            ),
            outbound_cidrs: text(&self.istio_service_cidr, "ISTIO_SERVICE_CIDR", defaults.outbound_cidrs),
            outbound_cidrs_exclude: text(
                &self.istio_service_exclude_cidr,
                "ISTIO_SERVICE_EXCLUDE_CIDR",
                defaults.outbound_cidrs_exclude,
            ),
            outbound_ports: text(&self.istio_outbound_ports, "ISTIO_OUTBOUND_PORTS", defaults.outbound_ports),
            outbound_ports_exclude: text(
                &self.istio_local_outbound_ports_exclude,
                "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE",
                defaults.outbound_ports_exclude,
            ),
            exclude_interfaces: text(
                &self.istio_exclude_interfaces,
                "ISTIO_EXCLUDE_INTERFACES",
                defaults.exclude_interfaces,
            ),
            virtual_interfaces: text(&self.kube_virt_interfaces, "KUBE_VIRT_INTERFACES", defaults.virtual_interfaces),
            owner_groups: text(&None, "ISTIO_OUTBOUND_OWNER_GROUPS", defaults.owner_groups),
            owner_groups_exclude: text(&None, "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", defaults.owner_groups_exclude),
            loopback_v4: text(&None, "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", defaults.loopback_v4),
            redirect_dns: on(self.switches.redirect_dns, ["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"]),
            capture_all_dns: on(self.switches.capture_all_dns, ["CAPTURE_ALL_DNS", ""]),
            drop_invalid: on(self.switches.drop_invalid, ["DROP_INVALID", "INVALID_DROP"]),
            dual_stack: on(self.switches.dual_stack, ["DUAL_STACK", "ISTIO_DUAL_STACK"]),
        }
    }

    /// What to do with the rules.
    ///
    /// # Errors
    /// A sentence about the first thing asked for that this version cannot do.
    pub fn action(&self, env: impl Fn(&str) -> Option<String>) -> Result<Action, String> {
        let on = |flag: Option<bool>, name: &str| {
            flag.unwrap_or_else(|| env(name).is_some_and(|value| boolean(&value).unwrap_or(false)))
        };
        let unsupported = [
            ("--native-nftables", on(self.switches.native_nftables, "NATIVE_NFTABLES")),
            ("--run-validation", on(self.switches.run_validation, "RUN_VALIDATION")),
        ];
        if let Some((flag, _)) = unsupported.into_iter().find(|(_, on)| *on) {
            return Err(format!("{flag} is not supported by this version yet; nothing was changed"));
        }
        Ok(if on(self.switches.skip_rule_apply, "SKIP_RULE_APPLY") {
            Action::Nothing
        } else if on(self.switches.dry_run, "DRY_RUN") {
            Action::Print
        } else if on(self.switches.cleanup_only, "CLEANUP_ONLY") {
            Action::Remove
        } else {
            Action::Apply
        })
    }
}

/// The words for on and off that Go's flags take.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        other => Err(format!("`{other}` is neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str], env: &[(&str, &str)]) -> Options {
        let args = Args::try_parse_from([&["istio-iptables"], args].concat()).unwrap();
        args.options(|name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn without_anything_the_defaults_hold() {
        assert_eq!(options(&[], &[]), Options::default());
    }

    #[test]
    fn a_flag_beats_both_variables_and_the_second_beats_the_first() {
        let env = [("REDIRECT_DNS", "true"), ("ISTIO_META_DNS_CAPTURE", "0"), ("ISTIO_INBOUND_PORTS", "80")];
        assert!(!options(&[], &env).redirect_dns);
        assert!(options(&["--redirect-dns"], &env).redirect_dns);
        assert!(!options(&["--redirect-dns=false"], &[("REDIRECT_DNS", "1")]).redirect_dns);
        assert_eq!(options(&["-b", "*"], &env).inbound_ports, "*");
        assert_eq!(options(&[], &env).inbound_ports, "80");
    }

    #[test]
    fn a_variable_counts_when_it_is_empty_and_a_bad_switch_is_off() {
        assert_eq!(options(&[], &[("INBOUND_CAPTURE_PORT", "")]).inbound_capture_port, "");
        assert!(!options(&[], &[("DROP_INVALID", "yes")]).drop_invalid);
    }

    #[test]
    fn the_envoy_port_has_no_variable() {
        assert_eq!(options(&[], &[("ENVOY_PORT", "1")]).envoy_port, "15001");
    }

    #[test]
    fn what_cannot_be_done_yet_is_refused_by_its_flag() {
        let args = Args::try_parse_from(["istio-iptables", "--native-nftables"]).unwrap();
        assert!(args.action(|_| None).unwrap_err().contains("--native-nftables"));
        let args = Args::try_parse_from(["istio-iptables", "-n"]).unwrap();
        assert_eq!(args.action(|_| None), Ok(Action::Print));
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        for args in [vec!["--no-such-flag"], vec!["--dry-run=maybe"]] {
            assert!(Args::try_parse_from([vec!["istio-iptables"], args].concat()).is_err());
        }
    }
}
