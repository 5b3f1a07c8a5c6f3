//! The cases of the corpus: rules, existing rules, and the texts below them.

use std::path::Path;

use conformance::cases::{Case, load};
use conformance::sidecar;
use iptables_rules::apply::exec::{ExecError, Kind};
use iptables_rules::plan::sidecar as plan_of;
use iptables_rules::render::iptables::restore;
use iptables_rules::state::save_text::parse;
use testkit::netns::{Sandbox, available};

use crate::{KEEP, REPLACE, apply, clean_up, listing, load_reference};

fn cases(kinds: &[&str]) -> Vec<Case> {
    let cases = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases")).unwrap();
    let wanted = |case: &Case| kinds.contains(&case.kind.as_str()) && case.data["backend"] == "iptables";
    cases.into_iter().filter(wanted).collect()
}

fn rule_cases() -> Vec<Case> {
    let mut cases = cases(&["rules", "cni-pod"]);
    cases.retain(|case| case.data["config"]["cleanup-only"] != true);
    assert!(cases.len() > 30, "only {} cases found", cases.len());
    cases
}

#[test]
fn save_text_and_version_are_read_as_the_cases_say() {
    let mut seen = 0;
    for case in cases(&["unit"]) {
        let (input, expected) = (&case.data["input"], &case.data["expected"]);
        match case.data["unit"].as_str().unwrap() {
            "parse-state" => {
                let parsed = parse(input["text"].as_str().unwrap());
                assert_eq!(parsed.tables.len(), expected.as_object().unwrap().len());
                for (table, chains) in parsed.tables {
                    let want = expected[table.as_str()].as_object().unwrap();
                    let got = chains.iter().map(|(name, rules)| (name.clone(), rules.clone()));
                    let want = want.iter().map(|(name, rules)| (name.clone(), sidecar::lines(rules)));
                    assert!(got.eq(want), "{}: {chains:?}", case.name);
                }
            }
            "iptables-version-parse" => {
                for (index, text) in sidecar::lines(&input["cases"]).iter().enumerate() {
                    let kind = Kind::parse(text);
                    let version = kind.version.0.map(|number| number.to_string()).join(".");
                    assert_eq!(expected["version"][index], version, "{text}");
                    assert_eq!(expected["nft"][index], kind.nft, "{text}");
                }
            }
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn existing_rules_end_as_the_cases_say() {
    if !available() {
        return;
    }
    let cases = cases(&["apply"]);
    assert!(cases.len() >= 12);
    for case in cases {
        let data = &case.data;
        let plan = plan_of(&sidecar::settings(data).unwrap(), &sidecar::facts(data));
        let existing = |key: &str, keep: &dyn Fn(&str) -> bool| -> Vec<String> {
            let text = data["existing"][key].as_str().unwrap_or_default();
            text.lines().filter(|line| keep(line)).map(str::to_owned).collect()
        };
        let load = |keep: &dyn Fn(&str) -> bool| {
            let sandbox = Sandbox::new();
            // The rule of this name in an IPv6 table is a slip of the cases: no IPv6 tool takes an IPv4 address.
            let v6 =
                existing("v6_save", keep).iter().map(|line| line.replace("10.0.0.0/8", "fd00::/8")).collect::<Vec<_>>();
            load_reference(&sandbox, &existing("v4_save", keep), &v6).unwrap();
            sandbox
        };
        let (sandbox, wanted) = (load(&|_| true), load(&|line| !line.contains("ISTIO_")));
        let before = listing(&sandbox, false);
        let (reconcile, clean) = (data["config"]["reconcile"] == true, data["config"]["cleanup-only"] == true);
        let result = if clean {
            clean_up(&sandbox, &plan)
        } else {
            load_reference(&wanted, &restore(&plan.v4), &restore(&plan.v6)).unwrap();
            apply(&sandbox, &plan, if reconcile { REPLACE } else { KEEP })
        };
        match result {
            // The reference runs into "chain exists" there.
            Err(ExecError::Differ(_)) => {
                assert!(
                    ["apply-delta-no-reconcile", "apply-v6-off-stray-v6-istio-chain"].contains(&case.name.as_str())
                );
                assert_eq!(listing(&sandbox, false), before, "{}", case.name);
            }
            result => {
                result.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                assert_eq!(listing(&sandbox, false), listing(&wanted, false), "{}", case.name);
            }
        }
    }
}

#[test]
fn every_case_is_in_the_kernel_as_iptables_legacy_restore_puts_it_there_and_recognised() {
    if !available() {
        return;
    }
    for case in rule_cases() {
        let (theirs, ours) = (Sandbox::new(), Sandbox::new());
        let plan = plan_of(&sidecar::settings(&case.data).unwrap(), &sidecar::facts(&case.data));
        let (v4, v6) = (sidecar::lines(&case.data["expected"]["v4"]), sidecar::lines(&case.data["expected"]["v6"]));
        let applied = apply(&ours, &plan, KEEP);
        match load_reference(&theirs, &v4, &v6) {
            Ok(()) => {
                applied.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                assert_eq!(listing(&theirs, false), listing(&ours, false), "{}", case.name);
                assert_eq!(apply(&theirs, &plan, KEEP).unwrap(), [], "{}", case.name);
                clean_up(&theirs, &plan).unwrap();
                assert_eq!(listing(&theirs, false), listing(&Sandbox::new(), false), "{}", case.name);
            }
            Err(refusal) => {
                assert!(applied.is_err(), "{}: iptables refuses: {refusal}", case.name);
                assert_eq!(listing(&ours, false), listing(&Sandbox::new(), false), "{}: half applied", case.name);
            }
        }
    }
}
