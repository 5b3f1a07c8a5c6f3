//! One transaction over netlink, in the form that iptables-nft understands.

use std::collections::BTreeMap;

use sys::netlink::{NetlinkError, Protocol, Socket};

use crate::apply::ApplyError;
use crate::model::Family;
use crate::nft::message::{
    Chain, Transaction, get_generation, list_chains, list_rules, read_chain, read_generation, read_rule,
};
use crate::plan::Plan;
use crate::state::{Difference, Have, WantedChains, differences, replace, wanted};

/// How often the rules may change under us before we give up.
const ATTEMPTS: usize = 10;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;
const EPROTONOSUPPORT: i32 = 93;
/// What the kernel says when the generation is not the one the transaction was made for.
const ERESTART: i32 = 85;

/// Brings the calling thread's namespace to `plan`. Returns what differed.
pub fn apply(plan: &Plan) -> Result<Vec<(Family, Difference)>, ApplyError> {
    let wanted = Family::BOTH.map(|family| wanted(plan.rules(family), family).map(|chains| (family, chains)));
    let wanted: Vec<(Family, WantedChains)> = wanted.into_iter().collect::<Result<_, _>>()?;
    for _ in 0..ATTEMPTS {
        if let Some(differences) = attempt(&wanted)? {
            return Ok(differences);
        }
    }
    Err(ApplyError::Busy)
}

/// `None` when the rules changed while we looked.
fn attempt(wanted: &[(Family, WantedChains)]) -> Result<Option<Vec<(Family, Difference)>>, ApplyError> {
    let socket = Socket::open(Protocol::Netfilter).map_err(|source| kernel(source.into()))?;
    let generation = socket.query(get_generation().bytes(), read_generation).map_err(kernel)?.unwrap_or(0);
    let have = match observe(&socket) {
        Ok(have) => have,
        Err(NetlinkError::Interrupted) => return Ok(None),
        Err(source) => return Err(kernel(source)),
    };
    let nothing = Have::default();
    let mut transaction = Transaction::begin(generation);
    let mut rules = BTreeMap::new();
    let mut found = Vec::new();
    for (family, chains) in wanted {
        let have = have.get(family).unwrap_or(&nothing);
        let different = differences(chains, have);
        if !different.is_empty() {
            rules.append(&mut replace(&mut transaction, *family, chains, have));
            found.extend(different.into_iter().map(|difference| (*family, difference)));
        }
    }
    if found.is_empty() {
        return Ok(Some(found));
    }
    let (bytes, last) = transaction.finish();
    match socket.transact(&bytes, last) {
        Ok(()) => Ok(Some(found)),
        Err(error) if error.errno() == Some(ERESTART) => Ok(None),
        Err(source) => Err(refused(source, &rules)),
    }
}

/// All chains of the four tables; rules only of tables that have chains, so that an empty namespace costs one question.
fn observe(socket: &Socket) -> Result<BTreeMap<Family, Have>, NetlinkError> {
    let mut chains: Vec<Chain> = Vec::new();
    socket.dump(list_chains().bytes(), |kind, payload| chains.extend(read_chain(kind, payload)))?;
    let mut all = BTreeMap::new();
    for family in Family::BOTH {
        let mut have = Have::new(chains.iter().filter(|chain| chain.family == family));
        for table in have.tables() {
            let mut rules = Vec::new();
            socket.dump(list_rules(family, table).bytes(), |kind, payload| rules.extend(read_rule(kind, payload)))?;
            have.add_rules(table, rules);
        }
        all.insert(family, have);
    }
    Ok(all)
}

fn kernel(source: NetlinkError) -> ApplyError {
    let hint = hint(&source);
    ApplyError::Kernel { source, hint }
}

fn refused(source: NetlinkError, rules: &BTreeMap<u32, String>) -> ApplyError {
    let what = match &source {
        NetlinkError::Refused { sequence, .. } => rules.get(sequence).map(|rule| format!("rule `{rule}`")),
        NetlinkError::Socket(_) | NetlinkError::Interrupted => None,
    };
    let hint = hint(&source);
    ApplyError::Refused { what: what.unwrap_or_else(|| "a chain or table of ours".to_owned()), source, hint }
}

fn hint(error: &NetlinkError) -> &'static str {
    match error.errno() {
        Some(EPERM) => ". The capability NET_ADMIN in this network namespace is missing",
        Some(ENOENT) => ". An extension may be missing: the kernel needs nft_compat and the xt_* modules of the rule",
        Some(EOPNOTSUPP | EPROTONOSUPPORT) => ". The kernel has no nf_tables, or not the parts that these rules need",
        _ => "",
    }
}
