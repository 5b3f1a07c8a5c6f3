//! Rules as nf_tables expressions, in the form that `iptables-nft` itself writes and that `iptables-save` prints back.
//!
//! Interfaces, protocol and addresses come first, in that order, whatever order the text has; then the extensions in
//! text order, a counter, and the verdict or target. Layouts of extension settings are those of `xt_owner.h`,
//! `xt_multiport.h`, `xt_conntrack.h`, `xt_CT.h`, `xt_tcpudp.h`, `ip6t_REJECT.h` and `nf_nat.h`, padded to eight bytes.

use thiserror::Error;

use crate::config::{Cidr, Id, Mark, Port};
use crate::model::{ConntrackState, Family, Match, Net, Owner, Protocol, Refusal, Rule, Table, Target, builtin};
use crate::nft::expr::{Compare, Expr, Header, Meta, Verdict, Xt};
use crate::nft::message::Hook;

/// A mask that leaves a mark whole.
const EVERY_BIT: [u8; 4] = [0xff; 4];
/// Longest interface name, in bytes.
const INTERFACE_NAME_MAX: usize = 15;
/// Most ports that one multiport match takes.
const MULTIPORT_MAX: usize = 15;

/// A rule that the kernel cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("rule `{rule}`: {reason}")]
pub struct EncodeError {
    /// The rule's text.
    pub rule: String,
    /// What is wrong with it.
    pub reason: Reason,
}

/// Why a rule cannot be given to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// A port is not a number.
    #[error("port `{0}` is not a number from 0 to 65535 or a range such as 80:90")]
    Port(String),
    /// A redirect to a range.
    #[error("`{0}` is a range, but traffic can be sent to one port only")]
    RedirectRange(String),
    /// A mark is not a number.
    #[error("mark `{0}` is not a number such as 1337 or 0x539")]
    Mark(String),
    /// A user or group could not be turned into a number.
    #[error("`{0}` is neither a number nor a known user or group")]
    Id(String),
    /// An address cannot be expressed.
    #[error("`{0}` is not an address range of this family")]
    Net(String),
    /// An interface name is empty or too long.
    #[error("`{0}` is not an interface name of 1 to 15 bytes")]
    Interface(String),
    /// "Anything but everything" never matches; the kernel refuses it.
    #[error("`! -d {0}` can never match")]
    NeverMatches(String),
    /// A jump to a chain that would have no rules. Only a native rule set can come to that.
    #[error(
        "chain {0} would have no rules: DNS capture is on, but all name servers are IPv6 and IPv6 is off in this network \
         namespace; name an IPv4 server, capture all DNS, or give the pod an IPv6 address"
    )]
    EmptyChain(String),
    /// More ports than one match takes.
    #[error("{0} ports are more than the 15 that one match takes")]
    TooManyPorts(usize),
}

/// Where a built-in chain of an iptables table hooks in.
pub fn hook(table: Table, chain: &str) -> Option<Hook> {
    let number = match (table, chain) {
        (Table::Filter, builtin::INPUT) => 1,
        (Table::Filter, builtin::FORWARD) => 2,
        (_, builtin::PREROUTING) => 0,
        (_, builtin::OUTPUT) => 3,
        _ => return None,
    };
    let (kind, priority) = match (table, chain) {
        (Table::Nat, _) => ("nat", -100),
        // Marks set on the way out must be able to change the route.
        (Table::Mangle, builtin::OUTPUT) => ("route", -150),
        (Table::Mangle, _) => ("filter", -150),
        (Table::Raw, _) => ("filter", -300),
        (Table::Filter, _) => ("filter", 0),
    };
    Some(Hook { kind, number, priority })
}

/// How the owner of a socket is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnerForm {
    /// By the extension of xtables, as iptables-nft writes it.
    #[default]
    Extension,
    /// By metadata of nf_tables: where the network namespace belongs to another user namespace, the kernel refuses the
    /// extension. The ids are those of that user namespace in both forms.
    Metadata,
}

/// The expressions of `rule`.
///
/// # Errors
/// Names the rule and what the kernel cannot express.
pub fn encode(rule: &Rule, family: Family, owners: OwnerForm) -> Result<Vec<Expr>, EncodeError> {
    expressions(rule, family, owners).map_err(|reason| EncodeError { rule: rule.to_string(), reason })
}

fn expressions(rule: &Rule, family: Family, owners: OwnerForm) -> Result<Vec<Expr>, Reason> {
    let mut ordered: Vec<&Match> = rule.matches.iter().collect();
    ordered.sort_by_key(|condition| rank(condition));
    let protocol = rule.matches.iter().find_map(|condition| match condition {
        Match::Protocol(protocol) => Some(*protocol),
        _ => None,
    });
    let mut exprs = Vec::with_capacity(12);
    for condition in ordered {
        encode_match(condition, family, protocol, owners, &mut exprs)?;
    }
    exprs.push(Expr::Counter);
    exprs.push(target(&rule.target, family)?);
    Ok(exprs)
}

/// Place of a match in the order of iptables-nft.
fn rank(condition: &Match) -> u8 {
    match condition {
        Match::InInterface(_) => 0,
        Match::OutInterface(_) => 1,
        Match::Protocol(_) => 2,
        Match::Source(_) => 3,
        Match::Destination { .. } => 4,
        Match::SourcePort(_)
        | Match::DestinationPort { .. }
        | Match::Begins
        | Match::NoneOfDestinationPorts(_)
        | Match::Owner { .. }
        | Match::State(_)
        | Match::Mark { .. }
        | Match::ConnectionMark(_) => 5,
    }
}

fn encode_match(
    condition: &Match,
    family: Family,
    protocol: Option<Protocol>,
    owners: OwnerForm,
    exprs: &mut Vec<Expr>,
) -> Result<(), Reason> {
    match condition {
        Match::InInterface(name) => interface(Meta::InInterfaceName, name, exprs),
        Match::OutInterface(name) => interface(Meta::OutInterfaceName, name, exprs),
        Match::Protocol(protocol) => {
            exprs.push(Expr::LoadMeta(Meta::L4Protocol));
            exprs.push(Expr::Compare(Compare::Eq, vec![protocol_number(*protocol)]));
            Ok(())
        }
        Match::Source(net) => address(net, false, source_offset(family), family, exprs),
        Match::Destination { negate, net } => address(net, *negate, destination_offset(family), family, exprs),
        Match::SourcePort(port) => port_match(port, false, 0, protocol, exprs),
        Match::DestinationPort { negate, port } => port_match(port, *negate, 2, protocol, exprs),
        Match::Begins => {
            exprs.extend(begins_connection());
            Ok(())
        }
        Match::NoneOfDestinationPorts(ports) => {
            exprs.push(none_of_ports(ports)?);
            Ok(())
        }
        Match::Owner { negate, owner } => {
            exprs.extend(owner_match(*negate, owner, owners)?);
            Ok(())
        }
        Match::State(state) => {
            exprs.push(conntrack_state(*state));
            Ok(())
        }
        Match::Mark { negate, mark } => {
            let operator = if *negate { Compare::Ne } else { Compare::Eq };
            exprs.push(Expr::LoadMeta(Meta::Mark));
            exprs.push(Expr::Compare(operator, mark_of(mark)?.to_vec()));
            Ok(())
        }
        // `struct xt_connmark_mtinfo1`: mark, mask, invert.
        Match::ConnectionMark(mark) => {
            let info = Info::zeroed(16).set(0, &mark_of(mark)?).set(4, &EVERY_BIT);
            exprs.push(xt_match("connmark", 1, info));
            Ok(())
        }
    }
}

/// An exact name is compared with its NUL, a prefix without it. `+` alone matches everything.
fn interface(field: Meta, name: &str, exprs: &mut Vec<Expr>) -> Result<(), Reason> {
    let name = name.trim();
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX {
        return Err(Reason::Interface(name.to_owned()));
    }
    let bytes = match name.strip_suffix('+') {
        Some("") => {
            // Any interface: the tool loads the name and compares it with nothing.
            exprs.push(Expr::LoadMeta(field));
            return Ok(());
        }
        Some(prefix) => prefix.as_bytes().to_vec(),
        None => [name.as_bytes(), &[0]].concat(),
    };
    exprs.push(Expr::LoadMeta(field));
    exprs.push(Expr::Compare(Compare::Eq, bytes));
    Ok(())
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

fn source_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 12,
        Family::V6 => 8,
    }
}

fn destination_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 16,
        Family::V6 => 24,
    }
}

/// Whole bytes of a prefix are loaded alone; a prefix that ends inside a byte loads all and masks.
fn address(net: &Net, negate: bool, offset: u32, family: Family, exprs: &mut Vec<Expr>) -> Result<(), Reason> {
    let range = net.range.filter(|range| range.address.is_ipv4() == (family == Family::V4));
    let Some(Cidr { address, prefix }) = range else { return Err(Reason::Net(net.text.clone())) };
    if prefix == 0 {
        return if negate { Err(Reason::NeverMatches(net.text.clone())) } else { Ok(()) };
    }
    let octets = match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mask: Vec<u8> = (0..octets.len()).map(|index| mask_byte(usize::from(prefix), index)).collect();
    let mut value: Vec<u8> = octets.iter().zip(&mask).map(|(octet, mask)| octet & mask).collect();
    let operator = if negate { Compare::Ne } else { Compare::Eq };
    let load = |length| Expr::LoadPayload { header: Header::Network, offset, length };
    if prefix.is_multiple_of(8) {
        value.truncate(usize::from(prefix / 8));
        exprs.push(load(u32::from(prefix / 8)));
    } else {
        exprs.push(load(octets.len() as u32));
        exprs.push(Expr::Mask(mask));
    }
    exprs.push(Expr::Compare(operator, value));
    Ok(())
}

fn mask_byte(prefix: usize, index: usize) -> u8 {
    match prefix.saturating_sub(index * 8) {
        0 => 0,
        bits @ 1..=7 => 0xff << (8 - bits),
        _ => 0xff,
    }
}

fn mark_of(mark: &Mark) -> Result<[u8; 4], Reason> {
    mark.value().map(u32::to_ne_bytes).ok_or_else(|| Reason::Mark(mark.to_string()))
}

fn range_of(port: &Port) -> Result<(u16, u16), Reason> {
    port.range().ok_or_else(|| Reason::Port(port.to_string()))
}

fn port_match(
    port: &Port,
    negate: bool,
    offset: u32,
    protocol: Option<Protocol>,
    exprs: &mut Vec<Expr>,
) -> Result<(), Reason> {
    let (low, high) = range_of(port)?;
    let bytes = |port: u16| port.to_be_bytes().to_vec();
    let test = match (low, high, negate) {
        (0, u16::MAX, false) => {
            // Every port: only an extension can say "has a port" so that it is printed back.
            exprs.push(any_port(protocol));
            return Ok(());
        }
        (low, high, false) if low == high => Expr::Compare(Compare::Eq, bytes(low)),
        (low, high, true) if low == high => Expr::Compare(Compare::Ne, bytes(low)),
        (0, high, false) => Expr::Compare(Compare::Le, bytes(high)),
        (low, high, negate) => Expr::Range { negate, low: bytes(low), high: bytes(high) },
    };
    exprs.push(Expr::LoadPayload { header: Header::Transport, offset, length: 2 });
    exprs.push(test);
    Ok(())
}

/// Of the flags FIN, SYN, RST and ACK only SYN is set.
pub(super) fn begins_connection() -> [Expr; 3] {
    const FLAGS: u32 = 13;
    [
        Expr::LoadPayload { header: Header::Transport, offset: FLAGS, length: 1 },
        Expr::Mask(vec![0x17]),
        Expr::Compare(Compare::Eq, vec![0x02]),
    ]
}

fn xt_match(name: &str, revision: u32, info: Info) -> Expr {
    Expr::XtMatch(Xt { name: name.to_owned(), revision, info: info.0 })
}

fn xt_target(name: &str, revision: u32, info: Info) -> Expr {
    Expr::XtTarget(Xt { name: name.to_owned(), revision, info: info.0 })
}

/// Settings of an extension, filled in at offsets.
struct Info(Vec<u8>);

impl Info {
    fn zeroed(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn set(mut self, at: usize, value: &[u8]) -> Self {
        if let Some(place) = self.0.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
        self
    }
}

/// `struct xt_tcp` or `struct xt_udp` with both port ranges open.
fn any_port(protocol: Option<Protocol>) -> Expr {
    let name = protocol.unwrap_or(Protocol::Tcp).as_str();
    let open = u16::MAX.to_ne_bytes();
    xt_match(name, 0, Info::zeroed(16).set(2, &open).set(6, &open))
}

/// `struct xt_multiport_v1`: kind of port, count, ports in host order, invert.
fn none_of_ports(ports: &[Port]) -> Result<Expr, Reason> {
    const DESTINATION: u8 = 1;
    if ports.len() > MULTIPORT_MAX {
        return Err(Reason::TooManyPorts(ports.len()));
    }
    let mut info = Info::zeroed(48).set(0, &[DESTINATION, ports.len() as u8]).set(47, &[1]);
    for (index, port) in ports.iter().enumerate() {
        let (low, high) = range_of(port)?;
        if low != high {
            return Err(Reason::Port(port.to_string()));
        }
        info = info.set(2 + 2 * index, &low.to_ne_bytes());
    }
    Ok(xt_match("multiport", 1, info))
}

/// `struct xt_owner_match_info`: range of users, range of groups, what is matched, what is inverted.
fn owner_match(negate: bool, owner: &Owner, form: OwnerForm) -> Result<Vec<Expr>, Reason> {
    let number = |id: &Id| id.number().map(u32::to_ne_bytes).ok_or_else(|| Reason::Id(id.to_string()));
    let (at, flag, field, id) = match owner {
        Owner::User(id) => (0, 1, Meta::SocketUser, number(id)?),
        Owner::Group(id) => (8, 2, Meta::SocketGroup, number(id)?),
    };
    if form == OwnerForm::Metadata {
        let operator = if negate { Compare::Ne } else { Compare::Eq };
        return Ok(vec![Expr::LoadMeta(field), Expr::Compare(operator, id.to_vec())]);
    }
    let inverted = if negate { flag } else { 0 };
    let info = Info::zeroed(24).set(at, &id).set(at + 4, &id).set(16, &[flag, inverted]);
    Ok(vec![xt_match("owner", 1, info)])
}

/// `struct xt_conntrack_mtinfo3` that looks at the state only.
fn conntrack_state(state: ConntrackState) -> Expr {
    const MATCH_STATE: u16 = 1;
    let states: u16 = match state {
        ConntrackState::Invalid => 1,
        ConntrackState::RelatedOrEstablished => 1 << 1 | 1 << 2,
    };
    xt_match("conntrack", 3, Info::zeroed(168).set(146, &MATCH_STATE.to_ne_bytes()).set(150, &states.to_ne_bytes()))
}

fn target(target: &Target, family: Family) -> Result<Expr, Reason> {
    Ok(match target {
        Target::Jump(chain) => Expr::Verdict(Verdict::Jump((*chain).to_owned())),
        Target::Return => Expr::Verdict(Verdict::Return),
        Target::Accept => Expr::Verdict(Verdict::Accept),
        Target::Drop => Expr::Verdict(Verdict::Drop),
        Target::Reject(refusal) => reject(*refusal, family),
        Target::Redirect { port, .. } => redirect(one_port(port)?, family),
        // `struct xt_tproxy_target_info_v1`: mask, mark, address, port.
        Target::Tproxy { port, mark } => {
            let info = Info::zeroed(32).set(0, &EVERY_BIT).set(4, &mark_of(mark)?);
            xt_target("TPROXY", 1, info.set(24, &one_port(port)?.to_be_bytes()))
        }
        // `struct xt_mark_tginfo2`: mark, mask.
        Target::SetMark(mark) => xt_target("MARK", 2, Info::zeroed(8).set(0, &mark_of(mark)?).set(4, &EVERY_BIT)),
        Target::SaveMark => connection_mark(SAVE_MARK),
        Target::RestoreMark => connection_mark(RESTORE_MARK),
        // `struct xt_ct_target_info_v1`: flags, zone.
        Target::ConntrackZone(zone) => xt_target("CT", 2, Info::zeroed(72).set(2, &zone.to_ne_bytes())),
    })
}

/// `struct ipt_reject_info` or `struct ip6t_reject_info`: what is told, a number of its own in each family.
fn reject(refusal: Refusal, family: Family) -> Expr {
    let with: u32 = match (refusal, family) {
        (Refusal::Reset, Family::V4) => 7,
        (Refusal::Reset, Family::V6) => 6,
        (Refusal::PortUnreachable, Family::V4) => 3,
        (Refusal::PortUnreachable, Family::V6) => 4,
    };
    xt_target("REJECT", 0, Info::zeroed(8).set(0, &with.to_ne_bytes()))
}

/// Modes of the CONNMARK target, `XT_CONNMARK_*`.
const SAVE_MARK: u8 = 1;
const RESTORE_MARK: u8 = 2;

/// `struct xt_connmark_tginfo2`: connection mark, its mask, mask of the packet's mark, shift, mode.
fn connection_mark(mode: u8) -> Expr {
    xt_target("CONNMARK", 2, Info::zeroed(16).set(4, &EVERY_BIT).set(8, &EVERY_BIT).set(14, &[mode]))
}

/// A port that traffic is sent to.
fn one_port(port: &Port) -> Result<u16, Reason> {
    let (low, high) = range_of(port)?;
    if low == high { Ok(low) } else { Err(Reason::RedirectRange(port.to_string())) }
}

/// `struct nf_nat_ipv4_multi_range_compat` with one range, or `struct nf_nat_range`: a port and no address.
fn redirect(port: u16, family: Family) -> Expr {
    const PORT_GIVEN: u32 = 2;
    let port = port.to_be_bytes();
    let info = match family {
        Family::V4 => {
            Info::zeroed(24).set(0, &1u32.to_ne_bytes()).set(4, &PORT_GIVEN.to_ne_bytes()).set(16, &port).set(18, &port)
        }
        Family::V6 => Info::zeroed(40).set(0, &PORT_GIVEN.to_ne_bytes()).set(36, &port).set(38, &port),
    };
    xt_target("REDIRECT", 0, info)
}
