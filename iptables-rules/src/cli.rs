//! The `istio-iptables` command: flags and environment in, rules or text out, an exit code.
//!
//! Names, defaults and exit codes are Istio's: 0 done, 1 not done, 255 wrong command line. What this version cannot do
//! yet is refused with a sentence, before anything is touched.

mod args;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::apply::{apply, apply_plan, host_facts};
use crate::cli::args::{Action, Args};
use crate::config::{HostFacts, Settings};
use crate::plan::{DnsCapture, Plan, sidecar};
use crate::render::iptables::restore;

/// Exit code of a wrong command line.
const USAGE: u8 = 255;

/// Runs the command on the process's arguments and environment.
#[must_use]
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    match execute(&args, |name| std::env::var(name).ok()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("istio-iptables: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn execute(args: &Args, env: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let action = args.action(&env)?;
    let settings = args.options(&env).settings().map_err(|error| error.to_string())?;
    match action {
        Action::Nothing => Ok(()),
        Action::Print => dry_run(&settings),
        Action::Remove => remove(),
        Action::Apply => put_in_place(&settings),
    }
}

fn put_in_place(settings: &Settings) -> Result<(), String> {
    let applied = apply(settings).map_err(|error| error.to_string())?;
    let families = if applied.ipv6 { "IPv4 and IPv6" } else { "IPv4" };
    let outcome = if applied.changed { "applied" } else { "already in place" };
    println!("istio-iptables: {} rules for {families} {outcome}", applied.rules);
    Ok(())
}

fn remove() -> Result<(), String> {
    let differences = apply_plan(&Plan::default()).map_err(|error| error.to_string())?;
    println!("istio-iptables: {}", if differences.is_empty() { "no rules to remove" } else { "rules removed" });
    Ok(())
}

/// Prints what an apply would hand to `iptables-restore` and `ip6tables-restore`; the comments say which is which.
fn dry_run(settings: &Settings) -> Result<(), String> {
    let facts = host_facts(settings).map_err(|error| error.to_string())?;
    warn_about_dns(settings, &facts);
    let plan = sidecar(settings, &facts);
    for (title, rules) in [("# IPv4", &plan.v4), ("# IPv6", &plan.v6)] {
        if !rules.is_empty() {
            println!("{title}\n{}", restore(rules).join("\n"));
        }
    }
    Ok(())
}

fn warn_about_dns(settings: &Settings, facts: &HostFacts) {
    if settings.redirect_dns && DnsCapture::of(settings, facts) == DnsCapture::Off {
        eprintln!("istio-iptables: --redirect-dns has no effect: /etc/resolv.conf names no server");
    }
}
