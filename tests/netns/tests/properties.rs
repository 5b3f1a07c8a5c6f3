//! What holds for any settings: the kernel's rules are those of the text, applying again changes nothing, the next set
//! leaves nothing of the last one, clean-up leaves what was there before, and rules of others never notice.
#![allow(clippy::unwrap_used)]

use iptables_rules::apply::apply_plan;
use iptables_rules::config::{HostFacts, Settings};
use iptables_rules::plan::{Plan, sidecar};
use iptables_rules::render::iptables::restore;
use netns_tests::canaries::{append, canary, insert, insert_second, seen};
use netns_tests::random::{check, facts, settings};
use proptest::collection::vec;
use proptest::prelude::*;
use testkit::netns::{Sandbox, available};

fn plan() -> impl Strategy<Value = (Settings, HostFacts)> {
    (settings(), facts())
}

fn apply(sandbox: &Sandbox, plan: &Plan) -> usize {
    sandbox.run(|| apply_plan(plan)).unwrap_or_else(|error| panic!("{error}")).len()
}

/// What `nft list ruleset` prints, without counts; every chain with its table's name, sorted. Chains have no order.
fn listed(sandbox: &Sandbox) -> Vec<String> {
    let text = sandbox.sh("nft -s list ruleset 2>&1");
    let mut table = "";
    let mut chains = Vec::new();
    for line in text.lines() {
        if line.starts_with("table ") {
            table = line;
        } else if line.starts_with("\tchain ") {
            chains.push(format!("{table}\n{line}\n"));
        } else if let Some(chain) = chains.last_mut().filter(|_| line.starts_with("\t\t")) {
            *chain = format!("{chain}{line}\n");
        }
    }
    chains.sort();
    chains
}

/// Loads the restore text with the real tools.
fn load_reference(sandbox: &Sandbox, plan: &Plan) {
    for (program, rules) in [("iptables-nft-restore", &plan.v4), ("ip6tables-nft-restore", &plan.v6)] {
        if !rules.is_empty() {
            let text = restore(rules).join("\n") + "\n";
            let loaded = sandbox.feed(&format!("{program} --noflush"), &text);
            loaded.unwrap_or_else(|error| panic!("{program}: {error}\n{text}"));
        }
    }
}

#[test]
fn the_kernel_holds_what_iptables_restore_makes_of_any_settings() {
    if !available() {
        return;
    }
    check(file!(), 120, plan(), |(settings, facts)| {
        let plan = sidecar(&settings, &facts);
        let (theirs, ours) = (Sandbox::new(), Sandbox::new());
        load_reference(&theirs, &plan);
        apply(&ours, &plan);
        prop_assert_eq!(theirs.saved_rules(), ours.saved_rules());
        prop_assert_eq!(listed(&theirs), listed(&ours));
        // Read back from the kernel, the rules are the plan's, whoever put them there.
        prop_assert_eq!(apply(&ours, &plan), 0);
        prop_assert_eq!(apply(&theirs, &plan), 0);
        Ok(())
    });
}

#[test]
fn applying_again_keeps_every_rule_in_its_place() {
    if !available() {
        return;
    }
    check(file!(), 40, plan(), |(settings, facts)| {
        let plan = sidecar(&settings, &facts);
        let sandbox = Sandbox::new();
        apply(&sandbox, &plan);
        // Handles tell a rule from its equal.
        let before = sandbox.sh("nft -a list ruleset");
        apply(&sandbox, &plan);
        prop_assert_eq!(before, sandbox.sh("nft -a list ruleset"));
        Ok(())
    });
}

#[test]
fn the_next_set_is_as_if_it_were_the_first() {
    if !available() {
        return;
    }
    check(file!(), 60, (plan(), plan()), |((first, facts), (next, next_facts))| {
        let (first, next) = (sidecar(&first, &facts), sidecar(&next, &next_facts));
        let (changed, fresh) = (Sandbox::new(), Sandbox::new());
        apply(&changed, &first);
        apply(&changed, &next);
        apply(&fresh, &next);
        prop_assert_eq!(changed.saved_rules(), fresh.saved_rules());
        Ok(())
    });
}

#[test]
fn clean_up_leaves_what_was_there_before_byte_for_byte() {
    if !available() {
        return;
    }
    check(file!(), 60, (vec(canary(), 0..6), plan(), plan()), |(canaries, (first, facts), (next, next_facts))| {
        let sandbox = Sandbox::new();
        append(&sandbox, &canaries);
        let (before, counts) = (sandbox.saved_rules(), seen(&sandbox));
        apply(&sandbox, &sidecar(&first, &facts));
        apply(&sandbox, &sidecar(&next, &next_facts));
        apply(&sandbox, &Plan::default());
        prop_assert_eq!(before, sandbox.saved_rules());
        prop_assert_eq!(counts, seen(&sandbox));
        Ok(())
    });
}

#[test]
fn rules_of_others_keep_their_place_and_counts_through_every_operation() {
    if !available() {
        return;
    }
    let canaries = || vec(canary(), 0..4);
    let strategy = (canaries(), canaries(), canaries(), canaries(), plan(), plan());
    check(file!(), 40, strategy, |(before, first, second, last, (set, facts), (next, next_facts))| {
        let sandbox = Sandbox::new();
        append(&sandbox, &before);
        let (set, next) = (sidecar(&set, &facts), sidecar(&next, &next_facts));
        let counts = seen(&sandbox);
        apply(&sandbox, &set);
        prop_assert_eq!(counts, seen(&sandbox), "after the first set");
        insert(&sandbox, &first);
        insert_second(&sandbox, &second);
        append(&sandbox, &last);
        let counts = seen(&sandbox);
        for (plan, what) in [(&set, "the same set"), (&next, "another set"), (&Plan::default(), "clean-up")] {
            apply(&sandbox, plan);
            prop_assert_eq!(&counts, &seen(&sandbox), "after {}", what);
        }
        Ok(())
    });
}
