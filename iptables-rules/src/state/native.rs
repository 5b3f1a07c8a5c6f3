//! Native tables that are wanted beside those that are there, and the commands that turn one into the other.
//!
//! These tables are ours as a whole: a chain or rule in them that is not wanted goes. Tables of other names are not
//! looked at. Chains that stay keep their hook while their rules are replaced, so that no packet slips through between
//! an old chain and its successor.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::nft::expr::{Expr, Set};
use crate::nft::message::{Hook, InetChain, InetTable, ListedRule, TableFamily, Transaction};
use crate::plan::native::{NativePlan, NativeRule, NativeTable, Statement};
use crate::render::compat::{EncodeError, Reason};
use crate::render::native::encode;
use crate::state::WantedRule;

/// Chains by table, in the order in which they are declared. A table that is not wanted has none.
pub type WantedTables = Vec<(NativeTable, Vec<WantedChain>)>;

/// A wanted chain with its rules in final order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedChain {
    /// Its name.
    pub name: &'static str,
    /// Its rules.
    pub rules: Vec<WantedRule<String>>,
}

/// What `plan` comes to, for all our tables.
///
/// # Errors
/// The first rule that the kernel cannot be given, a jump to a chain without rules included: such a chain is not declared.
pub fn wanted(plan: &NativePlan) -> Result<WantedTables, EncodeError> {
    NativeTable::ALL.into_iter().map(|table| Ok((table, wanted_chains(&plan.chains_of(table))?))).collect()
}

fn wanted_chains(chains: &[(&'static str, Vec<&NativeRule>)]) -> Result<Vec<WantedChain>, EncodeError> {
    let ready = |rule: &&NativeRule| {
        for statement in &rule.statements {
            if let Statement::Jump(target) = statement
                && !chains.iter().any(|(name, _)| name == target)
            {
                return Err(EncodeError { rule: rule.to_string(), reason: Reason::EmptyChain((*target).to_owned()) });
            }
        }
        Ok(WantedRule { rule: rule.to_string(), exprs: encode(rule)? })
    };
    let all = chains.iter();
    all.map(|(name, rules)| Ok(WantedChain { name, rules: rules.iter().map(ready).collect::<Result<_, _>>()? }))
        .collect()
}

/// A table as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HaveTable {
    /// It is in force.
    pub active: bool,
    /// Its chains.
    pub chains: Vec<HaveChain>,
}

/// A chain as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaveChain {
    /// Its name.
    pub name: String,
    /// Where it hooks in.
    pub hook: Option<Hook>,
    /// It lets pass what no rule decides about.
    pub accepts: bool,
    /// Its rules, in order.
    pub rules: Vec<ListedRule>,
}

/// Tables of ours that are there.
pub type Have = BTreeMap<NativeTable, HaveTable>;

impl HaveTable {
    /// Takes a listed table with those of the listed chains and rules that are in it.
    pub fn new(table: &InetTable, chains: &[InetChain], rules: Vec<ListedRule>) -> Self {
        let own = chains.iter().filter(|chain| chain.table == table.name);
        let empty = |chain: &InetChain| HaveChain {
            name: chain.name.clone(),
            hook: chain.hook,
            accepts: chain.accepts,
            rules: Vec::new(),
        };
        let mut chains: Vec<HaveChain> = own.map(empty).collect();
        for rule in rules {
            if let Some(chain) = chains.iter_mut().find(|chain| chain.name == rule.chain) {
                chain.rules.push(rule);
            }
        }
        Self { active: table.active, chains }
    }

    /// Names of the sets that rules look into.
    pub fn sets(&self) -> Vec<String> {
        let exprs = self.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.exprs);
        let named = exprs.filter_map(|expr| match expr {
            Expr::Lookup { set: Set::Named(name), .. } => Some(name.clone()),
            _ => None,
        });
        named.collect()
    }

    /// Puts the values of a set in the place of its name.
    pub fn fill_set(&mut self, name: &str, mut values: Vec<Vec<u8>>) {
        values.sort();
        let rules = self.chains.iter_mut().flat_map(|chain| &mut chain.rules);
        for expr in rules.flat_map(|rule| &mut rule.exprs) {
            if let Expr::Lookup { set, .. } = expr
                && matches!(set, Set::Named(named) if named == name)
            {
                *set = Set::Values(values.clone());
            }
        }
    }
}

/// One place where what is there is not what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeDifference {
    /// A wanted chain is not there.
    Missing(NativeTable, &'static str),
    /// A chain hooks in elsewhere, or drops what no rule decides about.
    Misplaced(NativeTable, &'static str),
    /// A chain holds other rules than wanted, or in another order.
    Differs(NativeTable, &'static str),
    /// A chain is there that is not wanted.
    StaleChain(NativeTable, String),
    /// A table is there that is not wanted.
    StaleTable(NativeTable),
    /// A table is there but switched off.
    Dormant(NativeTable),
}

impl NativeDifference {
    fn table(&self) -> NativeTable {
        match self {
            Self::Missing(table, _)
            | Self::Misplaced(table, _)
            | Self::Differs(table, _)
            | Self::StaleChain(table, _)
            | Self::StaleTable(table)
            | Self::Dormant(table) => *table,
        }
    }
}

impl Display for NativeDifference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let table = self.table().as_str();
        match self {
            Self::Missing(_, chain) => write!(f, "table {table}: chain {chain} is missing"),
            Self::Misplaced(_, chain) => write!(f, "table {table}: chain {chain} has another hook or policy"),
            Self::Differs(_, chain) => write!(f, "table {table}: the rules of chain {chain} differ"),
            Self::StaleChain(_, chain) => write!(f, "table {table}: chain {chain} is not wanted"),
            Self::StaleTable(_) => write!(f, "table {table} is not wanted"),
            Self::Dormant(_) => write!(f, "table {table} is switched off"),
        }
    }
}

/// All differences. An empty list means that there is nothing to do.
pub fn differences(wanted: &WantedTables, have: &Have) -> Vec<NativeDifference> {
    use NativeDifference::{Differs, Dormant, Misplaced, Missing, StaleChain, StaleTable};
    let nothing = HaveTable { active: true, chains: Vec::new() };
    let mut found = Vec::new();
    for (table, chains) in wanted {
        let there = have.get(table);
        if chains.is_empty() {
            found.extend(there.map(|_| StaleTable(*table)));
            continue;
        }
        let there = there.unwrap_or(&nothing);
        if !there.active {
            found.push(Dormant(*table));
        }
        for chain in chains {
            match there.chains.iter().find(|it| it.name == chain.name) {
                None => found.push(Missing(*table, chain.name)),
                Some(it) if !well_placed(*table, it) => found.push(Misplaced(*table, chain.name)),
                Some(it) if same_rules(chain, it) => {}
                Some(_) => found.push(Differs(*table, chain.name)),
            }
        }
        let stale = there.chains.iter().filter(|it| !chains.iter().any(|chain| chain.name == it.name));
        found.extend(stale.map(|it| StaleChain(*table, it.name.clone())));
    }
    found
}

fn well_placed(table: NativeTable, chain: &HaveChain) -> bool {
    chain.hook == table.hook(&chain.name) && chain.accepts
}

fn same_rules(wanted: &WantedChain, have: &HaveChain) -> bool {
    wanted.rules.iter().map(|rule| &rule.exprs).eq(have.rules.iter().map(|rule| &rule.exprs))
}

/// Adds to `transaction` the commands for every table in which something differs. Returns the text of the rule behind
/// each sequence number, for error messages.
pub fn replace(
    transaction: &mut Transaction,
    wanted: &WantedTables,
    have: &Have,
    differences: &[NativeDifference],
) -> BTreeMap<u32, String> {
    let mut rules = BTreeMap::new();
    let differs = |table: &NativeTable| differences.iter().any(|difference| difference.table() == *table);
    for (table, chains) in wanted.iter().filter(|(table, _)| differs(table)) {
        let name = table.as_str();
        let there = have.get(table);
        if chains.is_empty() {
            transaction.delete_table(TableFamily::Inet, name);
            continue;
        }
        // Also wakes a dormant table.
        transaction.add_table(TableFamily::Inet, name);
        let mut kept = Vec::new();
        if let Some(there) = there {
            transaction.flush_table(TableFamily::Inet, name);
            for chain in &there.chains {
                if well_placed(*table, chain) && chains.iter().any(|it| it.name == chain.name) {
                    kept.push(chain.name.as_str());
                } else {
                    transaction.delete_chain(TableFamily::Inet, name, &chain.name);
                }
            }
        }
        for chain in chains.iter().filter(|chain| !kept.contains(&chain.name)) {
            match table.hook(chain.name) {
                Some(hook) => transaction.add_base_chain(TableFamily::Inet, name, chain.name, hook),
                None => transaction.add_chain(TableFamily::Inet, name, chain.name),
            };
        }
        for chain in chains {
            for rule in &chain.rules {
                let sequence = transaction.append_rule(TableFamily::Inet, name, chain.name, &rule.exprs);
                rules.insert(sequence, format!("{name} {}: {}", chain.name, rule.rule));
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostFacts, Mode, Selection, Settings};
    use crate::nft::expr::Verdict;
    use crate::plan::native::{chain, sidecar};

    fn plan_of(settings: &Settings, facts: &HostFacts) -> WantedTables {
        wanted(&sidecar(settings, facts)).unwrap()
    }

    fn with_dns() -> WantedTables {
        let settings = Settings {
            mode: Mode::Tproxy,
            inbound_ports: Selection::All,
            redirect_dns: true,
            capture_all_dns: true,
            ..Settings::default()
        };
        plan_of(&settings, &HostFacts { ipv6: true, ..HostFacts::default() })
    }

    /// The kernel's answer after `wanted` was applied to an empty namespace; sets are listed by name first.
    fn applied(wanted: &WantedTables) -> Have {
        let mut have = Have::new();
        let mut handle = 0;
        for (table, chains) in wanted.iter().filter(|(_, chains)| !chains.is_empty()) {
            let mut sets = Vec::new();
            let mut listed = |rule: &WantedRule<String>| {
                handle += 1;
                let mut exprs = rule.exprs.clone();
                for expr in &mut exprs {
                    if let Expr::Lookup { set, .. } = expr {
                        let name = format!("__set{handle}");
                        if let Set::Values(mut values) = std::mem::replace(set, Set::Named(name.clone())) {
                            values.reverse();
                            sets.push((name, values));
                        }
                    }
                }
                ListedRule { chain: String::new(), handle, marked: false, exprs }
            };
            let chains = chains.iter().map(|chain| HaveChain {
                name: chain.name.to_owned(),
                hook: table.hook(chain.name),
                accepts: true,
                rules: chain.rules.iter().map(&mut listed).collect(),
            });
            let mut there = HaveTable { active: true, chains: chains.collect() };
            assert_eq!(there.sets(), sets.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
            sets.into_iter().for_each(|(name, values)| there.fill_set(&name, values));
            have.insert(*table, there);
        }
        have
    }

    #[test]
    fn what_was_applied_needs_nothing() {
        let wanted = with_dns();
        assert_eq!(wanted.iter().filter(|(_, chains)| chains.is_empty()).count(), 1, "of four tables");
        assert_eq!(differences(&wanted, &applied(&wanted)), []);
    }

    #[test]
    fn a_lost_chain_a_foreign_rule_a_leftover_and_a_table_too_many_are_told() {
        let wanted = plan_of(&Settings::default(), &HostFacts::default());
        let mut have = applied(&with_dns());
        let nat = have.get_mut(&NativeTable::Nat).unwrap();
        *nat = applied(&wanted).remove(&NativeTable::Nat).unwrap();
        nat.active = false;
        nat.chains.retain(|chain| chain.name != chain::REDIRECT);
        nat.chains.push(HaveChain { name: "extra".to_owned(), hook: None, accepts: true, rules: Vec::new() });
        let output = nat.chains.iter_mut().find(|chain| chain.name == chain::HOOK_OUTPUT).unwrap();
        let exprs = vec![Expr::Verdict(Verdict::Accept)];
        output.rules.push(ListedRule { chain: String::new(), handle: 1, marked: false, exprs });
        let told: Vec<String> = differences(&wanted, &have).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "table istio-proxy-nat is switched off",
                "table istio-proxy-nat: the rules of chain output differ",
                "table istio-proxy-nat: chain istio-redirect is missing",
                "table istio-proxy-nat: chain extra is not wanted",
                "table istio-proxy-mangle is not wanted",
                "table istio-proxy-raw is not wanted",
            ]
        );
    }

    #[test]
    fn name_servers_of_a_family_that_is_off_are_refused_with_a_sentence() {
        let settings = Settings { redirect_dns: true, ..Settings::default() };
        let facts = HostFacts { dns_servers_v6: vec!["fd00::a".to_owned()], ..HostFacts::default() };
        let error = wanted(&sidecar(&settings, &facts)).unwrap_err();
        assert_eq!(error.reason, Reason::EmptyChain(chain::OUTPUT_DNS.to_owned()));
        assert!(error.to_string().contains("IPv6"), "{error}");
        assert!(wanted(&sidecar(&settings, &HostFacts { ipv6: true, ..facts })).is_ok());
    }
}
