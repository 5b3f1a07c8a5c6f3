//! Messages about tables, chains and rules, and the transaction that carries them.
//!
//! A transaction is a batch: the kernel takes all of it or nothing. It carries the generation of the ruleset that was
//! looked at, so that it fails when someone else changed the rules since.

mod listing;

use crate::model::{Family, Table};
use crate::nft::expr::{Compare, Expr, Meta, NAMELESS_SET, Set, network_protocol};
use crate::nft::wire::{APPEND, CREATE, REQUEST, Writer};

pub use listing::{
    Chain, InetChain, InetTable, ListedRule, get_generation, list_chains, list_inet_chains, list_inet_tables,
    list_rules, list_tables, list_values, read_chain, read_generation, read_inet_chain, read_inet_table,
    read_marked_table, read_rule, read_values,
};

/// Subsystem number in the type of a message.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const DEL_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const DEL_CHAIN: u16 = SUBSYSTEM | 5;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
const DEL_RULE: u16 = SUBSYSTEM | 8;
const NEW_SET: u16 = SUBSYSTEM | 9;
const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;
const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
const GET_GENERATION: u16 = SUBSYSTEM | 16;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NF_ACCEPT`, the policy of our base chains.
const ACCEPT: u32 = 1;
/// What our rules carry so that we know them again: a type that the tools do not look at, a length, a text. Without it a
/// rule of ours that leads to no chain of ours could be anybody's.
const MARK: &[u8] = b"\xf0\x0aistio-cni\0";
/// Flags of the sets that we make: `NFT_SET_ANONYMOUS` and `NFT_SET_CONSTANT`.
const SET_OF_A_RULE: u32 = 1 | 2;
/// Type of the values in such a set, which `nft` prints by: a port.
const PORT_TYPE: u32 = 13;
/// What `nft` notes down about them: their byte order is that of the network.
const PORT_NOTE: &[u8] = &[0, 4, 2, 0, 0, 0];
/// Size of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

/// Family of a table. Our iptables-compatible tables are of one family, the native ones of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFamily {
    /// One family.
    One(Family),
    /// Both.
    Inet,
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        Self::One(family)
    }
}

impl AsRef<str> for Table {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Where a base chain hooks in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// Type of chain.
    pub kind: &'static str,
    /// `NF_INET_*`.
    pub number: u32,
    /// Lower comes first.
    pub priority: i32,
}

/// A transaction in the making. Every command returns its sequence number, by which the kernel reports errors.
#[derive(Debug)]
pub struct Transaction {
    writer: Writer,
    /// Number of the last set that a rule looks into.
    last_set: u32,
}

impl Transaction {
    /// Begins a transaction that holds only while the ruleset is of this generation.
    pub fn begin(generation: u32) -> Self {
        let mut writer = Writer::new();
        writer.message(BATCH_BEGIN, REQUEST, &batch_header(), |message| message.be32(1, generation));
        Self { writer, last_set: 0 }
    }

    /// Creates the table if it is not there; then it carries our mark.
    pub fn add_table(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>) -> u32 {
        self.command(NEW_TABLE, CREATE, family, table, |message| {
            message.be32(2, 0);
            message.attribute(6, MARK);
        })
    }

    /// Deletes a table with all that is in it.
    pub fn delete_table(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>) -> u32 {
        self.command(DEL_TABLE, 0, family, table, |_| {})
    }

    /// Deletes all rules of a table.
    pub fn flush_table(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>) -> u32 {
        self.command(DEL_RULE, 0, family, table, |_| {})
    }

    /// Creates a base chain.
    pub fn add_base_chain(
        &mut self,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        name: &str,
        hook: Hook,
    ) -> u32 {
        self.command(NEW_CHAIN, CREATE, family, table, |message| {
            message.string(3, name);
            message.nested(4, |nest| {
                nest.be32(1, hook.number);
                nest.be32(2, hook.priority as u32);
            });
            message.be32(5, ACCEPT);
            message.string(7, hook.kind);
        })
    }

    /// Creates a chain that is only jumped to.
    pub fn add_chain(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>, name: &str) -> u32 {
        self.command(NEW_CHAIN, CREATE, family, table, |message| message.string(3, name))
    }

    /// Deletes an empty chain that nothing jumps to.
    pub fn delete_chain(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>, name: &str) -> u32 {
        self.command(DEL_CHAIN, 0, family, table, |message| message.string(3, name))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>, name: &str) -> u32 {
        self.command(DEL_RULE, 0, family, table, |message| message.string(2, name))
    }

    /// Deletes one rule.
    pub fn delete_rule(
        &mut self,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        chain: &str,
        handle: u64,
    ) -> u32 {
        self.command(DEL_RULE, 0, family, table, |message| {
            message.string(2, chain);
            message.be64(3, handle);
        })
    }

    /// Adds a rule at the end of its chain.
    pub fn append_rule(
        &mut self,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        chain: &str,
        exprs: &[Expr],
    ) -> u32 {
        self.add_rule(APPEND, family, table, chain, exprs)
    }

    /// Adds a rule at the head of its chain.
    pub fn prepend_rule(
        &mut self,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        chain: &str,
        exprs: &[Expr],
    ) -> u32 {
        self.add_rule(0, family, table, chain, exprs)
    }

    /// Ends the transaction: its bytes, and the sequence number that the kernel acknowledges when all was taken.
    pub fn finish(mut self) -> (Vec<u8>, u32) {
        let last = self.writer.acknowledge_last();
        self.writer.message(BATCH_END, REQUEST, &batch_header(), |_| {});
        (self.writer.bytes().to_vec(), last)
    }

    fn add_rule(
        &mut self,
        place: u16,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        chain: &str,
        exprs: &[Expr],
    ) -> u32 {
        let family = family.into();
        let mut sets = self.last_set + 1..;
        for expr in exprs {
            if let Expr::Lookup { set: Set::Values(values), .. } = expr {
                self.add_set(family, table.as_ref(), values);
            }
        }
        self.command(NEW_RULE, CREATE | place, family, table, |message| {
            message.string(2, chain);
            message.nested(4, |list| exprs.iter().for_each(|expr| expr.write(list, &mut sets)));
            if let Some(protocol) = extension_protocol(exprs) {
                message.nested(5, |compat| {
                    compat.be32(1, u32::from(protocol));
                    compat.be32(2, 0);
                });
            }
            // Tables of family `inet` are ours as a whole.
            if family != TableFamily::Inet {
                message.attribute(7, MARK);
            }
        })
    }

    /// Creates the nameless set of ports that the next rule looks into.
    fn add_set(&mut self, family: TableFamily, table: &str, values: &[Vec<u8>]) {
        self.last_set += 1;
        let number = self.last_set;
        self.command(NEW_SET, CREATE, family, table, |message| {
            message.string(2, NAMELESS_SET);
            message.be32(3, SET_OF_A_RULE);
            message.be32(4, PORT_TYPE);
            message.be32(5, values.first().map_or(0, Vec::len) as u32);
            message.be32(10, number);
            message.nested(9, |description| description.be32(1, values.len() as u32));
            message.attribute(13, PORT_NOTE);
        });
        self.command(NEW_ELEMENTS, CREATE, family, table, |message| {
            message.string(2, NAMELESS_SET);
            message.be32(4, number);
            message.nested(3, |list| {
                for value in values {
                    list.nested(1, |element| element.nested(1, |key| key.attribute(1, value)));
                }
            });
        });
    }

    fn command(
        &mut self,
        kind: u16,
        flags: u16,
        family: impl Into<TableFamily>,
        table: impl AsRef<str>,
        body: impl FnOnce(&mut Writer),
    ) -> u32 {
        self.writer.message(kind, REQUEST | flags, &family_header(Some(family.into())), |message| {
            message.string(1, table.as_ref());
            body(message);
        })
    }
}

/// The protocol that a rule with xtables extensions must name a second time: some extensions ask for it when they are
/// checked, and cannot see the comparison. The kernel does not list it.
fn extension_protocol(exprs: &[Expr]) -> Option<u8> {
    exprs.iter().find(|expr| matches!(expr, Expr::XtMatch(_) | Expr::XtTarget(_)))?;
    exprs.windows(2).find_map(|pair| match pair {
        [Expr::LoadMeta(Meta::L4Protocol), Expr::Compare(Compare::Eq, value)] => value.first().copied(),
        _ => None,
    })
}

/// `struct nfgenmsg` for a family; `None` for all of them.
fn family_header(family: Option<TableFamily>) -> [u8; FAMILY_HEADER] {
    let number = match family {
        None => 0,
        Some(TableFamily::One(family)) => network_protocol(family),
        Some(TableFamily::Inet) => 1,
    };
    [number, 0, 0, 0]
}

/// `struct nfgenmsg` of a batch: its last two bytes name the subsystem, big-endian.
fn batch_header() -> [u8; FAMILY_HEADER] {
    [0, 0, 0, 10]
}
