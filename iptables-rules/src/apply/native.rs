//! Native nftables rules: tables of our own in family `inet`, in one transaction over netlink.
//!
//! No program is started. Tables that an earlier configuration left and this one does not want go in the same
//! transaction. The iptables-compatible form is not touched; which form is in place is the caller's business.

use std::collections::BTreeMap;

use sys::netlink::{NetlinkError, Protocol, Socket};

use crate::apply::ApplyError;
use crate::apply::netlink::{commit, generation, kernel, retrying};
use crate::config::{HostFacts, Settings};
use crate::nft::message::{
    TableFamily, Transaction, list_inet_chains, list_inet_tables, list_rules, list_values, read_inet_chain,
    read_inet_table, read_rule, read_values,
};
use crate::plan::native::{NativePlan, NativeTable, sidecar};
use crate::state::native::{Have, HaveTable, NativeDifference, WantedTables, differences, replace, wanted};

const ENOENT: i32 = 2;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What differed before; empty when nothing had to be changed.
    pub differences: Vec<NativeDifference>,
    /// Number of rules wanted.
    pub rules: usize,
}

/// Brings the calling thread's namespace to the native rules of `settings`, whatever tables of ours were there.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn apply(settings: &Settings, facts: &HostFacts) -> Result<Outcome, ApplyError> {
    bring_to(&sidecar(settings, facts))
}

/// Removes our tables, as far as they are there.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn remove() -> Result<Outcome, ApplyError> {
    bring_to(&NativePlan::default())
}

/// Looks whether the calling thread's namespace holds the native rules of `settings`, and changes nothing.
///
/// # Errors
/// See [`ApplyError`].
pub fn check(settings: &Settings, facts: &HostFacts) -> Result<Vec<NativeDifference>, ApplyError> {
    let wanted = wanted(&sidecar(settings, facts))?;
    retrying(|| Ok(look(&open()?)?.map(|have| differences(&wanted, &have))))
}

fn bring_to(plan: &NativePlan) -> Result<Outcome, ApplyError> {
    let wanted = wanted(plan)?;
    let differences = retrying(|| attempt(&wanted))?;
    Ok(Outcome { differences, rules: plan.rules.len() })
}

/// `None` when the rules changed while we looked.
fn attempt(wanted: &WantedTables) -> Result<Option<Vec<NativeDifference>>, ApplyError> {
    let socket = open()?;
    let generation = generation(&socket)?;
    let Some(have) = look(&socket)? else { return Ok(None) };
    let found = differences(wanted, &have);
    if found.is_empty() {
        return Ok(Some(found));
    }
    let mut transaction = Transaction::begin(generation);
    let rules: Vec<(u32, String)> = replace(&mut transaction, wanted, &have, &found).into_iter().collect();
    commit(&socket, transaction, &rules).map(|taken| taken.then_some(found))
}

/// `None` when it changed while we looked.
fn look(socket: &Socket) -> Result<Option<Have>, ApplyError> {
    match observe(socket) {
        Ok(have) => Ok(Some(have)),
        Err(error) if is_change(&error) => Ok(None),
        Err(source) => Err(kernel(source)),
    }
}

fn open() -> Result<Socket, ApplyError> {
    Socket::open(Protocol::Netfilter).map_err(|source| kernel(source.into()))
}

/// Our tables; their chains, rules and sets are asked for only when there are such tables, so that an empty namespace
/// costs one question.
fn observe(socket: &Socket) -> Result<Have, NetlinkError> {
    let mut tables = Vec::new();
    socket.dump(list_inet_tables().bytes(), |kind, payload| tables.extend(read_inet_table(kind, payload)))?;
    let ours = |name: &str| NativeTable::ALL.into_iter().find(|table| table.as_str() == name);
    tables.retain(|table| ours(&table.name).is_some());
    let mut have = BTreeMap::new();
    if tables.is_empty() {
        return Ok(have);
    }
    let mut chains = Vec::new();
    socket.dump(list_inet_chains().bytes(), |kind, payload| chains.extend(read_inet_chain(kind, payload)))?;
    for listed in &tables {
        let Some(table) = ours(&listed.name) else { continue };
        let mut rules = Vec::new();
        let query = list_rules(TableFamily::Inet, &listed.name);
        socket.dump(query.bytes(), |kind, payload| rules.extend(read_rule(kind, payload)))?;
        let mut there = HaveTable::new(listed, &chains, rules);
        for set in there.sets() {
            let mut values = Vec::new();
            socket.dump(list_values(&listed.name, &set).bytes(), |kind, payload| {
                values.extend(read_values(kind, payload));
            })?;
            there.fill_set(&set, values);
        }
        have.insert(table, there);
    }
    Ok(have)
}

/// The list was not one consistent state: it changed while it was read, or a table or set of it went.
fn is_change(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Interrupted) || error.errno() == Some(ENOENT)
}
