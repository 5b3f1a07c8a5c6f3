//! Expressions of nf_tables rules, in both directions.
//!
//! Encoding and decoding stand side by side so that "apply, then look" compares values and not bytes. Counters are
//! compared without their counts. What we do not know is kept by name, equal to nothing of ours.

mod field;

use crate::model::{Family, Refusal};
use crate::nft::wire::{Writer, attributes, find, find_be32, find_string};

pub use field::{Compare, Conntrack, Header, Meta, network_protocol};

/// Register that all our values pass through.
const REGISTER: u32 = 1;
/// Register that holds the verdict.
const VERDICT: u32 = 0;

/// A set of values that a rule looks into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// The values, in ascending order. The transaction makes a nameless set of them.
    Values(Vec<Vec<u8>>),
    /// A set that the kernel holds, by its name there. Only read, never written.
    Named(String),
}

/// Name of a set that the kernel numbers.
pub const NAMELESS_SET: &str = "__set%d";
/// `NF_NAT_RANGE_PROTO_SPECIFIED`: the port is given.
const NAT_PORT_GIVEN: u32 = 2;
/// `NFT_REJECT_TCP_RST`.
const REJECT_BY_RESET: u32 = 1;
/// `NFT_REJECT_ICMPX_UNREACH`: in the words of the packet's family.
const REJECT_BY_ICMP: u32 = 2;
/// `NFT_REJECT_ICMPX_PORT_UNREACH`.
const ICMP_PORT: u8 = 1;
/// `NFT_LOOKUP_F_INV`.
const LOOKUP_INVERTED: u32 = 1;

/// Verdict, `NFT_*` and `NF_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Accept the packet.
    Accept,
    /// Drop the packet.
    Drop,
    /// Leave the chain.
    Return,
    /// Go on in this chain.
    Jump(String),
    /// Another verdict, with its chain if it names one. Only read, never written.
    Other(i32, Option<String>),
}

const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_JUMP: i32 = -3;
const NFT_RETURN: i32 = -5;

/// One expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// Loads metadata.
    LoadMeta(Meta),
    /// Loads bytes of the packet.
    LoadPayload {
        /// Where the offset counts from.
        header: Header,
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
    },
    /// Keeps the masked bits of the register.
    Mask(Vec<u8>),
    /// Goes on if the register compares so with these bytes.
    Compare(Compare, Vec<u8>),
    /// Goes on if the register is within the two values, or outside them.
    Range {
        /// True for outside.
        negate: bool,
        /// Lowest value.
        low: Vec<u8>,
        /// Highest value.
        high: Vec<u8>,
    },
    /// Loads what connection tracking knows.
    LoadConntrack(Conntrack),
    /// Puts these bytes into the register.
    Immediate(Vec<u8>),
    /// Sets metadata to the register.
    SetMeta(Meta),
    /// Sets a property of the connection to the register.
    SetConntrack(Conntrack),
    /// Goes on if the register is one of the values, or none of them.
    Lookup {
        /// True for none of them.
        negate: bool,
        /// The values.
        set: Set,
    },
    /// Sends to the local port in the register.
    Redirect,
    /// Delivers to the transparent socket of this family on the port in the register.
    Tproxy(Family),
    /// Refuses, and tells the sender so.
    Reject(Refusal),
    /// Counts packets.
    Counter,
    /// Decides.
    Verdict(Verdict),
    /// A match of xtables.
    XtMatch(Xt),
    /// A target of xtables.
    XtTarget(Xt),
    /// An expression that we never write, by name.
    Foreign(String),
}

/// An xtables extension with its binary settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xt {
    /// Name of the extension.
    pub name: String,
    /// Revision of the settings' layout.
    pub revision: u32,
    /// The settings.
    pub info: Vec<u8>,
}

impl Expr {
    /// Writes one element of a rule's expression list. A lookup takes the next of `sets`, the numbers that the transaction
    /// gave to the rule's sets.
    pub fn write(&self, list: &mut Writer, sets: &mut impl Iterator<Item = u32>) {
        match self {
            Self::LoadMeta(field) => element(list, "meta", |data| {
                data.be32(1, REGISTER);
                data.be32(2, *field as u32);
            }),
            Self::LoadPayload { header, offset, length } => element(list, "payload", |data| {
                data.be32(1, REGISTER);
                data.be32(2, *header as u32);
                data.be32(3, *offset);
                data.be32(4, *length);
            }),
            Self::Mask(mask) => element(list, "bitwise", |data| {
                data.be32(1, REGISTER);
                data.be32(2, REGISTER);
                data.be32(3, mask.len() as u32);
                data.nested(4, |value| value.attribute(1, mask));
                data.nested(5, |value| value.attribute(1, &vec![0; mask.len()]));
            }),
            Self::Compare(operator, bytes) => element(list, "cmp", |data| {
                data.be32(1, REGISTER);
                data.be32(2, *operator as u32);
                data.nested(3, |value| value.attribute(1, bytes));
            }),
            Self::Range { negate, low, high } => element(list, "range", |data| {
                data.be32(1, REGISTER);
                data.be32(2, u32::from(*negate));
                data.nested(3, |value| value.attribute(1, low));
                data.nested(4, |value| value.attribute(1, high));
            }),
            Self::LoadConntrack(key) => element(list, "ct", |data| {
                data.be32(2, *key as u32);
                data.be32(1, REGISTER);
            }),
            Self::Immediate(bytes) => element(list, "immediate", |data| {
                data.be32(1, REGISTER);
                data.nested(2, |value| value.attribute(1, bytes));
            }),
            Self::SetMeta(field) => element(list, "meta", |data| {
                data.be32(2, *field as u32);
                data.be32(3, REGISTER);
            }),
            Self::SetConntrack(key) => element(list, "ct", |data| {
                data.be32(2, *key as u32);
                data.be32(4, REGISTER);
            }),
            Self::Lookup { negate, set } => element(list, "lookup", |data| {
                data.be32(2, REGISTER);
                match set {
                    Set::Named(name) => data.string(1, name),
                    Set::Values(_) => {
                        data.string(1, NAMELESS_SET);
                        sets.next().into_iter().for_each(|number| data.be32(4, number));
                    }
                }
                data.be32(5, if *negate { LOOKUP_INVERTED } else { 0 });
            }),
            Self::Redirect => element(list, "redir", |data| {
                data.be32(1, REGISTER);
                data.be32(3, NAT_PORT_GIVEN);
            }),
            Self::Tproxy(family) => element(list, "tproxy", |data| {
                data.be32(1, u32::from(network_protocol(*family)));
                data.be32(3, REGISTER);
            }),
            Self::Reject(Refusal::Reset) => element(list, "reject", |data| data.be32(1, REJECT_BY_RESET)),
            Self::Reject(Refusal::PortUnreachable) => element(list, "reject", |data| {
                data.be32(1, REJECT_BY_ICMP);
                data.attribute(2, &[ICMP_PORT]);
            }),
            Self::Counter => element(list, "counter", |_| {}),
            Self::Verdict(verdict) => element(list, "immediate", |data| {
                data.be32(1, VERDICT);
                data.nested(2, |value| value.nested(2, |value| verdict.write(value)));
            }),
            Self::XtMatch(xt) => element(list, "match", |data| xt.write(data)),
            Self::XtTarget(xt) => element(list, "target", |data| xt.write(data)),
            Self::Foreign(name) => element(list, name, |_| {}),
        }
    }

    /// Reads the payload of one element of a rule's expression list.
    pub fn read(element: &[u8]) -> Self {
        let name = find_string(element, 1).unwrap_or_default();
        let data = find(element, 2).unwrap_or_default();
        Self::decode(name, data).unwrap_or_else(|| Self::Foreign(name.to_owned()))
    }

    fn decode(name: &str, data: &[u8]) -> Option<Self> {
        let register = |kind| find_be32(data, kind).is_some_and(|register| register == REGISTER);
        let bytes = |kind| find(data, kind).and_then(|value| find(value, 1)).map(<[u8]>::to_vec);
        match name {
            "meta" if register(1) => Meta::from_number(find_be32(data, 2)?).map(Self::LoadMeta),
            "payload" if register(1) => Some(Self::LoadPayload {
                header: Header::from_number(find_be32(data, 2)?)?,
                offset: find_be32(data, 3)?,
                length: find_be32(data, 4)?,
            }),
            "bitwise" if register(1) && register(2) && find_be32(data, 6).unwrap_or(0) == 0 => {
                bytes(5)?.iter().all(|byte| *byte == 0).then(|| bytes(4)).flatten().map(Self::Mask)
            }
            "cmp" if register(1) => Some(Self::Compare(Compare::from_number(find_be32(data, 2)?)?, bytes(3)?)),
            "range" if register(1) => {
                Some(Self::Range { negate: find_be32(data, 2)? == 1, low: bytes(3)?, high: bytes(4)? })
            }
            "meta" if find(data, 1).is_none() && register(3) => {
                Meta::from_number(find_be32(data, 2)?).map(Self::SetMeta)
            }
            // A direction is only asked of connections that have one.
            "ct" if find(data, 3).is_none() => {
                let key = Conntrack::from_number(find_be32(data, 2)?)?;
                match (find(data, 1).is_some(), find(data, 4).is_some()) {
                    (true, false) if register(1) => Some(Self::LoadConntrack(key)),
                    (false, true) if register(4) => Some(Self::SetConntrack(key)),
                    _ => None,
                }
            }
            "lookup" if register(2) && find(data, 3).is_none() => Some(Self::Lookup {
                negate: find_be32(data, 5).unwrap_or(0) & LOOKUP_INVERTED != 0,
                set: Set::Named(find_string(data, 1)?.to_owned()),
            }),
            // The kernel lists the one port as first and last.
            "redir" if register(1) && (find(data, 2).is_none() || register(2)) => {
                (find_be32(data, 3)? == NAT_PORT_GIVEN).then_some(Self::Redirect)
            }
            "tproxy" if find(data, 2).is_none() && register(3) => {
                let family = find_be32(data, 1)?;
                Family::BOTH.into_iter().find(|it| u32::from(network_protocol(*it)) == family).map(Self::Tproxy)
            }
            "reject" => match (find_be32(data, 1)?, find(data, 2)) {
                (REJECT_BY_RESET, _) => Some(Self::Reject(Refusal::Reset)),
                (REJECT_BY_ICMP, Some([ICMP_PORT])) => Some(Self::Reject(Refusal::PortUnreachable)),
                _ => None,
            },
            "counter" => Some(Self::Counter),
            "immediate" if register(1) => bytes(2).map(Self::Immediate),
            "immediate" if find_be32(data, 1)? == VERDICT => Verdict::read(find(find(data, 2)?, 2)?).map(Self::Verdict),
            "match" => Xt::read(data).map(Self::XtMatch),
            "target" => Xt::read(data).map(Self::XtTarget),
            _ => None,
        }
    }
}

/// Reads the payload of a rule's expression list.
pub fn read_list(list: &[u8]) -> Vec<Expr> {
    attributes(list).map(|(_, element)| Expr::read(element)).collect()
}

fn element(list: &mut Writer, name: &str, data: impl FnOnce(&mut Writer)) {
    list.nested(1, |element| {
        element.string(1, name);
        element.nested(2, data);
    });
}

impl Verdict {
    fn write(&self, value: &mut Writer) {
        let (code, chain) = match self {
            Self::Accept => (NF_ACCEPT, None),
            Self::Drop => (NF_DROP, None),
            Self::Return => (NFT_RETURN, None),
            Self::Jump(chain) => (NFT_JUMP, Some(chain)),
            Self::Other(code, chain) => (*code, chain.as_ref()),
        };
        value.be32(1, code as u32);
        if let Some(chain) = chain {
            value.string(2, chain);
        }
    }

    fn read(value: &[u8]) -> Option<Self> {
        let code = find_be32(value, 1)? as i32;
        let chain = find_string(value, 2).map(str::to_owned);
        Some(match (code, chain) {
            (NF_ACCEPT, None) => Self::Accept,
            (NF_DROP, None) => Self::Drop,
            (NFT_RETURN, None) => Self::Return,
            (NFT_JUMP, Some(chain)) => Self::Jump(chain),
            (code, chain) => Self::Other(code, chain),
        })
    }

    /// The chain that it leads to.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Other(_, Some(chain)) => Some(chain),
            Self::Accept | Self::Drop | Self::Return | Self::Other(_, None) => None,
        }
    }
}

impl Xt {
    fn write(&self, data: &mut Writer) {
        data.string(1, &self.name);
        data.be32(2, self.revision);
        data.attribute(3, &self.info);
    }

    fn read(data: &[u8]) -> Option<Self> {
        Some(Self {
            name: find_string(data, 1)?.to_owned(),
            revision: find_be32(data, 2)?,
            info: find(data, 3)?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(expr: &Expr) -> Vec<Expr> {
        let mut writer = Writer::new();
        expr.write(&mut writer, &mut std::iter::once(1));
        read_list(writer.bytes())
    }

    #[test]
    fn every_expression_is_read_as_it_was_written() {
        let all = [
            Expr::LoadMeta(Meta::OutInterfaceName),
            Expr::LoadPayload { header: Header::Transport, offset: 2, length: 2 },
            Expr::Mask(vec![255, 240, 0, 0]),
            Expr::Compare(Compare::Ne, vec![127, 0, 0, 1]),
            Expr::Range { negate: true, low: vec![0, 80], high: vec![0, 90] },
            Expr::LoadMeta(Meta::SocketUser),
            Expr::LoadConntrack(Conntrack::State),
            Expr::Immediate(vec![0x05, 0x39]),
            Expr::SetMeta(Meta::Mark),
            Expr::SetConntrack(Conntrack::Zone),
            Expr::Lookup { negate: true, set: Set::Named("__set0".to_owned()) },
            Expr::Redirect,
            Expr::Tproxy(Family::V6),
            Expr::Reject(Refusal::Reset),
            Expr::Reject(Refusal::PortUnreachable),
            Expr::Counter,
            Expr::Verdict(Verdict::Jump("ISTIO_OUTPUT".to_owned())),
            Expr::Verdict(Verdict::Return),
            Expr::Verdict(Verdict::Drop),
            Expr::Verdict(Verdict::Accept),
            Expr::Verdict(Verdict::Other(-1, None)),
            Expr::XtMatch(Xt { name: "owner".to_owned(), revision: 1, info: vec![7; 24] }),
            Expr::XtTarget(Xt { name: "CT".to_owned(), revision: 2, info: vec![1; 72] }),
            Expr::Foreign("quota".to_owned()),
        ];
        for expr in all {
            assert_eq!(round_trip(&expr), std::slice::from_ref(&expr));
        }
    }

    #[test]
    fn a_load_into_another_register_is_not_ours() {
        let mut writer = Writer::new();
        element(&mut writer, "meta", |data| {
            data.be32(1, 9);
            data.be32(2, Meta::L4Protocol as u32);
        });
        assert_eq!(read_list(writer.bytes()), [Expr::Foreign("meta".to_owned())]);
    }
}
