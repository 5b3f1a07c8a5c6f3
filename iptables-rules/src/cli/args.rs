//! The command line: the table of flags as a parser, and who wins between it and the environment.
//!
//! Precedence, high to low: flag, second variable, first variable, default. A variable counts when it is set, even to
//! nothing. Positional arguments are taken and ignored, as Istio does.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cli::flags::{FLAGS, Flag, Kind};
use crate::cli::generate::Document;
use crate::cli::log::LogOptions;
use crate::cli::syntax;
use crate::config::options::Options;

const LOG_TARGET: &str = "log_target";
const LOG_AS_JSON: &str = "log_as_json";
const LOG_LEVELS: &str = "log_output_level";
const LOG_STACKS: &str = "log_stacktrace_level";
const LOG_CALLERS: &str = "log_caller";
const GENERATE: &str = "generate";
const POSITIONAL: &str = "ignored";

/// What the command was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The rules.
    pub options: Options,
    /// Name of the proxy's user, for when there is no `--proxy-uid`.
    pub envoy_user: String,
    /// Print and change nothing.
    pub dry_run: bool,
    /// Print a sentence about each rule.
    pub explain: bool,
    /// File that a dry run writes its transcript to; empty for none.
    pub transcript: OsString,
    /// Leave the rules alone.
    pub skip_rule_apply: bool,
    /// Prove that traffic is redirected.
    pub run_validation: bool,
    /// Port of the proof.
    pub probe_port: u16,
    /// Longest time of the proof.
    pub probe_timeout: Duration,
    /// File of the network namespace; empty when nobody named one.
    pub network_namespace: String,
    /// The files are the host's.
    pub cni_mode: bool,
    /// Replace what differs.
    pub reconcile: bool,
    /// Remove only.
    pub cleanup_only: bool,
    /// Write what is there.
    pub force_apply: bool,
    /// Tables of nftables.
    pub native_nftables: bool,
    /// `legacy`, `nft`, nothing, or a mistake.
    pub force_iptables_binary: String,
}

/// The parser.
pub fn command() -> Command {
    let log = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
    };
    Command::new("istio-iptables")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Redirects the traffic of a pod to its sidecar proxy")
        .after_help(AFTER_HELP)
        .args_override_self(true)
        .args(FLAGS.iter().map(argument))
        .arg(
            log(LOG_TARGET, "PATH", "Where the log goes, may be given more than once: a file, stdout or stderr")
                .action(ArgAction::Append)
                .default_value("stdout"),
        )
        .arg(switch_argument(LOG_AS_JSON).help("Log JSON lines"))
        .arg(log(LOG_LEVELS, "LEVELS", "Levels to log: [scope:]level,... of debug, info, warn, error, none"))
        .arg(log(LOG_STACKS, "LEVELS", "Accepted; there are no stack traces"))
        .arg(log(LOG_CALLERS, "SCOPES", "Accepted; callers are not logged"))
        .arg(
            Arg::new(GENERATE)
                .long(GENERATE)
                .value_name("WHAT")
                .hide(true)
                .value_parser(clap::value_parser!(Document))
                .help("Print a completion script or the manual page"),
        )
        .arg(Arg::new(POSITIONAL).num_args(0..).value_parser(clap::value_parser!(OsString)).hide(true).help("Ignored"))
}

const AFTER_HELP: &str = "\
Further variables:
  ISTIO_OUTBOUND_OWNER_GROUPS          groups whose outbound traffic is captured [default: *]
  ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE  groups whose outbound traffic is not, when all others' is
  ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR    IPv4 loopback range [default: 127.0.0.1/32]
  ENVOY_USER                           user of the proxy [default: istio-proxy]
  DRY_RUN_FILE_PATH                    file for the transcript of a dry run

Exit codes: 0 done, 1 not done, 126 validation failed, 255 wrong command line.";

fn argument(flag: &Flag) -> Arg {
    let argument = match flag.kind {
        Kind::Switch => switch_argument(flag.name),
        Kind::Text => value_argument(flag),
        Kind::Port => value_argument(flag).value_parser(syntax::port),
        Kind::Duration => value_argument(flag).value_parser(syntax::duration),
    };
    let argument = match flag.short {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    let mut help = flag.help.to_owned();
    if flag.kind != Kind::Switch && !flag.default.is_empty() {
        help += &format!(" [default: {}]", flag.default);
    }
    if !flag.env.is_empty() {
        help += &format!(" [env: {}]", flag.env.join(", "));
    }
    argument.help(help)
}

/// Takes the next word whatever it looks like, as Go's flags do.
fn value_argument(flag: &Flag) -> Arg {
    Arg::new(flag.name).long(flag.name).value_name(flag.value).allow_hyphen_values(true)
}

/// Never takes the next word: a value is joined by `=`.
fn switch_argument(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_name("BOOL")
        .hide_possible_values(true)
        .value_parser(syntax::switch)
}

/// The document that was asked for instead of any rules.
pub fn document(matches: &ArgMatches) -> Option<Document> {
    matches.get_one(GENERATE).copied()
}

/// How to log.
///
/// # Errors
/// Names the flag and what is wrong with its value.
pub fn log_options(matches: &ArgMatches) -> Result<LogOptions, String> {
    let text = |name| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let targets: Vec<String> = matches.get_many(LOG_TARGET).into_iter().flatten().cloned().collect();
    let json = matches.get_one(LOG_AS_JSON).copied().unwrap_or(false);
    LogOptions::check_levels(text(LOG_STACKS)).map_err(|error| format!("--{LOG_STACKS}: {error}"))?;
    LogOptions::new(text(LOG_LEVELS), json, targets).map_err(|error| format!("--{LOG_LEVELS}: {error}"))
}

/// Command line, environment and defaults together; `env` looks up a variable.
pub fn request(matches: &ArgMatches, env: &dyn Fn(&str) -> Option<OsString>) -> Request {
    let values = Values { matches, env };
    let text = |name| values.text(name);
    let on = |name| values.on(name);
    let defaults = Options::default();
    let options = Options {
        envoy_port: text("envoy-port"),
        inbound_capture_port: text("inbound-capture-port"),
        inbound_tunnel_port: text("inbound-tunnel-port"),
        proxy_uid: text("proxy-uid"),
        proxy_gid: text("proxy-gid"),
        mode: text("istio-inbound-interception-mode"),
        tproxy_mark: text("istio-inbound-tproxy-mark"),
        tproxy_route_table: text("istio-inbound-tproxy-route-table"),
        inbound_ports: text("istio-inbound-ports"),
        inbound_ports_exclude: text("istio-local-exclude-ports"),
        outbound_cidrs: text("istio-service-cidr"),
        outbound_cidrs_exclude: text("istio-service-exclude-cidr"),
        outbound_ports: text("istio-outbound-ports"),
        outbound_ports_exclude: text("istio-local-outbound-ports-exclude"),
        exclude_interfaces: text("istio-exclude-interfaces"),
        virtual_interfaces: text("kube-virt-interfaces"),
        owner_groups: values.variable("ISTIO_OUTBOUND_OWNER_GROUPS").unwrap_or(defaults.owner_groups),
        owner_groups_exclude: values
            .variable("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE")
            .unwrap_or(defaults.owner_groups_exclude),
        loopback_v4: values.variable("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR").unwrap_or(defaults.loopback_v4),
        redirect_dns: on("redirect-dns"),
        capture_all_dns: on("capture-all-dns"),
        drop_invalid: on("drop-invalid"),
        dual_stack: on("dual-stack"),
    };
    let explain = on("explain");
    Request {
        options,
        envoy_user: values.variable("ENVOY_USER").unwrap_or_else(|| "istio-proxy".to_owned()),
        dry_run: explain || on("dry-run"),
        explain,
        transcript: env("DRY_RUN_FILE_PATH").unwrap_or_default(),
        skip_rule_apply: on("skip-rule-apply"),
        run_validation: on("run-validation"),
        probe_port: values.parsed("iptables-probe-port", syntax::lenient_port),
        probe_timeout: values.parsed("probe-timeout", syntax::lenient_duration),
        network_namespace: text("network-namespace"),
        cni_mode: on("cni-mode"),
        reconcile: on("reconcile"),
        cleanup_only: on("cleanup-only"),
        force_apply: on("force-apply"),
        native_nftables: on("native-nftables"),
        force_iptables_binary: text("force-iptables-binary"),
    }
}

/// Looks values up by the flag's name.
struct Values<'a> {
    matches: &'a ArgMatches,
    env: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Values<'_> {
    fn text(&self, name: &str) -> String {
        self.parsed(name, str::to_owned)
    }

    fn on(&self, name: &str) -> bool {
        self.parsed(name, syntax::lenient_switch)
    }

    /// The flag's value, or what `lenient` makes of the variable or the default.
    fn parsed<T: Clone + Send + Sync + 'static>(&self, name: &str, lenient: impl Fn(&str) -> T) -> T {
        let given = self.matches.get_one::<T>(name).cloned();
        given.unwrap_or_else(|| lenient(&self.behind(name)))
    }

    /// The strongest variable of a flag that is set, or the flag's default.
    fn behind(&self, name: &str) -> String {
        let flag = FLAGS.iter().find(|flag| flag.name == name);
        let set = flag.and_then(|flag| flag.env.iter().rev().find_map(|variable| self.variable(variable)));
        set.unwrap_or_else(|| flag.map(|flag| flag.default).unwrap_or_default().to_owned())
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name).map(|value| value.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
