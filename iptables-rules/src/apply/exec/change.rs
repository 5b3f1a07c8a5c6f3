//! What differs between wanted rules and the text of `iptables-save`, and the restore text that changes it. Pure.
//!
//! Ours are: every chain whose name starts with `ISTIO_`; elsewhere, every rule that leads to such a chain, that equals a
//! rule we know, or that has a shape only Istio's TPROXY mode has. All else belongs to others and is neither touched nor
//! moved.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Position, Rule, Table, Target, chain, is_builtin};
use crate::state::Difference;
use crate::state::save_text::{Normal, SaveText, normal};

/// Targets and option names of the rules that TPROXY mode puts into built-in chains of table mangle. Which configuration
/// made them is not known, so ids and marks may be any.
const TPROXY_SHAPES: [(&str, &[&str]); 4] = [
    ("CONNMARK", &["--mark", "--save-mark", "-j", "-m", "-p"]),
    ("CONNMARK", &["--mark", "--restore-mark", "-j", "-m", "-p"]),
    ("RETURN", &["--mark", "-j", "-m", "-o", "-p"]),
    ("MARK", &["! -d", "--set-xmark", "--owner", "-j", "-m", "-o", "-p"]),
];
/// Mark that TPROXY mode sets on what the proxy sends to the application, with its mask.
const OUTBOUND_MARK: &str = "0x53a/0xffffffff";

/// What one chain should hold, in its final order.
#[derive(Debug, Default)]
struct WantedChain {
    head: Vec<(Normal, String)>,
    tail: Vec<(Normal, String)>,
}

/// The wanted rules of one family, ready to be compared.
#[derive(Debug)]
pub struct Wanted<'a> {
    rules: &'a [Rule],
    chains: BTreeMap<(Table, &'static str), WantedChain>,
    /// Rules outside our chains that count as ours when they are found.
    known: BTreeSet<(Table, &'static str, Normal)>,
}

impl<'a> Wanted<'a> {
    /// `known` are rules that count as ours beside the wanted ones.
    pub fn new(rules: &'a [Rule], known: &[Rule]) -> Self {
        let mut chains = BTreeMap::<_, WantedChain>::new();
        for rule in rules {
            let text = rule.to_string();
            let entry = (normal(&text), text);
            let wanted = chains.entry((rule.table, rule.chain)).or_default();
            match rule.position {
                Position::Append => wanted.tail.push(entry),
                Position::Insert(place) => {
                    let list = if is_builtin(rule.chain) { &mut wanted.head } else { &mut wanted.tail };
                    list.insert(place.saturating_sub(1).min(list.len()), entry);
                }
            }
            if let Target::Jump(target) = rule.target {
                chains.entry((rule.table, target)).or_default();
            }
        }
        let outside = rules.iter().chain(known).filter(|rule| is_builtin(rule.chain));
        let known = outside.map(|rule| (rule.table, rule.chain, normal(&rule.to_string()))).collect();
        Self { rules, chains, known }
    }

    /// The wanted rules.
    pub fn rules(&self) -> &'a [Rule] {
        self.rules
    }

    /// All that is not as it should be. An empty list means that there is nothing to do.
    pub fn differences(&self, have: &SaveText) -> Vec<Difference> {
        let mut found = Vec::new();
        for ((table, name), wanted) in &self.chains {
            let there = have.tables.get(table).is_some_and(|chains| chains.contains_key(*name));
            if !there && !is_builtin(name) {
                found.push(Difference::MissingChain { table: *table, chain: (*name).to_owned() });
            } else {
                compare(*table, name, wanted, &self.ours(have, *table, name), &mut found);
            }
        }
        for table in Table::ALL {
            for (name, _) in have.chains(table).filter(|(name, _)| !self.wants(table, name)) {
                if is_ours(name) {
                    found.push(Difference::UnwantedChain { table, chain: name.to_owned() });
                } else {
                    compare(table, name, &WantedChain::default(), &self.ours(have, table, name), &mut found);
                }
            }
        }
        found
    }

    /// Whether anything of ours is there.
    pub fn finds_ours(&self, have: &SaveText) -> bool {
        Table::ALL
            .into_iter()
            .any(|table| have.chains(table).any(|(name, _)| is_ours(name) || !self.ours(have, table, name).is_empty()))
    }

    /// The restore text that replaces what is ours in `tables`.
    pub fn replace(&self, have: &SaveText, tables: &BTreeSet<Table>) -> Vec<String> {
        // Tables that lose rules come last, so that capture does not stop before it goes on in another table.
        let (gain, lose): (Vec<Table>, Vec<Table>) =
            tables.iter().partition(|table| self.rules.iter().any(|rule| rule.table == **table));
        let mut text = Vec::new();
        for table in gain.into_iter().chain(lose) {
            let chains = self.chains.keys().filter(|(its, _)| *its == table).map(|(_, name)| *name);
            let lines = self.rules.iter().filter(|rule| rule.table == table).map(Rule::to_string).collect();
            text.extend(self.rewrite(have, table, &chains.filter(|name| is_ours(name)).collect(), lines));
        }
        text
    }

    /// The restore text that brings `tables` from `now` back to what they were `before`.
    pub fn undo(&self, now: &SaveText, before: &SaveText, tables: &BTreeSet<Table>) -> Vec<String> {
        let mut text = Vec::new();
        for table in tables {
            let (mut chains, mut lines) = (BTreeSet::new(), Vec::new());
            for (name, rules) in before.chains(*table) {
                if is_ours(name) {
                    chains.insert(name);
                    lines.extend(rules.iter().cloned());
                    continue;
                }
                // Those of others never moved, so the old places are right.
                for (place, rule) in
                    rules.iter().enumerate().filter(|(_, rule)| self.is_our_rule(before, *table, name, rule))
                {
                    let rest = rule.split_once(name).map_or("", |(_, rest)| rest);
                    lines.push(format!("-I {name} {}{rest}", place + 1));
                }
            }
            text.extend(self.rewrite(now, *table, &chains, lines));
        }
        text
    }

    /// One table: ours goes, then `chains` are made and `lines` run.
    fn rewrite(&self, have: &SaveText, table: Table, chains: &BTreeSet<&str>, lines: Vec<String>) -> Vec<String> {
        let mut text = vec![format!("*{}", table.as_str())];
        let mut there = BTreeSet::new();
        for (name, _) in have.chains(table) {
            if is_ours(name) {
                there.insert(name);
                continue;
            }
            let rules = self.ours(have, table, name).into_iter();
            // By its words and not by its place: if somebody changed the chain meanwhile, nothing of theirs goes.
            text.extend(rules.map(|rule| rule.replacen("-A ", "-D ", 1)));
        }
        text.extend(there.iter().map(|name| format!("-F {name}")));
        text.extend(chains.difference(&there).map(|name| format!("-N {name}")));
        text.extend(lines);
        text.extend(there.difference(chains).map(|name| format!("-X {name}")));
        text.push("COMMIT".to_owned());
        text
    }

    fn wants(&self, table: Table, name: &str) -> bool {
        self.chains.keys().any(|(its, chain)| *its == table && *chain == name)
    }

    /// The rules of a chain that are ours.
    fn ours<'t>(&self, have: &'t SaveText, table: Table, name: &str) -> Vec<&'t String> {
        let rules = have.tables.get(&table).and_then(|chains| chains.get(name));
        rules.into_iter().flatten().filter(|rule| self.is_our_rule(have, table, name, rule)).collect()
    }

    fn is_our_rule(&self, have: &SaveText, table: Table, name: &str, rule: &str) -> bool {
        if is_ours(name) {
            return true;
        }
        let rule = normal(rule);
        let leads_to_us = rule.target().is_some_and(is_ours);
        leads_to_us
            || self.known.iter().any(|(its, chain, known)| *its == table && *chain == name && *known == rule)
            || (table == Table::Mangle && is_builtin(name) && has_ours(have, table) && is_tproxy_rule(&rule))
    }
}

/// The tables that the differences are in.
pub fn tables(differences: &[Difference]) -> BTreeSet<Table> {
    let table = |difference: &Difference| match difference {
        Difference::MissingChain { table, .. }
        | Difference::MissingRule { table, .. }
        | Difference::UnwantedRule { table, .. }
        | Difference::Order { table, .. }
        | Difference::UnwantedChain { table, .. } => Some(*table),
        Difference::MissingRouting { .. } => None,
    };
    differences.iter().filter_map(table).collect()
}

fn is_ours(name: &str) -> bool {
    name.starts_with(chain::PREFIX)
}

fn has_ours(have: &SaveText, table: Table) -> bool {
    have.chains(table).any(|(name, _)| is_ours(name))
}

fn is_tproxy_rule(rule: &Normal) -> bool {
    let owner = |name| if matches!(name, "--uid-owner" | "--gid-owner") { "--owner" } else { name };
    let names: BTreeSet<&str> = rule.names().map(owner).collect();
    let fits = |shape: &[&str]| names == shape.iter().copied().collect();
    TPROXY_SHAPES.iter().any(|(target, shape)| rule.target() == Some(target) && fits(shape))
        && rule.has("-p", "tcp")
        && (rule.target() != Some("MARK") || rule.has("--set-xmark", OUTBOUND_MARK))
}

/// Compares the rules of one chain.
fn compare(table: Table, name: &str, wanted: &WantedChain, have: &[&String], found: &mut Vec<Difference>) {
    let mut unmatched: Vec<(Normal, &String)> = have.iter().map(|rule| (normal(rule), *rule)).collect();
    let wanted = wanted.head.iter().chain(&wanted.tail);
    if wanted.clone().map(|(rule, _)| rule).eq(unmatched.iter().map(|(rule, _)| rule)) {
        return;
    }
    let before = found.len();
    let chain = || name.to_owned();
    for (want, text) in wanted {
        match unmatched.iter().position(|(rule, _)| rule == want) {
            Some(place) => {
                unmatched.remove(place);
            }
            None => found.push(Difference::MissingRule { table, chain: chain(), rule: text.clone() }),
        }
    }
    let unwanted = unmatched.into_iter().map(|(_, rule)| rule.clone());
    found.extend(unwanted.map(|rule| Difference::UnwantedRule { table, chain: chain(), rule }));
    if found.len() == before {
        found.push(Difference::Order { table, chain: chain() });
    }
}
