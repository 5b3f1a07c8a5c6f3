//! The text that `nft -f` takes, line by line as Istio writes it.

use std::fmt::{self, Display, Formatter};

use crate::config::values::join;
use crate::model::{Family, Owner, Refusal};
use crate::plan::native::{NativePlan, NativeRule, NativeTable, Place, Side, Spelling, Statement, TrackedAs};

/// The transaction that puts the rules of `plan` in place, without line ends. Tables without rules are left out.
pub fn transaction(plan: &NativePlan) -> Vec<String> {
    let mut text = Vec::new();
    for table in NativeTable::ALL {
        let chains = plan.chains_of(table);
        if chains.is_empty() {
            continue;
        }
        let name = table.as_str();
        text.push(format!("add table inet {name}"));
        text.push(format!("flush table inet {name}"));
        for (chain, _) in chains {
            text.push(match table.hook(chain) {
                Some(hook) => {
                    let (kind, priority) = (hook.kind, hook.priority);
                    // Base chains have the names of their hooks.
                    format!("add chain inet {name} {chain} {{ type {kind} hook {chain} priority {priority} ; }}")
                }
                None => format!("add chain inet {name} {chain}"),
            });
        }
        text.extend(rules(plan, table));
    }
    text
}

/// The transaction that removes the tables that Istio knows, whether they are there or not.
pub fn cleanup() -> Vec<String> {
    let lines = |table: NativeTable| ["add", "delete"].map(|verb| format!("{verb} table inet {}", table.as_str()));
    NativeTable::OF_ISTIO.into_iter().flat_map(lines).collect()
}

/// An insert that would count past the end of its chain is written as an add: nft refuses an index that is not there.
fn rules(plan: &NativePlan, table: NativeTable) -> Vec<String> {
    let mut written: Vec<&str> = Vec::new();
    let mut text = Vec::new();
    for rule in plan.of_table(table) {
        let before = written.iter().filter(|chain| **chain == rule.chain).count();
        let place = match rule.place {
            Place::Index(index) if index < before => {
                format!("insert rule inet {} {} index {index}", table.as_str(), rule.chain)
            }
            Place::Index(_) | Place::Append => format!("add rule inet {} {}", table.as_str(), rule.chain),
        };
        text.push(format!("{place} {rule}"));
        written.push(rule.chain);
    }
    text
}

/// The statements alone, as `nft list` prints them behind a chain.
impl Display for NativeRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.statements.iter().map(Statement::to_string).collect::<Vec<_>>().join(" "))
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let not = |negate: &bool| if *negate { "!= " } else { "" };
        match self {
            Self::InInterface(name) => write!(f, "iifname {name}"),
            Self::OutInterface(name) => write!(f, "oifname {name}"),
            Self::Family(family) => write!(f, "meta nfproto {}", family.as_str()),
            Self::Begins => f.write_str("tcp flags & (fin|syn|rst|ack) == syn"),
            Self::Protocol(protocol) => write!(f, "meta l4proto {}", protocol.as_str()),
            Self::Address { side, family, negate, net } => {
                let side = match side {
                    Side::Source => "saddr",
                    Side::Destination => "daddr",
                };
                write!(f, "{} {side} {}{}", family_word(*family), not(negate), net.text)
            }
            Self::Port { side, protocol, negate, port } => {
                let side = match side {
                    Side::Source => "sport",
                    Side::Destination => "dport",
                };
                write!(f, "{} {side} {}{port}", protocol.as_str(), not(negate))
            }
            Self::NoneOfPorts(ports) => write!(f, "tcp dport != {{ {} }}", join(ports).replace(',', ", ")),
            Self::Owner { negate, owner, spelling } => {
                let meta = match spelling {
                    Spelling::Short => "",
                    Spelling::Meta => "meta ",
                };
                match owner {
                    Owner::User(id) => write!(f, "{meta}skuid {}{id}", not(negate)),
                    Owner::Group(id) => write!(f, "{meta}skgid {}{id}", not(negate)),
                }
            }
            Self::Tracked(TrackedAs::Invalid) => f.write_str("ct state invalid"),
            Self::Tracked(TrackedAs::Known) => f.write_str("ct state related,established"),
            Self::Mark { negate, mark } => write!(f, "mark {}{mark}", not(negate)),
            Self::ConnectionMark(mark) => write!(f, "ct mark {mark}"),
            Self::Counter => f.write_str("counter"),
            Self::SetMark(mark) => write!(f, "meta mark set {mark}"),
            Self::SaveMark => f.write_str("ct mark set mark"),
            Self::RestoreMark => f.write_str("meta mark set ct mark"),
            Self::Zone(zone) => write!(f, "ct zone set {zone}"),
            Self::Tproxy(family, port) => write!(f, "tproxy {} to :{port}", family_word(*family)),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Return => f.write_str("return"),
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Reject(Refusal::Reset) => f.write_str("reject with tcp reset"),
            Self::Reject(Refusal::PortUnreachable) => f.write_str("reject with icmpx port-unreachable"),
        }
    }
}

fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
