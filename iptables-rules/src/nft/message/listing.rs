//! Questions about tables, chains, rules and sets, and what the kernel's answers say.
//!
//! An answer that is cut off or of another kind reads as nothing; the kernel's lists are taken as they come.

use crate::model::{Family, Table};
use crate::nft::expr::{Expr, network_protocol, read_list};
use crate::nft::message::{
    ACCEPT, FAMILY_HEADER, GET_CHAIN, GET_ELEMENTS, GET_GENERATION, GET_RULE, GET_TABLE, Hook, MARK, NEW_CHAIN,
    NEW_ELEMENTS, NEW_GENERATION, NEW_RULE, NEW_TABLE, TableFamily, family_header,
};
use crate::nft::wire::{DUMP, REQUEST, Writer, attributes, find, find_be32, find_be64, find_string};

/// `NFT_TABLE_F_DORMANT`.
const DORMANT: u32 = 1;
/// Types of base chains.
const CHAIN_KINDS: [&str; 3] = ["filter", "nat", "route"];

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

/// Asks for the generation of the ruleset.
pub fn get_generation() -> Writer {
    query(GET_GENERATION, 0, None, |_| {})
}

/// Asks for all chains of both families.
pub fn list_chains() -> Writer {
    query(GET_CHAIN, DUMP, None, |_| {})
}

/// Asks for all tables.
pub fn list_tables() -> Writer {
    query(GET_TABLE, DUMP, None, |_| {})
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

/// Reads an answer to [`list_tables`]; `None` for tables that others made.
pub fn read_marked_table(kind: u16, payload: &[u8]) -> Option<(Family, Table)> {
    let attributes = (kind == NEW_TABLE).then(|| payload.get(FAMILY_HEADER..)).flatten()?;
    find(attributes, 6).filter(|data| *data == MARK)?;
    let number = *payload.first()?;
    let family = Family::BOTH.into_iter().find(|family| network_protocol(*family) == number)?;
    let name = find_string(attributes, 1)?;
    Some((family, Table::ALL.into_iter().find(|table| table.as_str() == name)?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::expr::{Compare, Set};
    use crate::nft::message::Transaction;
    use crate::nft::wire::messages;

    /// A base chain, a set with its two values, and a rule that looks into it, in the form in which the kernel, too,
    /// speaks of them.
    fn written() -> Vec<u8> {
        let mut transaction = Transaction::begin(1);
        transaction.add_table(TableFamily::Inet, "t");
        let hook = Hook { kind: "route", number: 3, priority: -150 };
        transaction.add_base_chain(TableFamily::Inet, "t", "output", hook);
        let set = Set::Values(vec![vec![0, 53], vec![58, 160]]);
        let exprs = [Expr::Lookup { negate: true, set }, Expr::Compare(Compare::Eq, vec![6])];
        transaction.append_rule(TableFamily::Inet, "t", "output", &exprs);
        transaction.finish().0
    }

    #[test]
    fn a_base_chain_and_the_values_of_a_set_are_read_as_they_were_written() {
        let bytes = written();
        let all: Vec<(u16, &[u8])> = messages(&bytes).collect();
        let chains: Vec<_> = all.iter().filter_map(|(kind, payload)| read_inet_chain(*kind, payload)).collect();
        let hook = Hook { kind: "route", number: 3, priority: -150 };
        let output = || "output".to_owned();
        assert_eq!(chains, [InetChain { table: "t".to_owned(), name: output(), hook: Some(hook), accepts: true }]);
        let tables: Vec<_> = all.iter().filter_map(|(kind, payload)| read_inet_table(*kind, payload)).collect();
        assert_eq!(tables, [InetTable { name: "t".to_owned(), active: true }]);
        let values: Vec<_> = all.iter().flat_map(|(kind, payload)| read_values(*kind, payload)).collect();
        assert_eq!(values, [[0, 53], [58, 160]]);
    }

    #[test]
    fn cut_off_answers_read_as_nothing_and_do_no_harm() {
        let bytes = written();
        for (kind, payload) in messages(&bytes) {
            for length in 0..payload.len() {
                let part = payload.get(..length).unwrap_or_default();
                read_chain(kind, part);
                read_rule(kind, part);
                read_inet_table(kind, part);
                read_inet_chain(kind, part);
                read_values(kind, part);
            }
        }
    }
}
