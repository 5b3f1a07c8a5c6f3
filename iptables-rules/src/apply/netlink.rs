//! One transaction over netlink, in the form that iptables-nft understands.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use sys::netlink::{NetlinkError, Protocol, Socket};
use sys::userns::UserNamespace;

use crate::apply::{ApplyError, Differences};
use crate::model::Family;
use crate::nft::message::{
    Chain, Transaction, get_generation, list_chains, list_rules, list_tables, read_chain, read_generation,
    read_inet_chain, read_marked_table, read_rule,
};
use crate::plan::Plan;
use crate::plan::native::NativeTable;
use crate::render::compat::OwnerForm;
use crate::state::{Have, WantedChains, differences, replace, wanted};

/// How often the rules may change under us before we give up.
const ATTEMPTS: usize = 10;

/// The network namespace of the calling thread.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";
/// Family of tables that see IPv4 and IPv6.
const NFPROTO_INET: u8 = 1;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;
const EPROTONOSUPPORT: i32 = 93;
/// What the kernel says when the generation is not the one the transaction was made for.
const ERESTART: i32 = 85;

/// What may be done to rules of ours that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Rules that differ are replaced; without it they are an error.
    pub replace: bool,
    /// Rules are written even when they are there.
    pub rewrite: bool,
}

impl Policy {
    /// Differences are replaced, and nothing else is written.
    pub const RECONCILE: Self = Self { replace: true, rewrite: false };
}

/// What was found before anything was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What differed from the plan and was changed.
    pub differences: Differences,
    /// Tables of our native form are there, too.
    pub native: bool,
}

/// Brings the calling thread's namespace to `plan`.
pub fn apply(plan: &Plan, policy: Policy) -> Result<Found, ApplyError> {
    let wanted = wanted_of(plan)?;
    retrying(|| attempt(&wanted, policy))
}

/// Looks at the calling thread's namespace and changes nothing. Returns what differs from `plan`.
pub fn check(plan: &Plan) -> Result<Differences, ApplyError> {
    let wanted = wanted_of(plan)?;
    let look = || {
        let socket = Socket::open(Protocol::Netfilter).map_err(|source| kernel(source.into()))?;
        Ok(observe(&socket)?.map(|(have, _)| compare(&wanted, &have)))
    };
    retrying(look)
}

fn wanted_of(plan: &Plan) -> Result<Vec<(Family, WantedChains<'_>)>, ApplyError> {
    let owners = owner_form();
    let of = |family| Ok((family, wanted(plan.rules(family), family, owners)?));
    Family::BOTH.into_iter().map(of).collect()
}

/// A pod with a user namespace of its own has a network namespace that belongs to it.
fn owner_form() -> OwnerForm {
    match UserNamespace::foreign_owner(Path::new(OWN_NETNS)) {
        Some(_) => OwnerForm::Metadata,
        None => OwnerForm::Extension,
    }
}

/// Tries again while the rules change under us.
pub(super) fn retrying<T>(mut attempt: impl FnMut() -> Result<Option<T>, ApplyError>) -> Result<T, ApplyError> {
    for _ in 0..ATTEMPTS {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
    }
    Err(ApplyError::Busy)
}

/// `None` when the rules changed while we looked.
fn attempt(wanted: &[(Family, WantedChains<'_>)], policy: Policy) -> Result<Option<Found>, ApplyError> {
    let socket = Socket::open(Protocol::Netfilter).map_err(|source| kernel(source.into()))?;
    let generation = generation(&socket)?;
    let Some((have, native)) = observe(&socket)? else { return Ok(None) };
    let found = compare(wanted, &have);
    let nothing = Have::default();
    let mut transaction = Transaction::begin(generation);
    let mut rules = Vec::new();
    let mut done = Vec::new();
    for (family, chains) in wanted {
        let have = have.get(family).unwrap_or(&nothing);
        let differs = found.iter().any(|(of, _)| of == family);
        let rewrite = policy.rewrite && !chains.is_empty();
        if !differs && !rewrite {
            continue;
        }
        if differs && !policy.replace && have.has_ours() {
            if chains.is_empty() {
                // Leftovers in a family that is off: nobody asked us to touch them.
                continue;
            }
            return Err(ApplyError::RulesDiffer(found));
        }
        rules.append(&mut replace(&mut transaction, *family, chains, have));
        done.extend(found.iter().filter(|(of, _)| of == family).cloned());
    }
    if rules.is_empty() && done.is_empty() {
        return Ok(Some(Found { differences: done, native }));
    }
    commit(&socket, transaction, &rules).map(|taken| taken.then_some(Found { differences: done, native }))
}

fn compare(wanted: &[(Family, WantedChains<'_>)], have: &BTreeMap<Family, Have>) -> Differences {
    let nothing = Have::default();
    let of = |(family, chains): &(Family, WantedChains<'_>)| -> Differences {
        let have = have.get(family).unwrap_or(&nothing);
        differences(chains, have).into_iter().map(|difference| (*family, difference)).collect()
    };
    wanted.iter().flat_map(of).collect()
}

/// The generation of the ruleset, to be asked for before looking at it.
pub(super) fn generation(socket: &Socket) -> Result<u32, ApplyError> {
    Ok(socket.query(get_generation().bytes(), read_generation).map_err(kernel)?.unwrap_or(0))
}

/// Sends a transaction. False when the rules changed since its generation, so that nothing was done. `rules` tells the
/// rule behind each sequence number.
pub(super) fn commit<R: Display>(
    socket: &Socket,
    transaction: Transaction,
    rules: &[(u32, R)],
) -> Result<bool, ApplyError> {
    let (bytes, last) = transaction.finish();
    match socket.transact(&bytes, last) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(ERESTART) => Ok(false),
        Err(source) => Err(refused(source, rules)),
    }
}

/// What the namespace holds in the four tables, and whether our native tables are there.
type Observed = (BTreeMap<Family, Have>, bool);

/// All chains of the four tables; rules only of tables that have chains, so that an empty namespace costs one question.
/// `None` when they changed meanwhile.
fn observe(socket: &Socket) -> Result<Option<Observed>, ApplyError> {
    match list(socket) {
        Ok(have) => Ok(Some(have)),
        Err(NetlinkError::Interrupted) => Ok(None),
        Err(source) => Err(kernel(source)),
    }
}

fn list(socket: &Socket) -> Result<Observed, NetlinkError> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut native = false;
    socket.dump(list_chains().bytes(), |kind, payload| match read_chain(kind, payload) {
        Some(chain) => chains.push(chain),
        None => native |= is_native_chain(kind, payload),
    })?;
    let mut made_by_us = Vec::new();
    if !chains.is_empty() {
        socket.dump(list_tables().bytes(), |kind, payload| made_by_us.extend(read_marked_table(kind, payload)))?;
    }
    let mut all = BTreeMap::new();
    for family in Family::BOTH {
        let mut have = Have::new(chains.iter().filter(|chain| chain.family == family));
        for table in have.tables() {
            let mut rules = Vec::new();
            socket.dump(list_rules(family, table).bytes(), |kind, payload| rules.extend(read_rule(kind, payload)))?;
            have.add_rules(table, rules);
        }
        have.made_by_us = made_by_us.iter().filter(|(of, _)| *of == family).map(|(_, table)| *table).collect();
        all.insert(family, have);
    }
    Ok((all, native))
}

/// Whether an answer to [`list_chains`] is about a chain of our native form.
fn is_native_chain(kind: u16, payload: &[u8]) -> bool {
    let ours = |table: &str| NativeTable::ALL.iter().any(|native| native.as_str() == table);
    payload.first() == Some(&NFPROTO_INET) && read_inet_chain(kind, payload).is_some_and(|chain| ours(&chain.table))
}

pub(super) fn kernel(source: NetlinkError) -> ApplyError {
    let hint = hint(&source);
    ApplyError::Kernel { source, hint }
}

fn refused<R: Display>(source: NetlinkError, rules: &[(u32, R)]) -> ApplyError {
    let what = match &source {
        NetlinkError::Refused { sequence, .. } => {
            rules.iter().find(|(of, _)| of == sequence).map(|(_, rule)| format!("rule `{rule}`"))
        }
        NetlinkError::Socket(_) | NetlinkError::Interrupted => None,
    };
    let hint = hint(&source);
    ApplyError::Refused { what: what.unwrap_or_else(|| "a chain or table of ours".to_owned()), source, hint }
}

fn hint(error: &NetlinkError) -> &'static str {
    match error.errno() {
        Some(EPERM) => ". The capability NET_ADMIN in this network namespace is missing",
        Some(ENOENT) => {
            ". A part of the kernel may be missing: nft_compat and the xt_* modules that the rule needs, or nft_chain_nat, nft_ct, nft_redir, nft_tproxy for native rules"
        }
        Some(EOPNOTSUPP | EPROTONOSUPPORT) => ". The kernel has no nf_tables, or not the parts that these rules need",
        _ => "",
    }
}
