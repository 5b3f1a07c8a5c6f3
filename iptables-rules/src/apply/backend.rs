//! Which way rules are put in place: nf_tables over netlink, or the host's legacy iptables programs.
//!
//! Decided once per run by reading the kernel and the namespace; no program is started and nothing is left behind. The
//! choice comes with its reason, for the log. The native form does not ask: it is always nf_tables.

use sys::netlink::{NetlinkError, Protocol, Socket};
use sys::xtables::{self, LegacyTable};

use crate::apply::Flavour;
use crate::model::chain;
use crate::nft::message::{get_generation, list_chains, read_chain, read_generation};

const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 93;
const EOPNOTSUPP: i32 = 95;
const EAFNOSUPPORT: i32 = 97;

/// Which programs may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// `iptables-legacy` and nothing else.
    Legacy,
    /// Also plain `iptables`, if that is a legacy one.
    LegacyOrPlain,
}

/// A way to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Netlink, no program.
    NfTables,
    /// The host's programs.
    Legacy(Programs),
}

/// The backend, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which one.
    pub backend: Backend,
    /// A sentence for the log, without a full stop.
    pub reason: String,
    /// Rules of ours are in the other backend, too. They should go, or traffic meets both.
    pub also_in_other: bool,
}

/// What the choice depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The kernel has no nf_tables.
    pub no_nf_tables: bool,
    /// Legacy tables of the namespace, IPv4.
    pub legacy_v4: Vec<LegacyTable>,
    /// Legacy tables of the namespace, IPv6.
    pub legacy_v6: Vec<LegacyTable>,
    /// nf_tables holds chains of ours.
    pub ours_in_nf_tables: bool,
}

impl Found {
    /// Looks at the kernel and at the calling thread's namespace. What may not be read counts as not there: whoever
    /// may not read may not write either and is told so then.
    pub fn look(forced: Option<Flavour>) -> Self {
        let legacy_v4 = xtables::tables(xtables::Family::V4).unwrap_or_default();
        let legacy_v6 = xtables::tables(xtables::Family::V6).unwrap_or_default();
        let mut found = Self { legacy_v4, legacy_v6, ..Self::default() };
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => {
                found.no_nf_tables = socket.query(get_generation().bytes(), read_generation).is_err_and(is_absent);
                // Matters only when it may be legacy.
                let maybe_legacy = forced == Some(Flavour::Legacy) || found.legacy().next().is_some();
                if !found.no_nf_tables && maybe_legacy {
                    found.ours_in_nf_tables = holds_ours(&socket);
                }
            }
            Err(error) => found.no_nf_tables = is_absent(error.into()),
        }
        found
    }

    /// Tables that someone put something into; that a table exists says nothing, because looking at it makes it.
    fn legacy(&self) -> impl Iterator<Item = (&'static str, &LegacyTable)> {
        let v4 = self.legacy_v4.iter().map(|table| ("IPv4", table));
        let v6 = self.legacy_v6.iter().map(|table| ("IPv6", table));
        v4.chain(v6).filter(|(_, table)| table.rules > 0 || !table.chains.is_empty())
    }

    fn ours_in_legacy(&self) -> bool {
        self.legacy().any(|(_, table)| table.chains.iter().any(|name| name.starts_with(chain::PREFIX)))
    }
}

/// Decides for the calling thread's namespace.
pub fn decide(forced: Option<Flavour>) -> Choice {
    choose(forced, &Found::look(forced))
}

/// Decides from what was found.
pub fn choose(forced: Option<Flavour>, found: &Found) -> Choice {
    let ours_in_legacy = found.ours_in_legacy();
    let nf_tables = |reason: String| Choice { backend: Backend::NfTables, reason, also_in_other: ours_in_legacy };
    let legacy = |programs, reason: String| Choice {
        backend: Backend::Legacy(programs),
        reason,
        also_in_other: found.ours_in_nf_tables,
    };
    match forced {
        Some(Flavour::Legacy) => return legacy(Programs::Legacy, "legacy, because it was asked for".to_owned()),
        Some(Flavour::Nft) => return nf_tables("nf_tables, because it was asked for".to_owned()),
        None => {}
    }
    if found.no_nf_tables {
        return legacy(Programs::LegacyOrPlain, "legacy, because the kernel has no nf_tables".to_owned());
    }
    // Chains without a single rule are no reason: tools leave them behind.
    let Some((family, table)) = found.legacy().find(|(_, table)| table.rules > 0) else {
        return nf_tables("nf_tables, because the namespace holds no legacy rules".to_owned());
    };
    let place = format!("table {} ({family})", table.name);
    if found.ours_in_nf_tables && !ours_in_legacy {
        let reason = format!("nf_tables, because our rules are there already, although {place} holds legacy rules");
        return nf_tables(reason);
    }
    legacy(Programs::LegacyOrPlain, format!("legacy, because the namespace holds legacy rules in {place}"))
}

fn is_absent(error: NetlinkError) -> bool {
    matches!(error.errno(), Some(EINVAL | EPROTONOSUPPORT | EOPNOTSUPP | EAFNOSUPPORT))
}

fn holds_ours(socket: &Socket) -> bool {
    let mut ours = false;
    let looked = socket.dump(list_chains().bytes(), |kind, payload| {
        ours |= read_chain(kind, payload).is_some_and(|it| it.name.starts_with(chain::PREFIX));
    });
    // An interrupted list still shows that they are there.
    match looked {
        Ok(()) | Err(NetlinkError::Interrupted) => ours,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, rules: usize, chains: &[&str]) -> LegacyTable {
        LegacyTable { name: name.to_owned(), rules, chains: chains.iter().map(|it| (*it).to_owned()).collect() }
    }

    fn legacy_v4(tables: Vec<LegacyTable>) -> Found {
        Found { legacy_v4: tables, ..Found::default() }
    }

    #[test]
    fn an_empty_namespace_gets_nf_tables() {
        let choice = choose(None, &Found::default());
        assert_eq!((choice.backend, choice.also_in_other), (Backend::NfTables, false));
    }

    #[test]
    fn tables_that_only_exist_and_chains_without_rules_do_not_make_it_legacy() {
        let found = legacy_v4(vec![table("nat", 0, &[]), table("filter", 0, &["KUBE-FIREWALL"])]);
        assert_eq!(choose(None, &found).backend, Backend::NfTables);
    }

    #[test]
    fn one_legacy_rule_makes_it_legacy_and_the_reason_names_its_table() {
        let choice = choose(None, &legacy_v4(vec![table("raw", 0, &[]), table("nat", 1, &[])]));
        assert_eq!(choice.backend, Backend::Legacy(Programs::LegacyOrPlain));
        assert_eq!(choice.reason, "legacy, because the namespace holds legacy rules in table nat (IPv4)");
        let v6 = Found { legacy_v6: vec![table("filter", 2, &[])], ..Found::default() };
        assert!(choose(None, &v6).reason.ends_with("in table filter (IPv6)"));
    }

    #[test]
    fn our_rules_stay_in_nf_tables_when_somebody_adds_a_legacy_rule_later() {
        let found = Found { ours_in_nf_tables: true, ..legacy_v4(vec![table("filter", 1, &[])]) };
        assert_eq!(choose(None, &found).backend, Backend::NfTables);
    }

    #[test]
    fn rules_of_ours_on_both_sides_are_told() {
        let found = Found { ours_in_nf_tables: true, ..legacy_v4(vec![table("nat", 9, &["ISTIO_OUTPUT"])]) };
        let choice = choose(None, &found);
        assert_eq!((choice.backend, choice.also_in_other), (Backend::Legacy(Programs::LegacyOrPlain), true));
        assert!(choose(Some(Flavour::Nft), &found).also_in_other);
    }

    #[test]
    fn what_is_asked_for_is_used_and_a_kernel_without_nf_tables_leaves_no_choice() {
        let found = legacy_v4(vec![table("nat", 1, &[])]);
        assert_eq!(choose(Some(Flavour::Nft), &found).backend, Backend::NfTables);
        assert_eq!(choose(Some(Flavour::Legacy), &Found::default()).backend, Backend::Legacy(Programs::Legacy));
        let absent = Found { no_nf_tables: true, ..Found::default() };
        assert_eq!(choose(None, &absent).backend, Backend::Legacy(Programs::LegacyOrPlain));
    }
}
