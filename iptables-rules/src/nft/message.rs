//! Messages about tables, chains and rules, and the transaction that carries them.
//!
//! A transaction is a batch: the kernel takes all of it or nothing. It carries the generation of the ruleset that was
//! looked at, so that it fails when someone else changed the rules since.

use crate::model::{Family, Table};
use crate::nft::expr::{Compare, Expr, Meta, read_list};
use crate::nft::wire::{APPEND, CREATE, DUMP, REQUEST, Writer, find, find_be32, find_be64, find_string};

/// Subsystem number in the type of a message.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const DEL_CHAIN: u16 = SUBSYSTEM | 5;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
const DEL_RULE: u16 = SUBSYSTEM | 8;
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
const GET_GENERATION: u16 = SUBSYSTEM | 16;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NF_ACCEPT`, the policy of our base chains.
const ACCEPT: u32 = 1;
/// What our rules carry so that we know them again: a type that the tools do not look at, a length, a text. Without it a
/// rule of ours that leads to no chain of ours could be anybody's.
const MARK: &[u8] = b"\xf0\x0aistio-cni\0";
/// Size of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

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

/// A transaction in the making. Every command returns its sequence number, by which the kernel reports errors.
#[derive(Debug)]
pub struct Transaction {
    writer: Writer,
}

impl Transaction {
    /// Begins a transaction that holds only while the ruleset is of this generation.
    pub fn begin(generation: u32) -> Self {
        let mut writer = Writer::new();
        writer.message(BATCH_BEGIN, REQUEST, &batch_header(), |message| message.be32(1, generation));
        Self { writer }
    }

    /// Creates the table if it is not there.
    pub fn add_table(&mut self, family: Family, table: Table) -> u32 {
        self.command(NEW_TABLE, CREATE, family, table, |message| message.be32(2, 0))
    }

    /// Creates a base chain.
    pub fn add_base_chain(&mut self, family: Family, table: Table, name: &str, hook: Hook) -> u32 {
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
    pub fn add_chain(&mut self, family: Family, table: Table, name: &str) -> u32 {
        self.command(NEW_CHAIN, CREATE, family, table, |message| message.string(3, name))
    }

    /// Deletes an empty chain that nothing jumps to.
    pub fn delete_chain(&mut self, family: Family, table: Table, name: &str) -> u32 {
        self.command(DEL_CHAIN, 0, family, table, |message| message.string(3, name))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, family: Family, table: Table, name: &str) -> u32 {
        self.command(DEL_RULE, 0, family, table, |message| message.string(2, name))
    }

    /// Deletes one rule.
    pub fn delete_rule(&mut self, family: Family, table: Table, chain: &str, handle: u64) -> u32 {
        self.command(DEL_RULE, 0, family, table, |message| {
            message.string(2, chain);
            message.be64(3, handle);
        })
    }

    /// Adds a rule at the end of its chain.
    pub fn append_rule(&mut self, family: Family, table: Table, chain: &str, exprs: &[Expr]) -> u32 {
        self.add_rule(APPEND, family, table, chain, exprs)
    }

    /// Adds a rule at the head of its chain.
    pub fn prepend_rule(&mut self, family: Family, table: Table, chain: &str, exprs: &[Expr]) -> u32 {
        self.add_rule(0, family, table, chain, exprs)
    }

    /// Ends the transaction: its bytes, and the sequence number that the kernel acknowledges when all was taken.
    pub fn finish(mut self) -> (Vec<u8>, u32) {
        let last = self.writer.acknowledge_last();
        self.writer.message(BATCH_END, REQUEST, &batch_header(), |_| {});
        (self.writer.bytes().to_vec(), last)
    }

    fn add_rule(&mut self, place: u16, family: Family, table: Table, chain: &str, exprs: &[Expr]) -> u32 {
        self.command(NEW_RULE, CREATE | place, family, table, |message| {
            message.string(2, chain);
            message.nested(4, |list| exprs.iter().for_each(|expr| expr.write(list)));
            if let Some(protocol) = extension_protocol(exprs) {
                message.nested(5, |compat| {
                    compat.be32(1, u32::from(protocol));
                    compat.be32(2, 0);
                });
            }
            message.attribute(7, MARK);
        })
    }

    fn command(&mut self, kind: u16, flags: u16, family: Family, table: Table, body: impl FnOnce(&mut Writer)) -> u32 {
        self.writer.message(kind, REQUEST | flags, &family_header(Some(family)), |message| {
            message.string(1, table.as_str());
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
pub fn list_rules(family: Family, table: Table) -> Writer {
    query(GET_RULE, DUMP, Some(family), |message| message.string(1, table.as_str()))
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
    let family = read_family(*payload.first()?)?;
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

fn query(kind: u16, flags: u16, family: Option<Family>, body: impl FnOnce(&mut Writer)) -> Writer {
    let mut writer = Writer::new();
    writer.message(kind, REQUEST | flags, &family_header(family), body);
    writer
}

/// `struct nfgenmsg` for a family; `None` for all of them.
fn family_header(family: Option<Family>) -> [u8; FAMILY_HEADER] {
    let number = match family {
        None => 0,
        Some(Family::V4) => 2,
        Some(Family::V6) => 10,
    };
    [number, 0, 0, 0]
}

fn read_family(number: u8) -> Option<Family> {
    Family::BOTH.into_iter().find(|family| family_header(Some(*family)).first() == Some(&number))
}

/// `struct nfgenmsg` of a batch: its last two bytes name the subsystem, big-endian.
fn batch_header() -> [u8; FAMILY_HEADER] {
    [0, 0, 0, 10]
}
