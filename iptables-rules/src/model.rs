//! What a packet rule is: table, chain, matches, target.
//!
//! The model knows what Istio's rule sets need and no more. It is rendered as iptables text and as nf_tables
//! expressions; both must mean the same. Matches keep the order in which the text names them.

use std::net::IpAddr;

use crate::config::{Cidr, Id, Mark, Port};

/// Built-in chains that our rules hook into.
pub mod builtin {
    /// Packets that arrive.
    pub const PREROUTING: &str = "PREROUTING";
    /// Packets that arrive for a local process.
    pub const INPUT: &str = "INPUT";
    /// Packets that are passed on.
    pub const FORWARD: &str = "FORWARD";
    /// Packets that local processes send.
    pub const OUTPUT: &str = "OUTPUT";
    /// Names that are never created or deleted.
    pub const ALL: [&str; 5] = [PREROUTING, INPUT, FORWARD, OUTPUT, "POSTROUTING"];
}

/// Chains of ours. The names are Istio's; every one starts with [`chain::PREFIX`].
pub mod chain {
    /// What the names of all our chains start with, in any version.
    pub const PREFIX: &str = "ISTIO_";
    /// Decides about inbound connections.
    pub const INBOUND: &str = "ISTIO_INBOUND";
    /// Decides about outbound connections.
    pub const OUTPUT: &str = "ISTIO_OUTPUT";
    /// Decides about DNS.
    pub const OUTPUT_DNS: &str = "ISTIO_OUTPUT_DNS";
    /// Sends to the proxy's outbound port.
    pub const REDIRECT: &str = "ISTIO_REDIRECT";
    /// Sends to the proxy's inbound port.
    pub const IN_REDIRECT: &str = "ISTIO_IN_REDIRECT";
    /// Marks and accepts packets of known inbound connections (TPROXY).
    pub const DIVERT: &str = "ISTIO_DIVERT";
    /// Delivers new inbound connections to the proxy's transparent socket.
    pub const TPROXY: &str = "ISTIO_TPROXY";
    /// Drops what connection tracking calls invalid.
    pub const DROP: &str = "ISTIO_DROP";
}

/// Address family of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which they are handled.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The word for log lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }
}

/// Table of a rule. The order is alphabetical, which is also the order of the restore text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Accept or drop.
    Filter,
    /// Marks.
    Mangle,
    /// Redirection.
    Nat,
    /// Before connection tracking.
    Raw,
}

impl Table {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Filter, Self::Mangle, Self::Nat, Self::Raw];

    /// Name in iptables and nf_tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Raw => "raw",
        }
    }
}

/// Where in its chain a rule goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At the end.
    Append,
    /// At this place, counted from 1.
    Insert(usize),
}

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Name in iptables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A destination or source: the text of the rule, and the range it means when it means one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Net {
    /// As it stands in the rule.
    pub text: String,
    /// Its value; `None` for text the kernel cannot be given, such as an address with a zone.
    pub range: Option<Cidr>,
}

impl From<Cidr> for Net {
    fn from(range: Cidr) -> Self {
        Self { text: range.to_string(), range: Some(range) }
    }
}

impl Net {
    /// One host; `address` stands in the rule as it is.
    pub fn host(address: &str, family: Family) -> Self {
        let prefix = match family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        let range = address.parse::<IpAddr>().ok().map(|address| Cidr { address, prefix });
        Self { text: format!("{address}/{prefix}"), range }
    }
}

/// Owner of the sending socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// By user.
    User(Id),
    /// By group.
    Group(Id),
}

/// State that connection tracking gives a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConntrackState {
    /// Belongs to no connection.
    Invalid,
    /// Belongs to a known connection, or to one that such a connection announced.
    RelatedOrEstablished,
}

/// One condition of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Arrived on this interface; a trailing `+` matches any suffix.
    InInterface(String),
    /// Leaves on this interface; a trailing `+` matches any suffix.
    OutInterface(String),
    /// Comes from this range.
    Source(Net),
    /// Goes to this range, or not.
    Destination {
        /// True for "not".
        negate: bool,
        /// The range.
        net: Net,
    },
    /// Is of this protocol.
    Protocol(Protocol),
    /// Comes from this port; needs a protocol before it.
    SourcePort(Port),
    /// Goes to this port, or not; needs a protocol before it.
    DestinationPort {
        /// True for "not".
        negate: bool,
        /// The port.
        port: Port,
    },
    /// Begins a TCP connection; needs that protocol before it.
    Begins,
    /// Goes to none of these ports; needs a protocol before it.
    NoneOfDestinationPorts(Vec<Port>),
    /// Was sent by this owner, or not.
    Owner {
        /// True for "not".
        negate: bool,
        /// Whose.
        owner: Owner,
    },
    /// Is in this connection tracking state.
    State(ConntrackState),
    /// Carries this mark, or not.
    Mark {
        /// True for "not".
        negate: bool,
        /// The mark.
        mark: Mark,
    },
    /// Its connection carries this mark.
    ConnectionMark(Mark),
}

/// What happens to a packet that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Goes on in this chain of ours.
    Jump(&'static str),
    /// Leaves the chain.
    Return,
    /// Is accepted.
    Accept,
    /// Is dropped.
    Drop,
    /// Is refused: the sender is told at once.
    Reject(Refusal),
    /// Is sent to this local port.
    Redirect {
        /// The port.
        port: Port,
        /// The option's spelling; iptables knows two.
        option: RedirectOption,
    },
    /// Is delivered to a transparent local socket, and marked.
    Tproxy {
        /// The socket's port.
        port: Port,
        /// The mark.
        mark: Mark,
    },
    /// Is marked.
    SetMark(Mark),
    /// Its connection gets its mark.
    SaveMark,
    /// It gets its connection's mark.
    RestoreMark,
    /// Its connection is tracked in this zone.
    ConntrackZone(u16),
}

/// What the sender of a refused packet is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A TCP reset; the rule must be about TCP.
    Reset,
    /// That nobody listens on the port.
    PortUnreachable,
}

impl Refusal {
    /// The one that programs understand who speak `protocol`.
    pub fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Reset,
            Protocol::Udp => Self::PortUnreachable,
        }
    }
}

/// How the port of a redirect is spelled in text. Istio uses both, so the text does too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectOption {
    /// `--to-ports`.
    ToPorts,
    /// `--to-port`.
    ToPort,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its table.
    pub table: Table,
    /// Its chain: one of [`builtin`] or [`chain`].
    pub chain: &'static str,
    /// Where in the chain.
    pub position: Position,
    /// Conditions, all of which must hold.
    pub matches: Vec<Match>,
    /// What happens then.
    pub target: Target,
}

/// Whether `name` is a built-in chain.
pub fn is_builtin(name: &str) -> bool {
    builtin::ALL.contains(&name)
}
