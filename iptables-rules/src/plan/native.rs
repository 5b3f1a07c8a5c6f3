//! The sidecar rule set as native nftables rules: tables of our own in family `inet`.
//!
//! A plan of its own beside the iptables one, because text and order differ step by step. A rule is a list of typed
//! statements; `render::nft` writes them as text, `render::native` as the expressions that `nft` sends for that text.
//! Pure and total, like the other plan.

mod refuse;
mod sidecar;

use crate::config::{HostFacts, Id, Mark, Port, Settings};
use crate::model::{Family, Net, Owner, Protocol, Refusal};
use crate::nft::message::Hook;

/// Chains that we declare. The names are Istio's.
pub mod chain {
    /// Packets that arrive.
    pub const PREROUTING: &str = "prerouting";
    /// Packets that local processes send.
    pub const HOOK_OUTPUT: &str = "output";
    /// Decides about inbound connections.
    pub const INBOUND: &str = "istio-inbound";
    /// Marks and accepts packets of inbound connections that are known.
    pub const DIVERT: &str = "istio-divert";
    /// Delivers to the proxy's transparent socket.
    pub const TPROXY: &str = "istio-tproxy";
    /// Decides about outbound connections.
    pub const OUTPUT: &str = "istio-output";
    /// Decides about DNS.
    pub const OUTPUT_DNS: &str = "istio-output-dns";
    /// Sends to the proxy's outbound port.
    pub const REDIRECT: &str = "istio-redirect";
    /// Sends to the proxy's inbound port.
    pub const IN_REDIRECT: &str = "istio-in-redirect";
    /// Drops what connection tracking calls invalid.
    pub const DROP: &str = "istio-drop";
}

/// A table of ours, in the order of the transaction text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NativeTable {
    /// Redirection.
    Nat,
    /// Marks.
    Mangle,
    /// Before connection tracking.
    Raw,
    /// Refusal of what is not captured.
    Filter,
}

impl NativeTable {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nat, Self::Mangle, Self::Raw, Self::Filter];
    /// Those that Istio knows, too.
    pub const OF_ISTIO: [Self; 3] = [Self::Nat, Self::Mangle, Self::Raw];

    /// Its name in family `inet`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "istio-proxy-nat",
            Self::Mangle => "istio-proxy-mangle",
            Self::Raw => "istio-proxy-raw",
            Self::Filter => "istio-proxy-filter",
        }
    }

    /// Names of its chains, in the order in which they are declared.
    pub fn chains(self) -> &'static [&'static str] {
        use chain::{
            DIVERT, DROP, HOOK_OUTPUT, IN_REDIRECT, INBOUND, OUTPUT, OUTPUT_DNS, PREROUTING, REDIRECT, TPROXY,
        };
        match self {
            Self::Nat | Self::Filter => &[PREROUTING, HOOK_OUTPUT, INBOUND, REDIRECT, IN_REDIRECT, OUTPUT, OUTPUT_DNS],
            Self::Mangle => &[PREROUTING, HOOK_OUTPUT, DIVERT, TPROXY, INBOUND, DROP],
            Self::Raw => &[PREROUTING, HOOK_OUTPUT, INBOUND, OUTPUT_DNS],
        }
    }

    /// Where one of its chains hooks in; `None` for chains that are only jumped to.
    pub fn hook(self, chain: &str) -> Option<Hook> {
        let number = match chain {
            chain::PREROUTING => 0,
            chain::HOOK_OUTPUT => 3,
            _ => return None,
        };
        let (kind, priority) = match self {
            Self::Nat => ("nat", -100),
            // Marks set on the way out must be able to change the route.
            Self::Mangle if chain == chain::HOOK_OUTPUT => ("route", -150),
            Self::Mangle => ("filter", -150),
            Self::Raw => ("filter", -300),
            // Just before table nat, which sees packets of both families and would change where they go.
            Self::Filter => ("filter", -101),
        };
        Some(Hook { kind, number, priority })
    }
}

/// Where in its chain a rule goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the end.
    Append,
    /// Before the rule with this index, counted from 0; at the end when there are not that many.
    Index(usize),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeRule {
    /// Its table.
    pub table: NativeTable,
    /// Its chain, one of [`chain`].
    pub chain: &'static str,
    /// Where in the chain.
    pub place: Place,
    /// What it looks at and does, in order.
    pub statements: Vec<Statement>,
}

/// Sender or receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where a packet comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// State that connection tracking gives a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackedAs {
    /// Belongs to no connection.
    Invalid,
    /// Belongs to a known connection, or is related to one.
    Known,
}

/// One statement of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// Arrived on this interface.
    InInterface(String),
    /// Leaves on this interface.
    OutInterface(String),
    /// Is of this family.
    Family(Family),
    /// Is of this protocol.
    Protocol(Protocol),
    /// Begins a TCP connection.
    Begins,
    /// Has this address, or another.
    Address {
        /// Whose.
        side: Side,
        /// Family of the address. Packets of the other one do not match, negated or not.
        family: Family,
        /// True for "another".
        negate: bool,
        /// The address.
        net: Net,
    },
    /// Is of this protocol and has this port, or another.
    Port {
        /// Whose.
        side: Side,
        /// The protocol.
        protocol: Protocol,
        /// True for "another".
        negate: bool,
        /// The port.
        port: Port,
    },
    /// Is TCP and goes to none of these ports.
    NoneOfPorts(Vec<Port>),
    /// Was sent by this owner, or another.
    Owner {
        /// True for "another".
        negate: bool,
        /// The owner.
        owner: Owner,
        /// The spelling; nft knows two.
        spelling: Spelling,
    },
    /// Is so known to connection tracking.
    Tracked(TrackedAs),
    /// Carries this mark, or another.
    Mark {
        /// True for "another".
        negate: bool,
        /// The mark.
        mark: Mark,
    },
    /// Its connection carries this mark.
    ConnectionMark(Mark),
    /// Is counted.
    Counter,
    /// Is marked.
    SetMark(Mark),
    /// Its connection gets its mark.
    SaveMark,
    /// It gets its connection's mark.
    RestoreMark,
    /// Its connection is tracked in this zone.
    Zone(u16),
    /// Is delivered to the transparent socket on this port.
    Tproxy(Family, Port),
    /// Is sent to this local port.
    Redirect(Port),
    /// Goes on in this chain.
    Jump(&'static str),
    /// Leaves the chain.
    Return,
    /// Is accepted.
    Accept,
    /// Is dropped.
    Drop,
    /// Is refused: the sender is told at once.
    Reject(Refusal),
}

/// How an owner is spelled in text. Istio uses both, so the text does too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// `skuid 1337`.
    Short,
    /// `meta skuid 1337`.
    Meta,
}

/// A whole rule set, in the order in which Istio emits it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NativePlan {
    /// The rules.
    pub rules: Vec<NativeRule>,
}

/// The sidecar rule set of `settings`.
pub fn sidecar(settings: &Settings, facts: &HostFacts) -> NativePlan {
    let mut rules = sidecar::rules(settings, facts);
    if settings.refuse_uncaptured && facts.uncaptured == Some(Family::V6) {
        rules.extend(refuse::rules(settings, facts));
    }
    NativePlan { rules }
}

impl NativePlan {
    /// The rules of a table, in the order in which they were emitted.
    pub fn of_table(&self, table: NativeTable) -> impl Iterator<Item = &NativeRule> {
        self.rules.iter().filter(move |rule| rule.table == table)
    }

    /// Chains of a table that have rules, in the order in which they are declared, each with its rules where the
    /// positional inserts put them.
    pub fn chains_of(&self, table: NativeTable) -> Vec<(&'static str, Vec<&NativeRule>)> {
        let mut chains: Vec<_> = table.chains().iter().map(|name| (*name, Vec::new())).collect();
        for rule in self.of_table(table) {
            if let Some((_, rules)) = chains.iter_mut().find(|(name, _)| *name == rule.chain) {
                let end = rules.len();
                let at = match rule.place {
                    Place::Append => end,
                    Place::Index(index) => index.min(end),
                };
                rules.insert(at, rule);
            }
        }
        chains.retain(|(_, rules)| !rules.is_empty());
        chains
    }
}

/// The proxy's users and groups as owners, users first.
fn owners(uids: &[Id], gids: &[Id]) -> Vec<Owner> {
    let users = uids.iter().cloned().map(Owner::User);
    users.chain(gids.iter().cloned().map(Owner::Group)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_go_before_the_rule_they_count_to() {
        let rule = |place, port: u16| NativeRule {
            table: NativeTable::Nat,
            chain: chain::PREROUTING,
            place,
            statements: vec![Statement::Redirect(port.into())],
        };
        let plan = NativePlan {
            rules: vec![
                rule(Place::Index(0), 1),
                rule(Place::Index(0), 2),
                rule(Place::Index(5), 3),
                rule(Place::Index(1), 4),
            ],
        };
        let chains = plan.chains_of(NativeTable::Nat);
        let order: Vec<_> = chains[0].1.iter().map(|rule| rule.statements[0].clone()).collect();
        assert_eq!(order, [2, 4, 1, 3].map(|port: u16| Statement::Redirect(port.into())));
    }
}
