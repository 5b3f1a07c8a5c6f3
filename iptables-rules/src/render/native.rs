//! Native rules as nf_tables expressions: the ones that `nft -f` sends for the same text, so that `nft list ruleset`
//! prints the same.
//!
//! In family `inet` an address stands behind a test of the network protocol, and a port behind a test of the transport
//! protocol unless the rule has made that test before.

use std::net::IpAddr;

use crate::config::{Cidr, Id, Mark, Port};
use crate::model::{Family, Net, Owner, Protocol};
use crate::nft::expr::{Compare, Conntrack, Expr, Header, Meta, Set, Verdict, network_protocol};
use crate::plan::native::{NativeRule, Side, Statement, TrackedAs};
use crate::render::compat::{EncodeError, Reason, begins_connection};

/// Size of the register that holds an interface name, and one more than the longest name.
const INTERFACE_NAME: usize = 16;

/// The expressions of `rule`.
///
/// # Errors
/// Names the rule and what the kernel cannot express.
pub fn encode(rule: &NativeRule) -> Result<Vec<Expr>, EncodeError> {
    let mut encoder = Encoder { exprs: Vec::with_capacity(16), network: None, transport: None };
    for statement in &rule.statements {
        encoder.add(statement).map_err(|reason| EncodeError { rule: rule.to_string(), reason })?;
    }
    Ok(encoder.exprs)
}

/// Expressions in the making, and which protocols they have tested.
struct Encoder {
    exprs: Vec<Expr>,
    network: Option<Family>,
    transport: Option<Protocol>,
}

impl Encoder {
    fn add(&mut self, statement: &Statement) -> Result<(), Reason> {
        match statement {
            Statement::InInterface(name) => self.interface(Meta::InInterfaceName, name)?,
            Statement::OutInterface(name) => self.interface(Meta::OutInterfaceName, name)?,
            Statement::Family(family) => self.network(*family),
            Statement::Begins => {
                self.transport(Protocol::Tcp);
                self.exprs.extend(begins_connection());
            }
            Statement::Protocol(protocol) => self.transport(*protocol),
            Statement::Address { side, family, negate, net } => self.address(*side, *family, *negate, net)?,
            Statement::Port { side, protocol, negate, port } => self.port(*side, *protocol, *negate, port)?,
            Statement::NoneOfPorts(ports) => self.none_of_ports(ports)?,
            Statement::Owner { negate, owner, .. } => {
                let (field, id) = match owner {
                    Owner::User(id) => (Meta::SocketUser, id),
                    Owner::Group(id) => (Meta::SocketGroup, id),
                };
                self.test(Expr::LoadMeta(field), *negate, id_bytes(id)?);
            }
            Statement::Tracked(state) => {
                let bits: u32 = match state {
                    TrackedAs::Invalid => 1,
                    TrackedAs::Known => 2 | 4,
                };
                self.exprs.extend([Expr::LoadConntrack(Conntrack::State), Expr::Mask(bits.to_ne_bytes().to_vec())]);
                self.exprs.push(Expr::Compare(Compare::Ne, vec![0; 4]));
            }
            Statement::Mark { negate, mark } => self.test(Expr::LoadMeta(Meta::Mark), *negate, mark_bytes(mark)?),
            Statement::ConnectionMark(mark) => {
                self.test(Expr::LoadConntrack(Conntrack::Mark), false, mark_bytes(mark)?);
            }
            Statement::Counter => self.exprs.push(Expr::Counter),
            Statement::SetMark(mark) => self.exprs.extend([Expr::Immediate(mark_bytes(mark)?), SET_MARK]),
            Statement::SaveMark => {
                self.exprs.extend([Expr::LoadMeta(Meta::Mark), Expr::SetConntrack(Conntrack::Mark)]);
            }
            Statement::RestoreMark => self.exprs.extend([Expr::LoadConntrack(Conntrack::Mark), SET_MARK]),
            Statement::Zone(zone) => {
                let zone = Expr::Immediate(zone.to_ne_bytes().to_vec());
                self.exprs.extend([zone, Expr::SetConntrack(Conntrack::Zone)]);
            }
            Statement::Tproxy(family, port) => {
                self.exprs.extend([Expr::Immediate(single_port(port)?), Expr::Tproxy(*family)]);
            }
            Statement::Redirect(port) => self.exprs.extend([Expr::Immediate(single_port(port)?), Expr::Redirect]),
            Statement::Jump(chain) => self.decide(Verdict::Jump((*chain).to_owned())),
            Statement::Return => self.decide(Verdict::Return),
            Statement::Accept => self.decide(Verdict::Accept),
            Statement::Drop => self.decide(Verdict::Drop),
            Statement::Reject(refusal) => self.exprs.push(Expr::Reject(*refusal)),
        }
        Ok(())
    }

    fn decide(&mut self, verdict: Verdict) {
        self.exprs.push(Expr::Verdict(verdict));
    }

    fn test(&mut self, load: Expr, negate: bool, value: Vec<u8>) {
        let operator = if negate { Compare::Ne } else { Compare::Eq };
        self.exprs.extend([load, Expr::Compare(operator, value)]);
    }

    /// A name fills its register with zeros. A trailing `*`, or `+` as iptables spells it, leaves the rest open.
    fn interface(&mut self, field: Meta, name: &str) -> Result<(), Reason> {
        let name = name.trim();
        if name.is_empty() || name.len() >= INTERFACE_NAME {
            return Err(Reason::Interface(name.to_owned()));
        }
        let bytes = match name.strip_suffix(['*', '+']) {
            Some("") => return Ok(()),
            Some(prefix) => prefix.as_bytes().to_vec(),
            None => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(INTERFACE_NAME, 0);
                bytes
            }
        };
        self.test(Expr::LoadMeta(field), false, bytes);
        Ok(())
    }

    fn network(&mut self, family: Family) {
        if self.network != Some(family) {
            self.test(Expr::LoadMeta(Meta::NetworkProtocol), false, vec![network_protocol(family)]);
            self.network = Some(family);
        }
    }

    fn transport(&mut self, protocol: Protocol) {
        if self.transport != Some(protocol) {
            let number = match protocol {
                Protocol::Tcp => 6,
                Protocol::Udp => 17,
            };
            self.test(Expr::LoadMeta(Meta::L4Protocol), false, vec![number]);
            self.transport = Some(protocol);
        }
    }

    /// Whole bytes of a prefix are loaded alone; a prefix that ends inside a byte loads all and masks.
    fn address(&mut self, side: Side, family: Family, negate: bool, net: &Net) -> Result<(), Reason> {
        let range = net.range.filter(|range| range.address.is_ipv4() == (family == Family::V4));
        let Some(Cidr { address, prefix }) = range else { return Err(Reason::Net(net.text.clone())) };
        self.network(family);
        let (octets, source) = match address {
            IpAddr::V4(address) => (address.octets().to_vec(), 12),
            IpAddr::V6(address) => (address.octets().to_vec(), 8),
        };
        let size = octets.len() as u32;
        let offset = match side {
            Side::Source => source,
            Side::Destination => source + size,
        };
        let load = |length| Expr::LoadPayload { header: Header::Network, offset, length };
        if prefix > 0 && prefix.is_multiple_of(8) {
            let bytes = octets.into_iter().take(usize::from(prefix / 8)).collect();
            self.test(load(u32::from(prefix / 8)), negate, bytes);
        } else {
            let mask: Vec<u8> = (0..octets.len()).map(|index| mask_byte(usize::from(prefix), index)).collect();
            let value = octets.iter().zip(&mask).map(|(octet, mask)| octet & mask).collect();
            self.exprs.push(load(size));
            self.test(Expr::Mask(mask), negate, value);
        }
        Ok(())
    }

    fn load_port(&mut self, side: Side, protocol: Protocol) {
        self.transport(protocol);
        let offset = match side {
            Side::Source => 0,
            Side::Destination => 2,
        };
        self.exprs.push(Expr::LoadPayload { header: Header::Transport, offset, length: 2 });
    }

    /// A range is two comparisons, or one expression when it is negated.
    fn port(&mut self, side: Side, protocol: Protocol, negate: bool, port: &Port) -> Result<(), Reason> {
        let (low, high) = port.range().ok_or_else(|| Reason::Port(port.to_string()))?;
        self.load_port(side, protocol);
        let (first, last) = (low.to_be_bytes().to_vec(), high.to_be_bytes().to_vec());
        match negate {
            false if low == high => self.exprs.push(Expr::Compare(Compare::Eq, first)),
            true if low == high => self.exprs.push(Expr::Compare(Compare::Ne, first)),
            false => self.exprs.extend([Expr::Compare(Compare::Ge, first), Expr::Compare(Compare::Le, last)]),
            true => self.exprs.push(Expr::Range { negate, low: first, high: last }),
        }
        Ok(())
    }

    fn none_of_ports(&mut self, ports: &[Port]) -> Result<(), Reason> {
        let mut values = ports.iter().map(single_port).collect::<Result<Vec<_>, _>>()?;
        values.sort();
        values.dedup();
        self.load_port(Side::Destination, Protocol::Tcp);
        self.exprs.push(Expr::Lookup { negate: true, set: Set::Values(values) });
        Ok(())
    }
}

const SET_MARK: Expr = Expr::SetMeta(Meta::Mark);

fn mask_byte(prefix: usize, index: usize) -> u8 {
    match prefix.saturating_sub(index * 8) {
        0 => 0,
        bits @ 1..=7 => 0xff << (8 - bits),
        _ => 0xff,
    }
}

fn single_port(port: &Port) -> Result<Vec<u8>, Reason> {
    match port.range() {
        Some((low, high)) if low == high => Ok(low.to_be_bytes().to_vec()),
        Some(_) => Err(Reason::RedirectRange(port.to_string())),
        None => Err(Reason::Port(port.to_string())),
    }
}

fn id_bytes(id: &Id) -> Result<Vec<u8>, Reason> {
    id.number().map(|number| number.to_ne_bytes().to_vec()).ok_or_else(|| Reason::Id(id.to_string()))
}

fn mark_bytes(mark: &Mark) -> Result<Vec<u8>, Reason> {
    mark.value().map(|value| value.to_ne_bytes().to_vec()).ok_or_else(|| Reason::Mark(mark.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::native::{NativeTable, Place, chain};

    fn exprs(statements: Vec<Statement>) -> Result<Vec<Expr>, EncodeError> {
        encode(&NativeRule { table: NativeTable::Nat, chain: chain::OUTPUT, place: Place::Append, statements })
    }

    #[test]
    fn a_protocol_is_tested_once_however_often_the_text_names_it() {
        let to_80 =
            Statement::Port { side: Side::Destination, protocol: Protocol::Tcp, negate: false, port: Port::from(80) };
        let twice = exprs(vec![Statement::Protocol(Protocol::Tcp), to_80.clone()]).unwrap();
        assert_eq!(twice, exprs(vec![to_80]).unwrap());
        assert_eq!(twice.len(), 4);
    }

    #[test]
    fn what_the_kernel_cannot_be_given_is_named_with_its_rule() {
        let star = exprs(vec![Statement::Redirect(Port::new("*")), Statement::Counter]).unwrap_err();
        assert_eq!(star.rule, "redirect to :* counter");
        assert_eq!(star.reason, Reason::Port("*".to_owned()));
        let range = exprs(vec![Statement::NoneOfPorts(vec![Port::new("1:2")])]).unwrap_err();
        assert_eq!(range.reason, Reason::RedirectRange("1:2".to_owned()));
        let long = exprs(vec![Statement::InInterface("sixteen-bytes-xy".to_owned())]).unwrap_err();
        assert_eq!(long.reason, Reason::Interface("sixteen-bytes-xy".to_owned()));
        let wrong = Net::host("10.0.0.1", Family::V6);
        let address = Statement::Address { side: Side::Source, family: Family::V6, negate: false, net: wrong };
        assert!(matches!(exprs(vec![address]).unwrap_err().reason, Reason::Net(_)));
    }
}
