//! Rules that are wanted beside rules that are there, and what it takes to turn one into the other.
//!
//! Ours are: every chain whose name starts with `ISTIO_`; in a built-in chain, every rule that carries our mark, leads to
//! such a chain, or equals a rule that we want there. The last two find rules that another program made for Istio.
//! Everything else belongs to others: it is neither touched nor moved.

pub mod native;
#[cfg(feature = "legacy")]
pub mod save_text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use crate::model::{Family, Position, Rule, Table, chain, is_builtin};
use crate::nft::expr::Expr;
use crate::nft::message::{Chain, ListedRule, Transaction};
use crate::render::compat::{EncodeError, OwnerForm, encode, hook};
use crate::render::describe::describe;

/// A wanted rule, ready for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRule<R> {
    /// The rule, or its text; for messages.
    pub rule: R,
    /// What it does.
    pub exprs: Vec<Expr>,
}

/// What we want in one chain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WantedChain<'a> {
    /// Rules at the head of a built-in chain, before those of others.
    pub head: Vec<WantedRule<&'a Rule>>,
    /// Rules at the end; in a chain of ours, all of them.
    pub tail: Vec<WantedRule<&'a Rule>>,
}

impl<'a> WantedChain<'a> {
    fn rules(&self) -> impl Iterator<Item = &WantedRule<&'a Rule>> {
        self.head.iter().chain(&self.tail)
    }
}

/// Chains of one family by table and name.
pub type WantedChains<'a> = BTreeMap<(Table, &'static str), WantedChain<'a>>;

/// The chains that `rules` come to once all positional inserts are done.
///
/// # Errors
/// The first rule that the kernel cannot be given.
pub fn wanted(rules: &[Rule], family: Family, owners: OwnerForm) -> Result<WantedChains<'_>, EncodeError> {
    let mut chains = WantedChains::new();
    for rule in rules {
        let ready = WantedRule { rule, exprs: encode(rule, family, owners)? };
        let wanted = chains.entry((rule.table, rule.chain)).or_default();
        match rule.position {
            Position::Append => wanted.tail.push(ready),
            Position::Insert(place) => {
                let list = if is_builtin(rule.chain) { &mut wanted.head } else { &mut wanted.tail };
                list.insert(place.saturating_sub(1).min(list.len()), ready);
            }
        }
        if let crate::model::Target::Jump(target) = rule.target {
            chains.entry((rule.table, target)).or_default();
        }
    }
    Ok(chains)
}

/// What the kernel has, of one family, in the tables that matter.
#[derive(Debug, Clone, Default)]
pub struct Have {
    /// Rules by table and chain, in order. A chain without rules has an empty list.
    pub chains: BTreeMap<(Table, String), Vec<ListedRule>>,
    /// Tables that would not be there without us.
    pub made_by_us: BTreeSet<Table>,
}

impl Have {
    /// Takes the chains first; rules are added per table by [`Have::add_rules`].
    pub fn new<'a>(chains: impl Iterator<Item = &'a Chain>) -> Self {
        let chains = chains.map(|chain| ((chain.table, chain.name.clone()), Vec::new())).collect();
        Self { chains, made_by_us: BTreeSet::new() }
    }

    /// Tables that have at least one chain.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.chains.keys().map(|(table, _)| *table).collect();
        tables.dedup();
        tables
    }

    /// Puts the rules of a table into their chains.
    pub fn add_rules(&mut self, table: Table, rules: Vec<ListedRule>) {
        for rule in rules {
            self.chains.entry((table, rule.chain.clone())).or_default().push(rule);
        }
    }

    /// Tables that we made and that hold nothing but what `wanted` does not want any more.
    fn left_over<'a>(&'a self, wanted: &'a WantedChains<'_>) -> impl Iterator<Item = Table> + 'a {
        let of_others = |table: Table, name: &str, rules: &[ListedRule]| match hook(table, name) {
            Some(_) => self.ours(table, name, None).len() < rules.len(),
            None => !name.starts_with(chain::PREFIX),
        };
        self.made_by_us.iter().copied().filter(move |table| {
            let mut chains = self.chains.iter().filter(|((of, _), _)| of == table);
            !wanted.keys().any(|(of, _)| of == table)
                && !chains.any(|((_, name), rules)| of_others(*table, name, rules))
        })
    }

    fn rules(&self, table: Table, chain: &str) -> Option<&[ListedRule]> {
        self.chains.get(&(table, chain.to_owned())).map(Vec::as_slice)
    }

    /// The rules in a chain that are ours.
    fn ours<'a>(&'a self, table: Table, chain: &str, wanted: Option<&WantedChain<'_>>) -> Vec<&'a ListedRule> {
        let ours = |rule: &&ListedRule| {
            !is_builtin(chain)
                || rule.marked
                || leads_to_us(&rule.exprs)
                || wanted.is_some_and(|wanted| wanted.rules().any(|want| want.exprs == rule.exprs))
        };
        self.rules(table, chain).unwrap_or_default().iter().filter(ours).collect()
    }

    /// Whether anything of ours is there, as far as that shows without a wish.
    pub fn has_ours(&self) -> bool {
        self.chains.iter().any(|((_, name), rules)| {
            name.starts_with(chain::PREFIX) || rules.iter().any(|rule| rule.marked || leads_to_us(&rule.exprs))
        })
    }

    /// Chains of ours that nobody wants any more.
    fn stale(&self, wanted: &WantedChains<'_>) -> Vec<(Table, &str)> {
        let is_stale = |(table, name): &&(Table, String)| {
            name.starts_with(chain::PREFIX) && !wanted.keys().any(|(t, n)| t == table && n == name)
        };
        self.chains.keys().filter(is_stale).map(|(table, name)| (*table, name.as_str())).collect()
    }
}

/// One place where what is there is not what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A wanted chain is not there.
    MissingChain {
        /// Its table.
        table: Table,
        /// Its name.
        chain: String,
    },
    /// A wanted rule is not there.
    MissingRule {
        /// Its table.
        table: Table,
        /// Its chain.
        chain: String,
        /// Its text.
        rule: String,
    },
    /// A rule is there that nobody wants: somebody's rule in a chain of ours, or a rule of ours from another
    /// configuration.
    UnwantedRule {
        /// Its table.
        table: Table,
        /// Its chain.
        chain: String,
        /// What it does.
        rule: String,
    },
    /// All wanted rules of a chain are there, but in another order.
    Order {
        /// Its table.
        table: Table,
        /// Its name.
        chain: String,
    },
    /// A chain of ours is there and not wanted.
    UnwantedChain {
        /// Its table.
        table: Table,
        /// Its name.
        chain: String,
    },
    /// An address or route that the rules rely on is not there.
    MissingRouting {
        /// Its name in a sentence.
        what: &'static str,
    },
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingChain { table, chain } => write!(f, "chain {chain} of table {} is missing", table.as_str()),
            Self::MissingRule { table, chain, rule } => {
                write!(f, "in chain {chain} of table {} the rule `{rule}` is missing", table.as_str())
            }
            Self::UnwantedRule { table, chain, rule } => {
                write!(f, "in chain {chain} of table {} there is a rule that is not wanted: {rule}", table.as_str())
            }
            Self::Order { table, chain } => {
                write!(f, "the rules of chain {chain} of table {} are in another order", table.as_str())
            }
            Self::UnwantedChain { table, chain } => {
                write!(f, "chain {chain} of table {} is there but not wanted", table.as_str())
            }
            Self::MissingRouting { what } => write!(f, "{what} is missing"),
        }
    }
}

/// All differences. An empty list means that there is nothing to do.
pub fn differences(wanted: &WantedChains<'_>, have: &Have) -> Vec<Difference> {
    let mut found = Vec::new();
    for ((table, name), chain) in wanted {
        if have.rules(*table, name).is_none() {
            found.push(Difference::MissingChain { table: *table, chain: (*name).to_owned() });
        } else {
            compare(*table, name, chain, &have.ours(*table, name, Some(chain)), &mut found);
        }
    }
    // A rule of ours in a built-in chain where we want nothing.
    for (table, name) in have.chains.keys().filter(|(_, name)| is_builtin(name)) {
        if !wanted.keys().any(|(t, n)| t == table && n == name) {
            compare(*table, name, &WantedChain::default(), &have.ours(*table, name, None), &mut found);
        }
    }
    let unwanted = have.stale(wanted).into_iter();
    found.extend(unwanted.map(|(table, name)| Difference::UnwantedChain { table, chain: name.to_owned() }));
    found
}

/// Compares the rules of one chain.
fn compare(table: Table, name: &str, wanted: &WantedChain<'_>, have: &[&ListedRule], found: &mut Vec<Difference>) {
    if wanted.rules().map(|rule| &rule.exprs).eq(have.iter().map(|rule| &rule.exprs)) {
        return;
    }
    let before = found.len();
    let chain = || name.to_owned();
    let mut unmatched: Vec<&&ListedRule> = have.iter().collect();
    for want in wanted.rules() {
        match unmatched.iter().position(|rule| rule.exprs == want.exprs) {
            Some(place) => {
                unmatched.remove(place);
            }
            None => found.push(Difference::MissingRule { table, chain: chain(), rule: want.rule.to_string() }),
        }
    }
    let unwanted = unmatched.into_iter();
    found.extend(unwanted.map(|rule| Difference::UnwantedRule { table, chain: chain(), rule: describe(&rule.exprs) }));
    if found.len() == before {
        found.push(Difference::Order { table, chain: chain() });
    }
}

/// Adds to `transaction` the commands that turn what is there into what is wanted. Returns the rule behind each sequence
/// number, for error messages.
pub fn replace<'a>(
    transaction: &mut Transaction,
    family: Family,
    wanted: &WantedChains<'a>,
    have: &Have,
) -> Vec<(u32, &'a Rule)> {
    let mut rules = Vec::new();
    // Rules of ours leave the built-in chains first, so that no chain is in use when it goes.
    for (table, name) in have.chains.keys().filter(|(_, name)| is_builtin(name)) {
        let chain = wanted.iter().find_map(|((t, n), chain)| (t == table && n == name).then_some(chain));
        for rule in have.ours(*table, name, chain) {
            transaction.delete_rule(family, *table, name, rule.handle);
        }
    }
    let stale = have.stale(wanted);
    for (table, name) in &stale {
        transaction.flush_chain(family, *table, name);
    }
    for (table, name) in wanted.keys() {
        let there = have.rules(*table, name).is_some();
        match hook(*table, name) {
            _ if there && is_builtin(name) => {}
            _ if there => {
                transaction.flush_chain(family, *table, name);
            }
            Some(hook) => {
                transaction.add_table(family, *table);
                transaction.add_base_chain(family, *table, name, hook);
            }
            None => {
                transaction.add_table(family, *table);
                transaction.add_chain(family, *table, name);
            }
        }
    }
    for ((table, name), chain) in wanted {
        for rule in chain.head.iter().rev() {
            rules.push((transaction.prepend_rule(family, *table, name, &rule.exprs), rule.rule));
        }
        for rule in &chain.tail {
            rules.push((transaction.append_rule(family, *table, name, &rule.exprs), rule.rule));
        }
    }
    for (table, name) in stale {
        transaction.delete_chain(family, table, name);
    }
    for table in have.left_over(wanted) {
        transaction.delete_table(family, table);
    }
    rules
}

/// Whether a rule leads to a chain of ours.
fn leads_to_us(exprs: &[Expr]) -> bool {
    exprs.iter().any(|expr| match expr {
        Expr::Verdict(verdict) => verdict.chain().is_some_and(|name| name.starts_with(chain::PREFIX)),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostFacts, Selection, Settings};
    use crate::plan::sidecar;

    /// The kernel's answer after `wanted` was applied to an empty namespace.
    fn applied(wanted: &WantedChains<'_>) -> Have {
        let mut have = Have::default();
        let mut handle = 0;
        for ((table, name), chain) in wanted {
            let rules = chain.rules().map(|rule| {
                handle += 1;
                ListedRule { chain: (*name).to_owned(), handle, marked: true, exprs: rule.exprs.clone() }
            });
            have.chains.insert((*table, (*name).to_owned()), rules.collect());
        }
        have
    }

    fn default_set() -> WantedChains<'static> {
        let settings = Settings { inbound_ports: Selection::All, ..Settings::default() };
        // Leaked, so that the tests need not carry the plan about.
        wanted(sidecar(&settings, &HostFacts::default()).v4.leak(), Family::V4, OwnerForm::Extension).unwrap()
    }

    #[test]
    fn what_was_applied_needs_nothing() {
        assert_eq!(differences(&default_set(), &applied(&default_set())), []);
    }

    #[test]
    fn rules_of_others_are_no_difference() {
        let mut have = applied(&default_set());
        let foreign = ListedRule { chain: "OUTPUT".to_owned(), handle: 99, marked: false, exprs: vec![Expr::Counter] };
        have.chains.get_mut(&(Table::Nat, "OUTPUT".to_owned())).unwrap().insert(0, foreign);
        have.chains.insert((Table::Filter, "INPUT".to_owned()), Vec::new());
        have.chains.insert((Table::Nat, "KUBE-SERVICES".to_owned()), Vec::new());
        assert_eq!(differences(&default_set(), &have), []);
    }

    fn words(wanted: &WantedChains<'_>, have: &Have) -> Vec<String> {
        differences(wanted, have).iter().map(Difference::to_string).collect()
    }

    #[test]
    fn a_flushed_chain_a_lost_jump_and_a_leftover_are_told() {
        let name = |name: &str| name.to_owned();
        let mut have = applied(&default_set());
        have.chains.get_mut(&(Table::Nat, name("ISTIO_INBOUND"))).unwrap().truncate(1);
        have.chains.get_mut(&(Table::Nat, name("OUTPUT"))).unwrap().clear();
        have.chains.remove(&(Table::Nat, name("ISTIO_REDIRECT")));
        have.chains.insert((Table::Mangle, name("ISTIO_DIVERT")), Vec::new());
        assert_eq!(
            words(&default_set(), &have),
            [
                "in chain ISTIO_INBOUND of table nat the rule `-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT` is missing",
                "chain ISTIO_REDIRECT of table nat is missing",
                "in chain OUTPUT of table nat the rule `-A OUTPUT -j ISTIO_OUTPUT` is missing",
                "chain ISTIO_DIVERT of table mangle is there but not wanted",
            ]
        );
    }

    #[test]
    fn a_second_jump_and_a_swapped_pair_are_told() {
        let mut have = applied(&default_set());
        let jumps = have.chains.get_mut(&(Table::Nat, "OUTPUT".to_owned())).unwrap();
        let again = ListedRule { handle: 77, ..jumps[0].clone() };
        jumps.push(again);
        have.chains.get_mut(&(Table::Nat, "ISTIO_INBOUND".to_owned())).unwrap().swap(0, 1);
        assert_eq!(
            words(&default_set(), &have),
            [
                "the rules of chain ISTIO_INBOUND of table nat are in another order",
                "in chain OUTPUT of table nat there is a rule that is not wanted: go to ISTIO_OUTPUT",
            ]
        );
    }

    #[test]
    fn a_rule_of_somebody_in_a_chain_of_ours_is_told() {
        let mut have = applied(&default_set());
        let exprs = vec![Expr::Foreign("quota".to_owned()), Expr::Counter];
        let foreign = ListedRule { chain: "ISTIO_OUTPUT".to_owned(), handle: 99, marked: false, exprs };
        have.chains.get_mut(&(Table::Nat, "ISTIO_OUTPUT".to_owned())).unwrap().push(foreign);
        let [only] = words(&default_set(), &have).try_into().unwrap();
        assert!(only.contains("ISTIO_OUTPUT") && only.contains("quota"), "{only}");
    }

    #[test]
    fn the_last_virtual_interface_comes_first() {
        let settings = Settings {
            virtual_interfaces: vec!["tap0".to_owned(), "tap1".to_owned()],
            outbound_cidrs: Selection::All,
            ..Settings::default()
        };
        let plan = sidecar(&settings, &HostFacts::default());
        let chains = wanted(&plan.v4, Family::V4, OwnerForm::Extension).unwrap();
        let head: Vec<_> = chains[&(Table::Nat, "PREROUTING")].head.iter().map(|rule| rule.rule.to_string()).collect();
        assert_eq!(
            head,
            [
                "-I PREROUTING 1 -i tap1 -j ISTIO_REDIRECT",
                "-I PREROUTING 1 -i tap0 -j ISTIO_REDIRECT",
                "-I PREROUTING 1 -i tap1 -j RETURN",
                "-I PREROUTING 1 -i tap0 -j RETURN",
            ]
        );
    }
}
