//! Refusal of IPv6 where the proxy handles IPv4 only.
//!
//! What is refused is what the sidecar rules would capture: these rules are made from those, in table filter, where
//! connections are sent to nobody but refused at once, so that the other side tries IPv4. Only the first packet of a
//! connection is looked at; what has begun goes on. All decisions stand in chains of ours, since a built-in chain of this
//! table may hold rules of others that must still be asked.

use crate::config::{HostFacts, Mode, Selection, Settings};
use crate::model::{Match, Position, Protocol, Refusal, Rule, Table, Target, builtin, chain};
use crate::plan::sidecar;

/// The IPv6 rules that refuse what `settings` would capture.
pub(super) fn rules(settings: &Settings, facts: &HostFacts) -> Vec<Rule> {
    // How a connection reaches the proxy does not matter to one that never does.
    let settings = Settings { mode: Mode::Redirect, ..settings.clone() };
    let facts = HostFacts { ipv6: true, ..facts.clone() };
    let captured: Vec<Rule> =
        sidecar::plan(&settings, &facts).v6.into_iter().filter(|rule| rule.table == Table::Nat).collect();
    let mut rules = Vec::new();
    if settings.inbound_ports != Selection::None || !settings.virtual_interfaces.is_empty() {
        // Both together are what meets PREROUTING.
        rules.push(hook(builtin::INPUT, begins(), chain::INBOUND));
        rules.push(hook(builtin::FORWARD, begins(), chain::INBOUND));
    }
    rules.push(hook(builtin::OUTPUT, begins(), chain::OUTPUT));
    if captured.iter().any(|rule| rule.chain == chain::OUTPUT_DNS) {
        let dns = Match::DestinationPort { negate: false, port: sidecar::DNS_PORT.into() };
        rules.push(hook(builtin::OUTPUT, vec![Match::Protocol(Protocol::Udp), dns], chain::OUTPUT));
    }
    // Table nat never sees the far end of a loopback connection.
    rules.push(filter(chain::INBOUND, vec![Match::InInterface("lo".to_owned())], Target::Return));
    rules.extend(captured.into_iter().filter_map(refusing));
    rules
}

/// The rule that does to refused connections what `rule` does to captured ones.
fn refusing(rule: Rule) -> Option<Rule> {
    let chain = match (rule.chain, &rule.target) {
        (builtin::PREROUTING, Target::Jump(chain::INBOUND)) | (builtin::OUTPUT, Target::Jump(chain::OUTPUT)) => {
            return None;
        }
        (builtin::PREROUTING, _) => chain::INBOUND,
        (builtin::OUTPUT, _) => chain::OUTPUT,
        (chain, _) => chain,
    };
    let target = match rule.target {
        Target::Redirect { .. } => Target::Reject(Refusal::of(protocol(&rule.matches))),
        target => target,
    };
    Some(Rule { table: Table::Filter, chain, target, ..rule })
}

fn protocol(matches: &[Match]) -> Protocol {
    let udp = matches.contains(&Match::Protocol(Protocol::Udp));
    if udp { Protocol::Udp } else { Protocol::Tcp }
}

fn begins() -> Vec<Match> {
    vec![Match::Protocol(Protocol::Tcp), Match::Begins]
}

/// Before all rules of others, which may let pass what must not.
fn hook(chain: &'static str, matches: Vec<Match>, to: &'static str) -> Rule {
    Rule { position: Position::Insert(1), ..filter(chain, matches, Target::Jump(to)) }
}

fn filter(chain: &'static str, matches: Vec<Match>, target: Target) -> Rule {
    Rule { table: Table::Filter, chain, position: Position::Append, matches, target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;
    use crate::plan::sidecar as plan;
    use crate::render::iptables::restore;

    fn facts() -> HostFacts {
        HostFacts { uncaptured: Some(Family::V6), ..HostFacts::default() }
    }

    fn captures_all() -> Settings {
        Settings {
            inbound_ports: Selection::All,
            inbound_ports_exclude: vec![15020.into()],
            outbound_cidrs: Selection::All,
            outbound_ports_exclude: vec![15020.into()],
            refuse_uncaptured: true,
            ..Settings::default()
        }
    }

    #[test]
    fn what_would_be_captured_is_refused() {
        let text = restore(&plan(&captures_all(), &facts()).v6);
        let expected = "* filter
-N ISTIO_INBOUND
-N ISTIO_REDIRECT
-N ISTIO_IN_REDIRECT
-N ISTIO_OUTPUT
-I INPUT 1 -p tcp --syn -j ISTIO_INBOUND
-I FORWARD 1 -p tcp --syn -j ISTIO_INBOUND
-I OUTPUT 1 -p tcp --syn -j ISTIO_OUTPUT
-A ISTIO_INBOUND -i lo -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_REDIRECT -p tcp -j REJECT --reject-with tcp-reset
-A ISTIO_IN_REDIRECT -p tcp -j REJECT --reject-with tcp-reset
-A ISTIO_INBOUND -p tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -p tcp --dport 15020 -j RETURN
-A ISTIO_OUTPUT -p udp --dport 15020 -j RETURN
-A ISTIO_OUTPUT -o lo -s ::6/128 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d ::1/128 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d ::1/128 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d ::1/128 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
COMMIT";
        assert_eq!(text.join("\n"), expected);
    }

    #[test]
    fn interfaces_lists_groups_and_dns_count_as_for_capture() {
        let settings = Settings {
            mode: Mode::Tproxy,
            inbound_ports: Selection::Only(vec![80.into()]),
            outbound_cidrs: Selection::Only(vec!["fd00::/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()]),
            outbound_cidrs_exclude: vec!["fd01::/16".parse().unwrap()],
            exclude_interfaces: vec!["net1".to_owned()],
            virtual_interfaces: vec!["tap0".to_owned()],
            owner_groups: crate::config::OwnerGroups::AllExcept(vec![9.into()]),
            redirect_dns: true,
            capture_all_dns: true,
            drop_invalid: true,
            ..captures_all()
        };
        let text = restore(&plan(&settings, &facts()).v6);
        for line in [
            "-I OUTPUT 1 -p udp --dport 53 -j ISTIO_OUTPUT",
            "-A ISTIO_INBOUND -i net1 -j RETURN",
            "-A ISTIO_OUTPUT -o net1 -j RETURN",
            "-I ISTIO_INBOUND 1 -i tap0 -d fd00::/8 -j ISTIO_REDIRECT",
            "-I ISTIO_INBOUND 1 -i tap0 -j RETURN",
            "-A ISTIO_INBOUND -p tcp --dport 80 -j ISTIO_IN_REDIRECT",
            "-A ISTIO_OUTPUT -m owner --gid-owner 9 -j RETURN",
            "-A ISTIO_OUTPUT -d fd01::/16 -j RETURN",
            "-A ISTIO_OUTPUT -d fd00::/8 -j ISTIO_REDIRECT",
            "-A ISTIO_OUTPUT_DNS -p tcp --dport 53 -j REJECT --reject-with tcp-reset",
            "-A ISTIO_OUTPUT_DNS -p udp --dport 53 -j REJECT --reject-with icmp6-port-unreachable",
        ] {
            assert!(text.iter().any(|it| it == line), "no {line} in {text:#?}");
        }
        assert_eq!(text.iter().filter(|line| line.starts_with('*')).count(), 1, "{text:#?}");
    }

    #[test]
    fn nothing_is_refused_unless_it_was_asked_for_and_ipv6_is_uncaptured() {
        let rules = |settings: &Settings, facts: &HostFacts| plan(settings, facts).v6;
        assert_eq!(rules(&Settings { refuse_uncaptured: false, ..captures_all() }, &facts()), []);
        assert_eq!(rules(&captures_all(), &HostFacts::default()), []);
        let captured = HostFacts { ipv6: true, ..HostFacts::default() };
        let without = Settings { refuse_uncaptured: false, ..captures_all() };
        assert_eq!(rules(&captures_all(), &captured), rules(&without, &captured));
        assert_eq!(plan(&captures_all(), &facts()).v4, plan(&without, &facts()).v4);
    }
}
