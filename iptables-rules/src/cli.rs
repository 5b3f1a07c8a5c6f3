//! The `istio-iptables` command: flags and environment in, rules or text out, an exit code.
//!
//! Names, defaults, precedence and exit codes are Istio's: 0 done, 1 not done, 126 validation failed, 255 wrong command
//! line. The order of work is Istio's too: facts, validation of options, rules, proof. What cannot be done is refused
//! with the flag, the value and what would be right, before anything is touched.

mod args;
mod dry_run;
mod dump;
mod flags;
mod generate;
mod log;
mod syntax;
mod usable;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::apply::addresses::local_addresses;
use crate::apply::{self, Applied, Flavour, Form, Job, host_facts};
use crate::cli::args::Request;
use crate::cli::log::{Level, Log};
use crate::config::detect::{PASSWD, id_of, local_address};
use crate::config::options::{Options, loopback_v4, owner_groups};
use crate::config::{DEFAULT_PROXY_ID, HostFacts, Settings};
use crate::plan::DnsCapture;
use crate::validate::{self, Probe};

/// Exit code of a failed validation. Istio's repair controller looks for it.
const INVALID: u8 = 126;
/// Exit code of a wrong command line.
const USAGE: u8 = 255;

/// What went wrong.
#[derive(Debug)]
enum Failure {
    /// The rules are not as asked for.
    NotDone(String),
    /// The rules do not redirect traffic.
    NotRedirected(String),
}

impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self::NotDone(sentence)
    }
}

/// Runs the command on the process's arguments and environment.
#[must_use]
pub fn run() -> ExitCode {
    let matches = match args::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    if let Some(document) = args::document(&matches) {
        let written = generate::write(document, args::command(), &mut std::io::stdout());
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let log = match args::log_options(&matches).and_then(|options| Log::open(&options)) {
        Ok(log) => log,
        Err(sentence) => {
            eprintln!("istio-iptables: {sentence}");
            return ExitCode::from(USAGE);
        }
    };
    let env = |name: &str| std::env::var_os(name);
    match execute(args::request(&matches, &env), &env, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (sentence, code) = match failure {
                Failure::NotDone(sentence) => (sentence, ExitCode::FAILURE),
                Failure::NotRedirected(sentence) => (sentence, ExitCode::from(INVALID)),
            };
            log.write(Level::Error, &sentence);
            // The reason must be seen, wherever the log goes.
            if !log.shows(Level::Error) {
                eprintln!("istio-iptables: {sentence}");
            }
            code
        }
    }
}

fn execute(mut request: Request, env: &dyn Fn(&str) -> Option<OsString>, log: &Log) -> Result<(), Failure> {
    fill_ids(&mut request.options, &request.envoy_user);
    let facts = look_around(&request.options)?;
    let flavour = check_options(&request)?;
    if !request.skip_rule_apply {
        handle_rules(&request, flavour, &facts, env, log)?;
    }
    if request.run_validation { prove(&request, log) } else { Ok(()) }
}

/// Users and groups that nobody named: the user of the proxy, or its usual number.
fn fill_ids(options: &mut Options, envoy_user: &str) {
    if options.proxy_uid.is_empty() {
        let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
        let known = if envoy_user.is_empty() { None } else { id_of(envoy_user, &passwd) };
        options.proxy_uid = known.unwrap_or(DEFAULT_PROXY_ID).to_string();
    }
    if options.proxy_gid.is_empty() {
        options.proxy_gid.clone_from(&options.proxy_uid);
    }
}

/// Host facts do not depend on the lists, which may still be wrong here.
fn look_around(options: &Options) -> Result<HostFacts, String> {
    let relevant = Settings {
        redirect_dns: options.redirect_dns,
        capture_all_dns: options.capture_all_dns,
        dual_stack: options.dual_stack,
        ..Settings::default()
    };
    host_facts(&relevant).map_err(|error| error.to_string())
}

/// What must be right whatever is to be done, in Istio's order.
fn check_options(request: &Request) -> Result<Option<Flavour>, String> {
    let options = &request.options;
    owner_groups(&options.owner_groups, &options.owner_groups_exclude).map_err(|error| error.to_string())?;
    let flavour = match request.force_iptables_binary.as_str() {
        "" => None,
        "legacy" => Some(Flavour::Legacy),
        "nft" => Some(Flavour::Nft),
        other => {
            return Err(format!(
                "invalid FORCE_IPTABLES_BINARY value \"{other}\" (--force-iptables-binary): it is legacy, nft or nothing"
            ));
        }
    };
    loopback_v4(&options.loopback_v4).map_err(|error| error.to_string())?;
    Ok(flavour)
}

fn handle_rules(
    request: &Request,
    flavour: Option<Flavour>,
    facts: &HostFacts,
    env: &dyn Fn(&str) -> Option<OsString>,
    log: &Log,
) -> Result<(), String> {
    let settings = match request.options.settings() {
        Ok(settings) => settings,
        Err(error) => {
            if request.dry_run {
                dry_run::record_failure(request, facts);
            }
            return Err(error.to_string());
        }
    };
    if settings.redirect_dns && DnsCapture::of(&settings, facts) == DnsCapture::Off {
        log.warn("--redirect-dns has no effect: /etc/resolv.conf names no server");
    }
    let variable = |name: &str| env(name).unwrap_or_default().to_string_lossy().into_owned();
    log.info(&dump::environment(request.native_nftables, variable));
    log.info(&dump::config(request, facts));
    if request.dry_run {
        dry_run::run(request, &settings, facts, log);
        return Ok(());
    }
    if !request.cleanup_only {
        for (title, lines) in dry_run::texts(request, &settings, facts) {
            log.info(&format!("rules to apply, {title}:\n{}", lines.join("\n")));
        }
        usable::check(&settings, facts, &|path| fs::read_to_string(path).unwrap_or_default())?;
    }
    let job = Job {
        settings,
        form: if request.native_nftables { Form::Native } else { Form::Compatible },
        flavour,
        reconcile: request.reconcile,
        cleanup_only: request.cleanup_only,
        force: request.force_apply,
        on_host: request.cni_mode,
        search: env("PATH"),
        netns: (!request.network_namespace.is_empty()).then(|| PathBuf::from(&request.network_namespace)),
    };
    let applied = apply::run(&job).map_err(|error| error.to_string())?;
    report(&job, &applied, log);
    Ok(())
}

fn report(job: &Job, applied: &Applied, log: &Log) {
    if log.wants(Level::Debug) {
        for difference in &applied.differences {
            log.write(Level::Debug, &format!("before: {difference}"));
        }
    }
    for note in &applied.notes {
        log.warn(note);
    }
    let families = if applied.ipv6 { "IPv4 and IPv6" } else { "IPv4" };
    let rules = applied.rules;
    let outcome = match (job.cleanup_only, applied.changed) {
        (true, true) => "rules removed".to_owned(),
        (true, false) => "no rules to remove".to_owned(),
        (false, true) => format!("{rules} rules for {families} applied"),
        (false, false) => format!("{rules} rules for {families} already in place"),
    };
    log.info(&format!("{outcome}; {}", applied.backend));
    if job.force && !job.cleanup_only && applied.differences.is_empty() {
        log.warn("--force-apply: the rules were in place already and were written again");
    }
}

/// Shows that a connection of this process is redirected.
fn prove(request: &Request, log: &Log) -> Result<(), Failure> {
    let addresses = local_addresses().map_err(|error| format!("the addresses of the network namespace: {error}"))?;
    let local = local_address(&addresses, request.options.dual_stack).map_err(|error| error.to_string())?;
    let probe = Probe {
        ipv6: local.host.is_ipv6(),
        proxy_port: request.options.envoy_port.clone(),
        inbound_port: request.options.inbound_capture_port.clone(),
        port: request.probe_port,
        timeout: request.probe_timeout,
    };
    log.info(&format!("validation: {probe}"));
    match validate::run(&probe, &|note| log.info(note)) {
        Ok(()) => {
            log.info("validation passed: traffic is redirected to the proxy");
            Ok(())
        }
        Err(cause) => Err(Failure::NotRedirected(format!("{NOT_READY} Cause: {cause}"))),
    }
}

const NOT_READY: &str = "\
validation failed, the workload is not ready: its traffic is not redirected to the proxy. When Istio CNI is in use, this \
happens to a pod that was scheduled on a node before the node agent there was ready. With cni.repair.deletePods=true \
such pods are deleted, and so made anew, automatically; without it, delete the pod by hand.";
