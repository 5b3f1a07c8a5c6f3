//! Rules by the host's legacy iptables programs, in real namespaces.
#![allow(clippy::unwrap_used)]

mod cases;
mod programs;

use std::collections::BTreeSet;
use std::ffi::OsStr;

use iptables_rules::apply::backend::{Backend, decide};
use iptables_rules::apply::exec::{self, ExecError, Host, Programs};
use iptables_rules::apply::{Differences, Flavour, Policy, apply_plan};
use iptables_rules::config::{HostFacts, Id, Mode, OwnerGroups, Port, Selection, Settings};
use iptables_rules::model::{Family, Table};
use iptables_rules::plan::{Plan, sidecar as plan_of};
use testkit::netns::{Sandbox, available};

const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const REPLACE: Policy = Policy { replace: true, rewrite: false };
const KEEP: Policy = Policy { replace: false, rewrite: false };
const REWRITE: Policy = Policy { replace: false, rewrite: true };

/// Rules of others, before ours are applied, with counters.
const CANARIES: &str = "*mangle\n[1:11] -A PREROUTING -s 10.9.9.1/32 -j ACCEPT\nCOMMIT\n\
    *nat\n:OTHERS - [0:0]\n[2:22] -A OUTPUT -d 10.9.9.2/32 -j OTHERS\n[3:33] -A OTHERS -d 10.9.9.3/32 -j RETURN\nCOMMIT\n";

fn run(plan: &Plan, known: &Plan, policy: Policy, search: &str) -> Result<Differences, ExecError> {
    let host = Host { search: OsStr::new(search), on_host: false, netns: None };
    exec::apply(plan, known, policy, Programs::Legacy, host, &mut Vec::new())
}

fn apply(sandbox: &Sandbox, plan: &Plan, policy: Policy) -> Result<Differences, ExecError> {
    sandbox.run(|| run(plan, &Plan::default(), policy, SEARCH))
}

fn clean_up(sandbox: &Sandbox, known: &Plan) -> Result<Differences, ExecError> {
    sandbox.run(|| run(&Plan::default(), known, REPLACE, SEARCH))
}

fn captures_all() -> Settings {
    Settings { inbound_ports: Selection::All, outbound_cidrs: Selection::All, ..Settings::default() }
}

/// TPROXY, DNS and more: rules in three tables.
fn tproxy() -> Settings {
    Settings {
        mode: Mode::Tproxy,
        inbound_ports_exclude: vec![Port::new("15020")],
        exclude_interfaces: vec!["net1".to_owned()],
        virtual_interfaces: vec!["tap0".to_owned(), "tap1".to_owned()],
        redirect_dns: true,
        capture_all_dns: true,
        drop_invalid: true,
        ..captures_all()
    }
}

fn plan(settings: &Settings) -> Plan {
    plan_of(settings, &HostFacts { ipv6: true, ..HostFacts::default() })
}

/// What the legacy tools print, one block per table in a steady order. Tables without rules and chains are left out:
/// looking at a table makes one.
fn listing(sandbox: &Sandbox, counters: bool) -> String {
    let mut all = String::new();
    for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
        let text = sandbox.sh(&format!("{program} {}", if counters { "-c" } else { "" }));
        let mut blocks = BTreeSet::new();
        for block in text.split("COMMIT") {
            let lines = block.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            let lines: Vec<&str> =
                lines.map(|line| if line.starts_with(':') { line.split(" [").next().unwrap() } else { line }).collect();
            if lines.iter().any(|line| line.contains("-A ") || line.ends_with(" -")) {
                blocks.insert(lines.join("\n"));
            }
        }
        all += &format!("# {program}\n{}\n", blocks.into_iter().collect::<Vec<_>>().join("\n"));
    }
    all
}

fn load_reference(sandbox: &Sandbox, v4: &[String], v6: &[String]) -> Result<(), String> {
    for (program, lines) in [("iptables-legacy-restore", v4), ("ip6tables-legacy-restore", v6)] {
        if !lines.is_empty() {
            sandbox.feed(&format!("{program} --noflush"), &(lines.join("\n") + "\n"))?;
        }
    }
    Ok(())
}

/// Loads rules of others: before ours the ones of [`CANARIES`], afterwards one more behind and one in front.
fn with_canaries(first: &Plan) -> Sandbox {
    let sandbox = Sandbox::new();
    for program in ["iptables-legacy-restore", "ip6tables-legacy-restore"] {
        let text = if program.starts_with("ip6") {
            CANARIES.replace("10.9.9.", "fd00::").replace("/32", "/128")
        } else {
            CANARIES.to_owned()
        };
        sandbox.feed(&format!("{program} -c --noflush"), &text).unwrap();
    }
    apply(&sandbox, first, KEEP).unwrap();
    sandbox.sh("iptables-legacy -t nat -A OUTPUT -d 10.9.9.4 -j ACCEPT; iptables-legacy -t nat -I OUTPUT 1 -d 10.9.9.5 -j ACCEPT");
    sandbox
}

/// The rules of others in their order.
fn foreign(sandbox: &Sandbox) -> Vec<String> {
    let ours = |line: &str| line.contains("ISTIO_") || !(line.contains("10.9.9.") || line.contains("fd00::"));
    listing(sandbox, true).lines().filter(|line| !ours(line)).map(str::to_owned).collect()
}

#[test]
fn rules_of_others_keep_place_and_counters_through_apply_replace_and_clean_up() {
    if !available() {
        return;
    }
    let (first, second) = (plan(&tproxy()), plan(&captures_all()));
    let sandbox = with_canaries(&first);
    let before = foreign(&sandbox);
    assert_eq!(before.len(), 8, "{before:#?}");
    assert!(before.iter().any(|line| line.starts_with("[3:33] -A OTHERS")), "{before:#?}");
    apply(&sandbox, &second, REPLACE).unwrap();
    assert_eq!(foreign(&sandbox), before);
    apply(&sandbox, &second, REWRITE).unwrap();
    assert_eq!(foreign(&sandbox), before);
    clean_up(&sandbox, &second).unwrap();
    assert_eq!(foreign(&sandbox), before);
    assert!(!listing(&sandbox, false).contains("ISTIO"), "{}", listing(&sandbox, false));
    // And nothing else is left, of any table: the TPROXY rules in built-in chains went with their chains.
    let rules = listing(&sandbox, false).lines().filter(|line| line.starts_with("-A ")).count();
    let left_of_others = before.len();
    // A RETURN for an interface that the settings no longer name cannot be told from somebody's own rule.
    assert_eq!(rules - left_of_others, 2 * (2 + 2) + 2 * 2, "{}", listing(&sandbox, false));
}

#[test]
fn rules_of_another_configuration_are_left_alone_without_reconcile_and_replaced_with_it() {
    if !available() {
        return;
    }
    let (old, new) = (plan(&captures_all()), plan(&tproxy()));
    let (sandbox, fresh) = (Sandbox::new(), Sandbox::new());
    apply(&sandbox, &old, KEEP).unwrap();
    let before = listing(&sandbox, true);
    let Err(ExecError::Differ(found)) = apply(&sandbox, &new, KEEP) else { panic!("it was replaced") };
    assert!(found.iter().any(|(family, _)| *family == Family::V6) && found.len() > 10, "{found:?}");
    assert_eq!(listing(&sandbox, true), before);
    apply(&sandbox, &new, REPLACE).unwrap();
    apply(&fresh, &new, KEEP).unwrap();
    assert_eq!(listing(&sandbox, false), listing(&fresh, false));
    assert_eq!(apply(&sandbox, &new, KEEP).unwrap(), []);
}

#[test]
fn a_lost_jump_a_doubled_jump_and_a_flushed_chain_are_repaired() {
    if !available() {
        return;
    }
    let plan = plan(&captures_all());
    for damage in [
        "iptables-legacy -t nat -D OUTPUT -j ISTIO_OUTPUT",
        "iptables-legacy -t nat -A OUTPUT -j ISTIO_OUTPUT",
        "iptables-legacy -t nat -F ISTIO_REDIRECT",
        "ip6tables-legacy -t nat -I ISTIO_OUTPUT 1 -j RETURN",
        "iptables-legacy -t mangle -N ISTIO_DIVERT; iptables-legacy -t mangle -A INPUT -j ISTIO_DIVERT",
        "iptables-legacy -t nat -N MINE; iptables-legacy -t nat -A MINE -j ISTIO_REDIRECT; iptables-legacy -t nat -F MINE",
    ] {
        let (sandbox, fresh) = (Sandbox::new(), Sandbox::new());
        apply(&sandbox, &plan, KEEP).unwrap();
        apply(&fresh, &plan, KEEP).unwrap();
        sandbox.sh(damage);
        let found = apply(&sandbox, &plan, REPLACE).unwrap();
        assert_eq!(found.is_empty(), damage.contains("MINE"), "{damage}: {found:?}");
        sandbox.sh("iptables-legacy -t nat -X MINE 2>/dev/null; true");
        assert_eq!(listing(&sandbox, false), listing(&fresh, false), "{damage}");
    }
}

#[test]
fn nothing_is_half_applied_when_a_later_table_or_family_is_refused() {
    if !available() {
        return;
    }
    let bad = |settings: Settings| Settings {
        owner_groups: OwnerGroups::AllExcept(vec![Id::new("no-such-group")]),
        drop_invalid: true,
        ..settings
    };
    let (good, refused) = (plan(&captures_all()), plan(&bad(tproxy())));
    // The IPv4 half is fine, the IPv6 half is not.
    let half = Plan { v4: plan(&tproxy()).v4, v6: refused.v6.clone() };
    for plan in [&refused, &half] {
        let empty = Sandbox::new();
        let error = apply(&empty, plan, KEEP).unwrap_err().to_string();
        assert!(error.contains("no-such-group") && error.contains("exit code 2"), "{error}");
        assert_eq!(listing(&empty, false), listing(&Sandbox::new(), false));
        let sandbox = with_canaries(&good);
        let before = listing(&sandbox, false);
        apply(&sandbox, plan, REPLACE).unwrap_err();
        assert_eq!(listing(&sandbox, false), before);
    }
    assert!(refused.v4.iter().any(|rule| rule.table == Table::Mangle), "no earlier table");
}

#[test]
fn two_runs_at_once_end_with_one_rule_set() {
    if !available() {
        return;
    }
    let (sandbox, fresh, plan) = (Sandbox::new(), Sandbox::new(), plan(&captures_all()));
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| apply(&sandbox, &plan, KEEP))).collect();
        for run in runs {
            run.join().unwrap().unwrap();
        }
    });
    apply(&fresh, &plan, KEEP).unwrap();
    assert_eq!(listing(&sandbox, false), listing(&fresh, false));
}

#[test]
fn a_namespace_with_legacy_rules_is_recognised_and_one_with_bare_tables_is_not() {
    if !available() {
        return;
    }
    let tables = "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null; true";
    for (script, legacy) in [
        ("true", None),
        ("iptables-legacy -t nat -L; ip6tables-legacy -t filter -L", None),
        ("iptables-legacy -t nat -N KUBE-MARK-MASQ", None),
        ("iptables-legacy -t nat -A INPUT -p 255 -j RETURN; iptables-legacy -t nat -D INPUT -p 255 -j RETURN", None),
        ("iptables-nft -t nat -A OUTPUT -d 10.0.0.1 -j ACCEPT", None),
        ("iptables-legacy -A INPUT -s 10.0.0.1 -j DROP", Some("table filter (IPv4)")),
        (
            "iptables-legacy -t nat -L; iptables-legacy -t nat -N X; iptables-legacy -t nat -A X -j RETURN",
            Some("table nat (IPv4)"),
        ),
        ("ip6tables-legacy -t raw -A OUTPUT -d fd00::1 -j ACCEPT", Some("table raw (IPv6)")),
    ] {
        let sandbox = Sandbox::new();
        sandbox.sh(script);
        let before = sandbox.sh(tables);
        let choice = sandbox.run(|| decide(None));
        let backend = if legacy.is_some() { Backend::Legacy(Programs::LegacyOrPlain) } else { Backend::NfTables };
        assert_eq!(choice.backend, backend, "{script}: {choice:?}");
        assert!(choice.reason.ends_with(legacy.unwrap_or("no legacy rules")), "{script}: {choice:?}");
        assert_eq!(sandbox.sh(tables), before, "{script}: looking left a trace");
    }
}

#[test]
fn rules_of_ours_on_both_sides_are_noticed() {
    if !available() {
        return;
    }
    let (sandbox, plan) = (Sandbox::new(), plan(&captures_all()));
    assert!(!sandbox.run(|| decide(Some(Flavour::Legacy))).also_in_other);
    sandbox.run(|| apply_plan(&plan)).unwrap();
    assert!(sandbox.run(|| decide(Some(Flavour::Legacy))).also_in_other);
    sandbox.sh("iptables-legacy -A INPUT -s 10.0.0.1 -j DROP");
    let choice = sandbox.run(|| decide(None));
    assert_eq!((choice.backend, choice.also_in_other), (Backend::NfTables, false), "{choice:?}");
    apply(&sandbox, &plan, KEEP).unwrap();
    let choice = sandbox.run(|| decide(None));
    assert_eq!(choice.backend, Backend::Legacy(Programs::LegacyOrPlain), "{choice:?}");
    assert!(choice.also_in_other, "{choice:?}");
}
