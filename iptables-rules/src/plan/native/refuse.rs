//! Refusal of IPv6 where the proxy handles IPv4 only, as native rules.
//!
//! Made from the rules that would capture, like the iptables form of it, in a table that packets meet before table nat:
//! Istio's rules there do not look at the family of a packet, and would send some of IPv6 to the proxy after all.

use crate::config::{HostFacts, Mode, Selection, Settings};
use crate::model::{Family, Protocol, Refusal};
use crate::plan::native::Statement::{Begins, Counter, InInterface, Jump, Redirect, Reject, Return};
use crate::plan::native::sidecar::{self, DNS_PORT, port};
use crate::plan::native::{NativeRule, NativeTable, Place, Side, Statement, chain};

/// The IPv6 rules that refuse what `settings` would capture.
pub(super) fn rules(settings: &Settings, facts: &HostFacts) -> Vec<NativeRule> {
    // How a connection reaches the proxy does not matter to one that never does.
    let settings = Settings { mode: Mode::Redirect, ..settings.clone() };
    let facts = HostFacts { ipv6: true, ..facts.clone() };
    let captured = sidecar::rules(&settings, &facts).into_iter().filter(of_ipv6).filter_map(refusing);
    let mut rules = vec![filter(chain::INBOUND, vec![InInterface("lo".to_owned()), Counter, Return])];
    rules.extend(captured);
    // All of a chain may have been about IPv4.
    let chains: Vec<&str> = rules.iter().map(|rule| rule.chain).collect();
    rules.retain(|rule| !rule.statements.iter().any(|it| matches!(it, Jump(to) if !chains.contains(to))));
    let mut hooks = Vec::new();
    if settings.inbound_ports != Selection::None || !settings.virtual_interfaces.is_empty() {
        hooks.push(hook(chain::PREROUTING, Begins, chain::INBOUND));
    }
    hooks.push(hook(chain::HOOK_OUTPUT, Begins, chain::OUTPUT));
    if chains.contains(&chain::OUTPUT_DNS) {
        let dns = port(Side::Destination, Protocol::Udp, &DNS_PORT.into());
        hooks.push(hook(chain::HOOK_OUTPUT, dns, chain::OUTPUT));
    }
    hooks.extend(rules);
    hooks
}

fn of_ipv6(rule: &NativeRule) -> bool {
    let of_ipv4 = |it: &Statement| matches!(it, Statement::Address { family: Family::V4, .. });
    rule.table == NativeTable::Nat && !rule.statements.iter().any(of_ipv4)
}

/// The rule that does to refused connections what `rule` does to captured ones.
fn refusing(rule: NativeRule) -> Option<NativeRule> {
    let jumps = |to| rule.statements.contains(&Jump(to));
    let chain = match rule.chain {
        chain::PREROUTING if jumps(chain::INBOUND) => return None,
        chain::HOOK_OUTPUT if jumps(chain::OUTPUT) => return None,
        chain::PREROUTING => chain::INBOUND,
        chain::HOOK_OUTPUT => chain::OUTPUT,
        chain => chain,
    };
    let refusal = Refusal::of(protocol(&rule.statements));
    let end = |it| if matches!(it, Redirect(_)) { Reject(refusal) } else { it };
    let statements = rule.statements.into_iter().map(end).collect();
    Some(NativeRule { table: NativeTable::Filter, chain, statements, ..rule })
}

fn protocol(statements: &[Statement]) -> Protocol {
    let udp = |it: &Statement| matches!(it, Statement::Port { protocol: Protocol::Udp, .. });
    if statements.iter().any(udp) { Protocol::Udp } else { Protocol::Tcp }
}

fn hook(chain: &'static str, what: Statement, to: &'static str) -> NativeRule {
    filter(chain, vec![Statement::Family(Family::V6), what, Counter, Jump(to)])
}

fn filter(chain: &'static str, statements: Vec<Statement>) -> NativeRule {
    NativeRule { table: NativeTable::Filter, chain, place: Place::Append, statements }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::native::sidecar as plan;
    use crate::render::nft::transaction;

    fn facts() -> HostFacts {
        HostFacts { uncaptured: Some(Family::V6), ..HostFacts::default() }
    }

    fn captures_all() -> Settings {
        Settings {
            inbound_ports: Selection::All,
            inbound_ports_exclude: vec![15020.into()],
            outbound_cidrs: Selection::All,
            refuse_uncaptured: true,
            ..Settings::default()
        }
    }

    fn text_of(settings: &Settings, facts: &HostFacts) -> Vec<String> {
        let text = transaction(&plan(settings, facts));
        text.into_iter().filter(|line| line.contains("istio-proxy-filter")).collect()
    }

    #[test]
    fn what_would_be_captured_is_refused() {
        let text = text_of(&captures_all(), &facts()).join("\n").replace("inet istio-proxy-filter", "T");
        let expected = "add table T
flush table T
add chain T prerouting { type filter hook prerouting priority -101 ; }
add chain T output { type filter hook output priority -101 ; }
add chain T istio-inbound
add chain T istio-redirect
add chain T istio-in-redirect
add chain T istio-output
add rule T prerouting meta nfproto ipv6 tcp flags & (fin|syn|rst|ack) == syn counter jump istio-inbound
add rule T output meta nfproto ipv6 tcp flags & (fin|syn|rst|ack) == syn counter jump istio-output
add rule T istio-inbound iifname lo counter return
add rule T istio-inbound meta l4proto tcp tcp dport 15008 counter return
add rule T istio-redirect meta l4proto tcp counter reject with tcp reset
add rule T istio-in-redirect meta l4proto tcp counter reject with tcp reset
add rule T istio-inbound meta l4proto tcp tcp dport 15020 counter return
add rule T istio-inbound meta l4proto tcp counter jump istio-in-redirect
add rule T istio-output oifname lo ip6 saddr ::6/128 counter return
add rule T istio-output oifname lo meta l4proto tcp ip6 daddr != ::1/128 tcp dport != 15008 skuid 1337 counter jump istio-in-redirect
add rule T istio-output oifname lo skuid != 1337 counter return
add rule T istio-output skuid 1337 counter return
add rule T istio-output oifname lo meta l4proto tcp ip6 daddr != ::1/128 tcp dport != 15008 skgid 1337 counter jump istio-in-redirect
add rule T istio-output oifname lo skgid != 1337 counter return
add rule T istio-output skgid 1337 counter return
add rule T istio-output ip6 daddr ::1/128 counter return
add rule T istio-output counter jump istio-redirect";
        assert_eq!(text, expected);
    }

    #[test]
    fn dns_is_refused_as_far_as_ipv6_servers_would_be_captured() {
        let settings = Settings { redirect_dns: true, ..captures_all() };
        let v4 = HostFacts { dns_servers_v4: vec!["10.0.0.10".to_owned()], ..facts() };
        assert!(!text_of(&settings, &v4).join("\n").contains("dns"));
        let both = HostFacts { dns_servers_v6: vec!["fd00::10".to_owned()], ..v4 };
        let text = text_of(&settings, &both).join("\n");
        for part in [
            "output meta nfproto ipv6 udp dport 53 counter jump istio-output",
            "istio-output-dns ip6 daddr fd00::10/128 tcp dport 53 counter reject with tcp reset",
            "istio-output-dns ip6 daddr fd00::10/128 udp dport 53 counter reject with icmpx port-unreachable",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert!(!text.contains("10.0.0.10"), "{text}");
    }

    #[test]
    fn nothing_is_refused_unless_it_was_asked_for_and_ipv6_is_uncaptured() {
        assert!(text_of(&Settings { refuse_uncaptured: false, ..captures_all() }, &facts()).is_empty());
        assert!(text_of(&captures_all(), &HostFacts::default()).is_empty());
        assert!(text_of(&captures_all(), &HostFacts { ipv6: true, ..HostFacts::default() }).is_empty());
    }
}
