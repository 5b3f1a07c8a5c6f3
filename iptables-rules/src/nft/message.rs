//! Messages about tables, chains and rules, and the transaction that carries them.
//!
//! A transaction is a batch: the kernel takes all of it or nothing. It carries the generation of the ruleset that was
//! looked at, so that it fails when someone else changed the rules since.

use crate::model::{Family, Table};
use crate::nft::expr::{Compare, Expr, Meta, NAMELESS_SET, Set, network_protocol, read_list};
use crate::nft::wire::{APPEND, CREATE, DUMP, REQUEST, Writer, attributes, find, find_be32, find_be64, find_string};

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
/// `NFT_TABLE_F_DORMANT`.
const DORMANT: u32 = 1;
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
/// Types of base chains.
const CHAIN_KINDS: [&str; 3] = ["filter", "nat", "route"];
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

/// A chain as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: String,
}

/// A rule as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    /// Its chain.
    pub chain: String,
    /// Number to delete it by.
    pub handle: u64,
    /// It carries our mark.
    pub marked: bool,
    /// What it does.
    pub exprs: Vec<Expr>,
}

/// A table of family `inet` as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InetTable {
    /// Its name.
    pub name: String,
    /// It is in force; a dormant one is not.
    pub active: bool,
}

/// A chain of family `inet` as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InetChain {
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where it hooks in; `None` for a chain that is only jumped to.
    pub hook: Option<Hook>,
    /// It lets pass what no rule decides about.
    pub accepts: bool,
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

    /// Creates the table if it is not there.
    pub fn add_table(&mut self, family: impl Into<TableFamily>, table: impl AsRef<str>) -> u32 {
        self.command(NEW_TABLE, CREATE, family, table, |message| message.be32(2, 0))
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

/// Asks for the generation of the ruleset.
pub fn get_generation() -> Writer {
    query(GET_GENERATION, 0, None, |_| {})
}

/// Asks for all chains of both families.
pub fn list_chains() -> Writer {
    query(GET_CHAIN, DUMP, None, |_| {})
}

/// Asks for all rules of a table.
pub fn list_rules(family: impl Into<TableFamily>, table: impl AsRef<str>) -> Writer {
    query(GET_RULE, DUMP, Some(family.into()), |message| message.string(1, table.as_ref()))
}

/// Asks for all tables of family `inet`.
pub fn list_inet_tables() -> Writer {
    query(GET_TABLE, DUMP, Some(TableFamily::Inet), |_| {})
}

/// Asks for all chains of family `inet`.
pub fn list_inet_chains() -> Writer {
    query(GET_CHAIN, DUMP, Some(TableFamily::Inet), |_| {})
}

/// Asks for the values of a set of family `inet`.
pub fn list_values(table: &str, set: &str) -> Writer {
    query(GET_ELEMENTS, DUMP, Some(TableFamily::Inet), |message| {
        message.string(1, table);
        message.string(2, set);
    })
}

/// Reads an answer to [`get_generation`].
pub fn read_generation(kind: u16, payload: &[u8]) -> Option<u32> {
    (kind == NEW_GENERATION).then(|| find_be32(payload.get(FAMILY_HEADER..)?, 1)).flatten()
}

/// Reads an answer to [`list_chains`]; `None` for chains of other families and tables.
pub fn read_chain(kind: u16, payload: &[u8]) -> Option<Chain> {
    if kind != NEW_CHAIN {
        return None;
    }
    let number = *payload.first()?;
    let family = Family::BOTH.into_iter().find(|family| network_protocol(*family) == number)?;
    let attributes = payload.get(FAMILY_HEADER..)?;
    let name = find_string(attributes, 1)?;
    let table = Table::ALL.into_iter().find(|table| table.as_str() == name)?;
    Some(Chain { family, table, name: find_string(attributes, 3)?.to_owned() })
}

/// Reads an answer to [`list_rules`].
pub fn read_rule(kind: u16, payload: &[u8]) -> Option<ListedRule> {
    let attributes = (kind == NEW_RULE).then(|| payload.get(FAMILY_HEADER..)).flatten()?;
    Some(ListedRule {
        chain: find_string(attributes, 2)?.to_owned(),
        handle: find_be64(attributes, 3)?,
        marked: find(attributes, 7) == Some(MARK),
        exprs: find(attributes, 4).map(read_list).unwrap_or_default(),
    })
}

/// Reads an answer to [`list_inet_tables`].
pub fn read_inet_table(kind: u16, payload: &[u8]) -> Option<InetTable> {
    let attributes = (kind == NEW_TABLE).then(|| payload.get(FAMILY_HEADER..)).flatten()?;
    let name = find_string(attributes, 1)?.to_owned();
    Some(InetTable { name, active: find_be32(attributes, 2).unwrap_or(0) & DORMANT == 0 })
}

/// Reads an answer to [`list_inet_chains`].
pub fn read_inet_chain(kind: u16, payload: &[u8]) -> Option<InetChain> {
    let attributes = (kind == NEW_CHAIN).then(|| payload.get(FAMILY_HEADER..)).flatten()?;
    let hook = find(attributes, 4).and_then(|nest| {
        let kind = find_string(attributes, 7)?;
        Some(Hook {
            kind: CHAIN_KINDS.into_iter().find(|it| *it == kind).unwrap_or("?"),
            number: find_be32(nest, 1)?,
            priority: find_be32(nest, 2)? as i32,
        })
    });
    Some(InetChain {
        table: find_string(attributes, 1)?.to_owned(),
        name: find_string(attributes, 3)?.to_owned(),
        hook,
        accepts: find_be32(attributes, 5).is_none_or(|policy| policy == ACCEPT),
    })
}

/// Reads an answer to [`list_values`]: some of the values, in the kernel's order.
pub fn read_values(kind: u16, payload: &[u8]) -> Vec<Vec<u8>> {
    let list = (kind == NEW_ELEMENTS).then(|| find(payload.get(FAMILY_HEADER..)?, 3)).flatten().unwrap_or_default();
    let key = |element| find(find(element, 1)?, 1).map(<[u8]>::to_vec);
    attributes(list).filter_map(|(_, element)| key(element)).collect()
}

fn query(kind: u16, flags: u16, family: Option<TableFamily>, body: impl FnOnce(&mut Writer)) -> Writer {
    let mut writer = Writer::new();
    writer.message(kind, REQUEST | flags, &family_header(family), body);
    writer
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
