//! What would be done, as text: on stdout for people, and in the transcript file that Istio's dry run keeps.
//!
//! The transcript holds what Istio would run, line by line: the look at the present rules, the text for the restore
//! programs, and the last look. Beside the rules it may tell why each is there.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::cli::args::Request;
use crate::cli::log::Log;
use crate::config::{HostFacts, Settings};
use crate::model::{Family, Rule};
use crate::plan::native::{self, NativeRule};
use crate::plan::{Plan, sidecar};
use crate::render::commands::cleanup_list;
use crate::render::explain::{explain, explain_native};
use crate::render::iptables::restore;
use crate::render::nft;

/// Prints the rules of `settings` and writes the transcript.
pub fn run(request: &Request, settings: &Settings, facts: &HostFacts, log: &Log) {
    log.info("dry run: nothing will be changed");
    if !request.native_nftables {
        record(request, &transcript(&sidecar(settings, facts), facts, request.cleanup_only));
    }
    for (title, lines) in texts(request, settings, facts) {
        show(title, &lines, log);
    }
    log.info("dry run: addresses and routes are left as they are");
}

/// What would be loaded, or in a clean-up run, with a title each: one text per family, or one for all of nftables.
pub fn texts(request: &Request, settings: &Settings, facts: &HostFacts) -> Vec<(&'static str, Vec<String>)> {
    if request.native_nftables {
        return vec![("nft -f", native_text(request, settings, facts))];
    }
    let plan = sidecar(settings, facts);
    let families = Family::BOTH.into_iter().filter(|family| *family == Family::V4 || facts.ipv6);
    families.map(|family| family_text(request, plan.rules(family), family)).collect()
}

/// Writes the transcript of a run whose options turned out wrong: a last look at the rules.
pub fn record_failure(request: &Request, facts: &HostFacts) {
    if !request.native_nftables {
        record(request, &saves(facts.ipv6));
    }
}

fn native_text(request: &Request, settings: &Settings, facts: &HostFacts) -> Vec<String> {
    if request.cleanup_only {
        return nft::cleanup();
    }
    let plan = native::sidecar(settings, facts);
    let of_line = |line: &str| plan.rules.iter().find(|rule| request.explain && is_line_of(line, rule));
    explained(nft::transaction(&plan), |line| of_line(line).map(explain_native))
}

/// Whether this line of a transaction adds or inserts `rule`.
fn is_line_of(line: &str, rule: &NativeRule) -> bool {
    let place = format!("rule inet {} {} ", rule.table.as_str(), rule.chain);
    let Some((_, rest)) = line.split_once(&place) else { return false };
    let inserted = rest.strip_prefix("index ").and_then(|rest| rest.split_once(' ')).map(|(_, rest)| rest);
    inserted.unwrap_or(rest) == rule.to_string()
}

fn family_text(request: &Request, rules: &[Rule], family: Family) -> (&'static str, Vec<String>) {
    let title = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    if request.cleanup_only {
        let commands = cleanup_list(rules).into_iter();
        return (title, commands.map(|command| format!("{} {command}", program(family))).collect());
    }
    let of_line = |line: &str| rules.iter().find(|rule| request.explain && rule.to_string() == line);
    (title, explained(restore(rules), |line| of_line(line).map(explain)))
}

/// Puts a comment above each line that has a reason. Lines are found by their text: equal ones have equal reasons.
fn explained(lines: Vec<String>, reason: impl Fn(&str) -> Option<&'static str>) -> Vec<String> {
    let with_reason = |line: String| [reason(&line).map(|reason| format!("# {reason}")), Some(line)];
    lines.into_iter().flat_map(with_reason).flatten().collect()
}

/// Text goes to stdout as it is, so that it can be loaded; a log of JSON lines stays one.
fn show(title: &str, lines: &[String], log: &Log) {
    if log.is_json() {
        log.info(&format!("{title}:\n{}", lines.join("\n")));
    } else {
        let _ = writeln!(io::stdout(), "# {title}\n{}", lines.join("\n"));
    }
}

fn transcript(plan: &Plan, facts: &HostFacts, cleanup_only: bool) -> Vec<String> {
    let mut lines = saves(true);
    for family in Family::BOTH {
        let rules = plan.rules(family);
        if cleanup_only {
            let commands = cleanup_list(rules).into_iter();
            lines.extend(commands.map(|command| format!("{} {command}", program(family))));
        } else {
            lines.extend(restore(rules));
        }
    }
    lines.extend(saves(facts.ipv6));
    lines
}

fn saves(ipv6: bool) -> Vec<String> {
    let families = Family::BOTH.into_iter().filter(|family| ipv6 || *family == Family::V4);
    families.map(|family| format!("{}-save", program(family))).collect()
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Written over what is in the file, which is not cut: so Istio does it. A file that cannot be written is no failure.
fn record(request: &Request, lines: &[String]) {
    let path = Path::new(&request.transcript);
    if !path.as_os_str().is_empty() {
        let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
    }
}
