//! Why a rule is there, in a sentence for people who look at a pod's rules.

mod native;

pub use native::explain_native;

use crate::model::{Match, Owner, Position, Rule, Table, Target, builtin, chain};

/// What is said about a rule that is in no step of the rule set. No plan has one.
const UNKNOWN: &str = "A rule outside the known steps.";

/// The reason of `rule`.
pub fn explain(rule: &Rule) -> &'static str {
    match rule.table {
        Table::Nat => nat(rule),
        Table::Mangle => mangle(rule),
        Table::Raw => raw(rule),
        Table::Filter => filter(rule),
    }
}

/// The decisions are those of capture; what differs is where they lead.
fn filter(rule: &Rule) -> &'static str {
    let arriving = rule.matches.iter().any(|condition| matches!(condition, Match::InInterface(_)));
    match (rule.chain, &rule.target) {
        (builtin::INPUT | builtin::FORWARD | builtin::PREROUTING, Target::Jump(chain::INBOUND)) => {
            "The proxy does not handle this family: new connections that arrive are looked at for refusal."
        }
        (builtin::OUTPUT, Target::Jump(chain::OUTPUT)) => {
            "The proxy does not handle this family: what is sent is looked at for refusal."
        }
        (chain::INBOUND, Target::Return) if arriving => "What arrives on this interface is never captured and passes.",
        (chain::INBOUND, Target::Return) => NOT_INBOUND,
        (chain::OUTPUT, Target::Return) => nat_output(&rule.target, &Conditions::of(rule)),
        (chain::INBOUND | chain::OUTPUT, Target::Jump(chain::IN_REDIRECT | chain::REDIRECT)) => {
            "What would go to the proxy is refused instead."
        }
        (chain::OUTPUT, Target::Jump(chain::OUTPUT_DNS)) => "DNS is looked at for refusal.",
        (chain::OUTPUT_DNS, Target::Reject(_)) => {
            "DNS questions that the proxy's agent would answer are refused, so that they are asked over IPv4."
        }
        (chain::REDIRECT | chain::IN_REDIRECT, Target::Reject(_)) => {
            "Refused at once, so that the other side tries IPv4 and nothing passes around the proxy."
        }
        _ => UNKNOWN,
    }
}

fn nat(rule: &Rule) -> &'static str {
    let conditions = Conditions::of(rule);
    match (rule.chain, &rule.target) {
        (builtin::PREROUTING, Target::Return) if rule.position == Position::Append => EXCLUDED_ARRIVING,
        (builtin::PREROUTING, Target::Return) => {
            "Other traffic from this virtual machine's interface counts as outbound and is not captured as inbound."
        }
        (builtin::PREROUTING, Target::Jump(chain::INBOUND)) => "TCP that arrives is looked at for inbound capture.",
        (builtin::PREROUTING, Target::Jump(chain::REDIRECT)) => {
            "What a virtual machine sends there through this interface counts as outbound and goes to the proxy."
        }
        (builtin::OUTPUT, Target::Return) => EXCLUDED_LEAVING,
        (builtin::OUTPUT, Target::Jump(chain::OUTPUT)) => "Everything that is sent is looked at for outbound capture.",
        (chain::INBOUND, Target::Return) => NOT_INBOUND,
        (chain::INBOUND, Target::Jump(chain::IN_REDIRECT)) if conditions.port => {
            "Connections to this port go to the proxy first."
        }
        (chain::INBOUND, Target::Jump(chain::IN_REDIRECT)) => "All other inbound connections go to the proxy first.",
        (chain::REDIRECT, Target::Redirect { .. }) => "Captured outbound connections go to this port of the proxy.",
        (chain::IN_REDIRECT, Target::Redirect { .. }) => "Captured inbound connections go to this port of the proxy.",
        (chain::OUTPUT, target) => nat_output(target, &conditions),
        (chain::OUTPUT_DNS, Target::Redirect { .. }) => {
            "DNS questions are answered by the proxy's agent, which knows the services of the mesh."
        }
        _ => UNKNOWN,
    }
}

fn nat_output(target: &Target, conditions: &Conditions<'_>) -> &'static str {
    match target {
        Target::Jump(chain::IN_REDIRECT) => {
            "When the proxy calls its own pod by the pod's address, the call goes through inbound processing too."
        }
        Target::Jump(chain::OUTPUT_DNS) => "DNS is looked at for capture.",
        Target::Jump(chain::REDIRECT) if conditions.port => "Connections to this port go to the proxy.",
        Target::Jump(chain::REDIRECT) if conditions.destination.is_some() => {
            "Connections to this range go to the proxy."
        }
        Target::Jump(chain::REDIRECT) => "All other outbound connections go to the proxy.",
        Target::Return if conditions.source => {
            "What the proxy passes on to the application comes from this address and must not come back to it."
        }
        Target::Return if conditions.leaving && conditions.owner.is_some() => {
            "The application's calls to itself over loopback do not need the proxy."
        }
        Target::Return if conditions.port => "Traffic to this port was excluded from outbound capture.",
        Target::Return => match (conditions.owner, conditions.destination) {
            (Some((false, Owner::User(_))), _) => "What the proxy itself sends must not come back to it.",
            (Some((false, Owner::Group(_))), _) => {
                "What this group sends is not captured: it is the proxy's own, or was excluded."
            }
            (Some((true, _)), _) => "Only what these groups send is captured.",
            (None, Some(true)) => "What is sent to loopback stays in the pod and is not captured.",
            (None, Some(false)) => "This range was excluded from outbound capture.",
            (None, None) => "The list of groups whose traffic is captured is empty, so nothing outbound is.",
        },
        _ => UNKNOWN,
    }
}

fn mangle(rule: &Rule) -> &'static str {
    let conditions = Conditions::of(rule);
    match (rule.chain, &rule.target) {
        (builtin::PREROUTING, Target::Return) => EXCLUDED_ARRIVING,
        (builtin::PREROUTING, Target::Jump(chain::DROP)) => {
            "Packets that belong to no connection would be answered with a reset by the pod itself; they are dropped."
        }
        (builtin::PREROUTING, Target::Jump(chain::INBOUND)) => "TCP that arrives is looked at for inbound capture.",
        (builtin::PREROUTING, Target::SaveMark) => {
            "The mark of a packet is kept on its connection, so that the answers can be told apart."
        }
        (builtin::OUTPUT, Target::Return) if conditions.mark.is_some() => {
            "Marked packets to the pod itself are on their way already."
        }
        (builtin::OUTPUT, Target::Return) => EXCLUDED_LEAVING,
        (builtin::OUTPUT, Target::SetMark(_)) => {
            "When the proxy calls its own pod by the pod's address, the mark lets inbound processing see it."
        }
        (builtin::OUTPUT, Target::RestoreMark) => {
            "Answers of a captured connection get its mark, so that the route table of the proxy is used."
        }
        (chain::DROP, Target::Drop) => "Packets that belong to no connection end here.",
        (chain::DIVERT, Target::SetMark(_)) => {
            "Packets of known inbound connections get the mark that leads to the proxy."
        }
        (chain::DIVERT, Target::Accept) => "Marked packets need no further look.",
        (chain::TPROXY, Target::Tproxy { .. }) => {
            "New inbound connections are delivered to this port of the proxy, with both addresses unchanged."
        }
        (chain::INBOUND, Target::Return) => match conditions.mark {
            Some(false) => "Marked packets come from the proxy and must not come back to it.",
            Some(true) => "Loopback traffic is the application's own, unless the proxy marked it.",
            None if conditions.source => {
                "What the proxy passes on to the application comes from this address and must not come back to it."
            }
            None => NOT_INBOUND,
        },
        (chain::INBOUND, Target::Jump(chain::DIVERT)) => "Packets of connections that the proxy has go to it at once.",
        (chain::INBOUND, Target::Jump(chain::TPROXY)) if conditions.port => {
            "Connections to this port go to the proxy first."
        }
        (chain::INBOUND, Target::Jump(chain::TPROXY)) => "All other inbound connections go to the proxy first.",
        _ => UNKNOWN,
    }
}

fn raw(rule: &Rule) -> &'static str {
    match (rule.chain, &rule.target) {
        (builtin::OUTPUT, Target::Jump(chain::OUTPUT_DNS)) => {
            "DNS that is sent is given a connection tracking zone before anything else happens."
        }
        (builtin::PREROUTING, Target::Jump(chain::INBOUND)) => {
            "DNS answers that arrive are given a connection tracking zone before anything else happens."
        }
        (chain::OUTPUT_DNS, Target::ConntrackZone(_)) if Conditions::of(rule).source_port => {
            "The agent's answers to the application are tracked apart from its own questions."
        }
        (chain::OUTPUT_DNS, Target::ConntrackZone(_)) if Conditions::of(rule).owner.is_some() => {
            "Questions of the proxy to the name servers are tracked apart, or they would clash with the application's."
        }
        (chain::OUTPUT_DNS, Target::ConntrackZone(_)) => {
            "Questions of the application, which the agent answers, are tracked apart from the agent's own."
        }
        (chain::INBOUND, Target::ConntrackZone(_)) => "Answers of the name servers belong to the proxy's questions.",
        _ => UNKNOWN,
    }
}

const EXCLUDED_ARRIVING: &str = "What arrives on this interface was excluded from capture.";
const EXCLUDED_LEAVING: &str = "What leaves on this interface was excluded from capture.";
const NOT_INBOUND: &str = "Connections to this port are not captured: it takes tunnels, or was excluded.";

/// What a rule looks at, as far as the sentences depend on it.
#[derive(Default)]
struct Conditions<'a> {
    leaving: bool,
    source: bool,
    /// True for a loopback range.
    destination: Option<bool>,
    port: bool,
    source_port: bool,
    /// Negated or not, and whose.
    owner: Option<(bool, &'a Owner)>,
    /// Negated or not.
    mark: Option<bool>,
}

impl<'a> Conditions<'a> {
    fn of(rule: &'a Rule) -> Self {
        let mut conditions = Self::default();
        for condition in &rule.matches {
            match condition {
                Match::OutInterface(_) => conditions.leaving = true,
                Match::Source(_) => conditions.source = true,
                Match::Destination { net, .. } => {
                    conditions.destination = Some(net.range.is_some_and(|range| range.is_loopback()));
                }
                Match::DestinationPort { .. } => conditions.port = true,
                Match::SourcePort(_) => conditions.source_port = true,
                Match::Owner { negate, owner } => conditions.owner = Some((*negate, owner)),
                Match::Mark { negate, .. } => conditions.mark = Some(*negate),
                _ => {}
            }
        }
        conditions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::Options;
    use crate::config::{HostFacts, Settings};
    use crate::model::Family;
    use crate::plan::sidecar;

    fn sentences(options: &Options) -> Vec<(String, &'static str)> {
        let facts = HostFacts {
            ipv6: true,
            dns_servers_v4: vec!["10.0.0.10".to_owned()],
            dns_servers_v6: vec!["fd00::10".to_owned()],
            ..HostFacts::default()
        };
        let settings = options.settings().unwrap();
        let plan = sidecar(&settings, &facts);
        let uncaptured = HostFacts { ipv6: false, uncaptured: Some(Family::V6), ..facts };
        let refusing = sidecar(&Settings { refuse_uncaptured: true, ..settings }, &uncaptured);
        let rules = plan.v4.iter().chain(&plan.v6).chain(&refusing.v6);
        rules.map(|rule| (rule.to_string(), explain(rule))).collect()
    }

    /// All steps of the rule set in all their forms.
    fn everything() -> Vec<Options> {
        let full = Options {
            inbound_ports: "*".to_owned(),
            inbound_ports_exclude: "15090".to_owned(),
            outbound_cidrs: "*".to_owned(),
            outbound_cidrs_exclude: "10.1.0.0/16,fd01::/16".to_owned(),
            outbound_ports: "9000".to_owned(),
            outbound_ports_exclude: "25".to_owned(),
            exclude_interfaces: "net1".to_owned(),
            virtual_interfaces: "tap0".to_owned(),
            owner_groups_exclude: "202".to_owned(),
            redirect_dns: true,
            drop_invalid: true,
            ..Options::default()
        };
        let listed = Options {
            inbound_ports: "80".to_owned(),
            outbound_cidrs: "10.0.0.0/8,fd00::/8".to_owned(),
            owner_groups: "202,203".to_owned(),
            capture_all_dns: true,
            ..full.clone()
        };
        let nobody = Options { owner_groups: String::new(), redirect_dns: false, ..full.clone() };
        [full, listed, nobody]
            .into_iter()
            .flat_map(|options| [Options { mode: "TPROXY".to_owned(), ..options.clone() }, options])
            .collect()
    }

    #[test]
    fn every_rule_has_a_sentence() {
        for options in everything() {
            for (rule, sentence) in sentences(&options) {
                assert_ne!(sentence, UNKNOWN, "{rule}");
                assert!(sentence.ends_with('.'), "{rule}");
            }
        }
    }

    #[test]
    fn rules_that_look_alike_are_told_apart() {
        let all: Vec<_> = everything().iter().flat_map(sentences).collect();
        let of = |rule: &str| all.iter().find(|(text, _)| text == rule).unwrap_or_else(|| panic!("no {rule}")).1;
        assert!(of("-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN").contains("loopback"));
        assert!(of("-A ISTIO_OUTPUT -d 10.1.0.0/16 -j RETURN").contains("excluded"));
        assert!(of("-A ISTIO_OUTPUT -j RETURN").contains("empty"));
        assert!(of("-I PREROUTING 1 -i tap0 -j RETURN").contains("virtual machine"));
        assert!(of("-A PREROUTING -i net1 -j RETURN").contains("excluded"));
        assert!(of("-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN").contains("proxy itself"));
        assert!(of("-A ISTIO_OUTPUT -m owner --gid-owner 202 -j RETURN").contains("excluded"));
    }
}
