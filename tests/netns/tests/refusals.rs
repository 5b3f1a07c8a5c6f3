//! What the kernel refuses: the error names the rule, and nothing has changed.
#![allow(clippy::unwrap_used)]

use iptables_rules::apply::{ApplyError, apply_plan};
use iptables_rules::config::{HostFacts, Selection, Settings};
use iptables_rules::model::{Match, Position, Protocol, RedirectOption, Rule, Table, Target, chain};
use iptables_rules::plan::{Plan, sidecar};
use testkit::netns::{Sandbox, available};

fn good() -> Plan {
    let settings = Settings { inbound_ports: Selection::All, outbound_cidrs: Selection::All, ..Settings::default() };
    sidecar(&settings, &HostFacts { ipv6: true, ..HostFacts::default() })
}

fn rule(table: Table, chain: &'static str, target: Target) -> Rule {
    let matches = vec![Match::Protocol(Protocol::Tcp)];
    Rule { table, chain, position: Position::Append, matches, target }
}

/// Applies a good set with `bad` among the rules of both families, once to nothing and once to another set. Returns the
/// error.
fn refused(bad: &Rule) -> String {
    let mut plan = good();
    for rules in [&mut plan.v4, &mut plan.v6] {
        rules.insert(rules.len() / 2, bad.clone());
    }
    let sandbox = Sandbox::new();
    let first = sandbox.run(|| apply_plan(&plan)).unwrap_err();
    assert_eq!(sandbox.sh("nft list ruleset"), "", "after {first}");
    sandbox.run(|| apply_plan(&good())).unwrap();
    // Handles show that every rule is the old one.
    let before = sandbox.sh("nft -a list ruleset");
    let error = sandbox.run(|| apply_plan(&plan)).unwrap_err();
    assert_eq!(before, sandbox.sh("nft -a list ruleset"), "after {error}");
    assert!(matches!(error, ApplyError::Refused { .. }), "{error:?}");
    assert_eq!(first.to_string(), error.to_string());
    error.to_string()
}

#[test]
fn a_target_that_does_not_belong_into_its_table_is_named() {
    if !available() {
        return;
    }
    // The kernel knows zones in table raw only.
    let error = refused(&rule(Table::Nat, chain::OUTPUT, Target::ConntrackZone(1)));
    assert!(error.contains("rule `-A ISTIO_OUTPUT -p tcp -j CT --zone 1`"), "{error}");
    // And redirects in table nat only.
    let redirect = Target::Redirect { port: 15001.into(), option: RedirectOption::ToPorts };
    let error = refused(&rule(Table::Mangle, chain::DIVERT, redirect));
    assert!(error.contains("rule `-A ISTIO_DIVERT -p tcp -j REDIRECT --to-ports 15001`"), "{error}");
}

#[test]
fn a_chain_that_leads_to_itself_is_refused_as_a_whole() {
    if !available() {
        return;
    }
    let error = refused(&rule(Table::Nat, chain::OUTPUT, Target::Jump(chain::OUTPUT)));
    // Which of the rules on the way is to blame is the kernel's choice.
    assert!(error.contains("refused rule `-A ") && error.contains("-j ISTIO_OUTPUT`"), "{error}");
}
