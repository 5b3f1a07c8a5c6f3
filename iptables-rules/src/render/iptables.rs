//! The text that `iptables-restore --noflush` takes, line by line as Istio writes it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::config::values::join;
use crate::model::{ConntrackState, Match, Owner, Position, RedirectOption, Refusal, Rule, Table, Target, is_builtin};

/// The restore text of one family, without line ends. Empty for no rules.
pub fn restore(rules: &[Rule]) -> Vec<String> {
    let mut tables: BTreeMap<Table, (Vec<&str>, Vec<String>)> = BTreeMap::new();
    let mut declare = |table: Table, chain: &'static str| {
        let (chains, _) = tables.entry(table).or_default();
        if !is_builtin(chain) && !chains.contains(&chain) {
            chains.push(chain);
        }
    };
    // Chains with rules first, then chains that are only jumped to.
    for rule in rules {
        declare(rule.table, rule.chain);
    }
    for rule in rules {
        if let Target::Jump(chain) = rule.target {
            declare(rule.table, chain);
        }
    }
    for rule in rules {
        let (_, lines) = tables.entry(rule.table).or_default();
        lines.push(rule.to_string());
    }
    let mut text = Vec::new();
    for (table, (chains, lines)) in tables {
        text.push(format!("* {}", table.as_str()));
        text.extend(chains.iter().map(|chain| format!("-N {chain}")));
        text.extend(lines);
        text.push("COMMIT".to_owned());
    }
    text
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.position {
            Position::Append => write!(f, "-A {}", self.chain)?,
            Position::Insert(place) => write!(f, "-I {} {place}", self.chain)?,
        }
        for condition in &self.matches {
            write!(f, " {condition}")?;
        }
        write!(f, " -j {}", self.target)
    }
}

impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let not = |negate: &bool| if *negate { "! " } else { "" };
        match self {
            Self::InInterface(name) => write!(f, "-i {name}"),
            Self::OutInterface(name) => write!(f, "-o {name}"),
            Self::Source(net) => write!(f, "-s {}", net.text),
            Self::Destination { negate, net } => write!(f, "{}-d {}", not(negate), net.text),
            Self::Protocol(protocol) => write!(f, "-p {}", protocol.as_str()),
            Self::SourcePort(port) => write!(f, "--sport {port}"),
            Self::DestinationPort { negate, port } => write!(f, "{}--dport {port}", not(negate)),
            Self::Begins => f.write_str("--syn"),
            Self::NoneOfDestinationPorts(ports) => write!(f, "-m multiport ! --dports {}", join(ports)),
            Self::Owner { negate, owner: Owner::User(id) } => write!(f, "-m owner {}--uid-owner {id}", not(negate)),
            Self::Owner { negate, owner: Owner::Group(id) } => write!(f, "-m owner {}--gid-owner {id}", not(negate)),
            Self::State(ConntrackState::Invalid) => f.write_str("-m conntrack --ctstate INVALID"),
            Self::State(ConntrackState::RelatedOrEstablished) => {
                f.write_str("-m conntrack --ctstate RELATED,ESTABLISHED")
            }
            Self::Mark { negate, mark } => write!(f, "-m mark {}--mark {mark}", not(negate)),
            Self::ConnectionMark(mark) => write!(f, "-m connmark --mark {mark}"),
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(chain) => f.write_str(chain),
            Self::Return => f.write_str("RETURN"),
            Self::Accept => f.write_str("ACCEPT"),
            Self::Drop => f.write_str("DROP"),
            Self::Reject(Refusal::Reset) => f.write_str("REJECT --reject-with tcp-reset"),
            // The only rules with it are of IPv6.
            Self::Reject(Refusal::PortUnreachable) => f.write_str("REJECT --reject-with icmp6-port-unreachable"),
            Self::Redirect { port, option: RedirectOption::ToPorts } => write!(f, "REDIRECT --to-ports {port}"),
            Self::Redirect { port, option: RedirectOption::ToPort } => write!(f, "REDIRECT --to-port {port}"),
            Self::Tproxy { port, mark } => {
                write!(f, "TPROXY --tproxy-mark {mark}/0xffffffff --on-port {port}")
            }
            Self::SetMark(mark) => write!(f, "MARK --set-mark {mark}"),
            Self::SaveMark => f.write_str("CONNMARK --save-mark"),
            Self::RestoreMark => f.write_str("CONNMARK --restore-mark"),
            Self::ConntrackZone(zone) => write!(f, "CT --zone {zone}"),
        }
    }
}
