//! Rules in real namespaces: what the kernel holds after our transaction, beside what `iptables-restore` makes of the
//! same rules.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use conformance::cases::{Case, load};
use conformance::sidecar;
use iptables_rules::apply::{ApplyError, apply, apply_plan};
use iptables_rules::config::{Cidr, HostFacts, Mode, OwnerGroups, Port, Selection, Settings};
use iptables_rules::plan;
use iptables_rules::render::iptables::restore;
use testkit::netns::{Sandbox, available};

const V4: &[&str] = &["10.0.0.2/24"];
const DUAL: &[&str] = &["10.0.0.2/24", "fd00:9::2/64"];

/// A sidecar's settings as the plugin makes them.
fn captures_all() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: ["15020", "15021", "15090"].map(Port::new).to_vec(),
        outbound_cidrs: Selection::All,
        outbound_ports_exclude: vec![Port::new("15020")],
        ..Settings::default()
    }
}

/// Everything that REDIRECT mode knows, at once.
fn everything() -> Settings {
    Settings {
        inbound_ports: Selection::Only(["80", "443", "8000:8010"].map(Port::new).to_vec()),
        outbound_cidrs: Selection::Only(
            ["10.1.2.3/12", "fd00::/8", "fc00::/7", "0.0.0.0/0"].map(|text| text.parse().unwrap()).to_vec(),
        ),
        outbound_cidrs_exclude: ["192.168.0.0/16", "2001:db8::/33"].map(|text| text.parse().unwrap()).to_vec(),
        outbound_ports: vec![Port::new("3306")],
        exclude_interfaces: vec!["net1".to_owned()],
        virtual_interfaces: vec!["tap0".to_owned(), "tap+".to_owned()],
        owner_groups: OwnerGroups::Only(vec![5.into(), 6.into()]),
        loopback_v4: "127.0.0.1/8".parse::<Cidr>().unwrap(),
        redirect_dns: true,
        capture_all_dns: true,
        drop_invalid: true,
        dual_stack: true,
        ..captures_all()
    }
}

/// Loads restore text with the real tools; false when they refuse it.
fn load_reference(sandbox: &Sandbox, v4: &[String], v6: &[String]) -> Result<(), String> {
    for (program, lines) in [("iptables-nft-restore", v4), ("ip6tables-nft-restore", v6)] {
        if !lines.is_empty() {
            sandbox.feed(&format!("{program} --noflush"), &(lines.join("\n") + "\n"))?;
        }
    }
    Ok(())
}

fn redirect_cases() -> Vec<Case> {
    let cases = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases")).unwrap();
    let wanted = |case: &Case| {
        ["rules", "cni-pod"].contains(&case.kind.as_str())
            && case.data["backend"] == "iptables"
            && case.data["config"]["istio-inbound-interception-mode"] != "TPROXY"
    };
    let cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
    assert!(cases.len() > 25, "only {} cases found", cases.len());
    cases
}

#[test]
fn the_kernel_holds_what_iptables_restore_would_have_made_of_every_case() {
    if !available() {
        return;
    }
    for case in redirect_cases() {
        let (theirs, ours) = (Sandbox::new(), Sandbox::new());
        let (settings, facts) = (sidecar::settings(&case.data).unwrap(), sidecar::facts(&case.data));
        let (v4, v6) = (sidecar::lines(&case.data["expected"]["v4"]), sidecar::lines(&case.data["expected"]["v6"]));
        let applied = ours.run(|| apply_plan(&plan::sidecar(&settings, &facts)));
        match load_reference(&theirs, &v4, &v6) {
            Ok(()) => {
                applied.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                assert_eq!(theirs.saved_rules(), ours.saved_rules(), "{}", case.name);
            }
            // A group that this machine does not know, a port that is none: we must refuse as the tool does.
            Err(refusal) => assert!(applied.is_err(), "{}: iptables refuses: {refusal}", case.name),
        }
    }
}

#[test]
fn rules_that_iptables_restore_loaded_are_recognised_as_ours() {
    if !available() {
        return;
    }
    for settings in [captures_all(), everything()] {
        let sandbox = Sandbox::new();
        let facts = HostFacts { ipv6: true, ..HostFacts::default() };
        let plan = plan::sidecar(&settings, &facts);
        load_reference(&sandbox, &restore(&plan.v4), &restore(&plan.v6)).unwrap();
        assert_eq!(sandbox.run(|| apply_plan(&plan)).unwrap(), []);
    }
}

#[test]
fn applying_twice_changes_nothing() {
    if !available() {
        return;
    }
    for (settings, addresses) in [(captures_all(), V4), (captures_all(), DUAL), (everything(), DUAL)] {
        let sandbox = Sandbox::with_addresses(addresses);
        assert!(sandbox.run(|| apply(&settings)).unwrap().changed);
        // Handles show that no rule was replaced by its equal.
        let before = sandbox.sh("nft -s -a list ruleset; ip -6 addr show dev lo");
        let again = sandbox.run(|| apply(&settings)).unwrap();
        assert!(!again.changed, "{again:?}");
        assert_eq!(before, sandbox.sh("nft -s -a list ruleset; ip -6 addr show dev lo"));
    }
}

#[test]
fn the_iptables_crate_finds_every_rule() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(DUAL);
    let settings = everything();
    sandbox.run(|| apply(&settings)).unwrap();
    let plan = plan::sidecar(&settings, &HostFacts { ipv6: true, ..HostFacts::default() });
    for (ipv6, rules) in [(false, &plan.v4), (true, &plan.v6)] {
        for rule in rules {
            let text = rule.to_string();
            // "-A CHAIN rest" or "-I CHAIN 1 rest"
            let skip = if text.starts_with("-I") { 3 } else { 2 };
            let rest = text.split(' ').skip(skip).collect::<Vec<_>>().join(" ");
            let found = sandbox.run(|| {
                let witness = iptables::new(ipv6).unwrap();
                witness.exists(rule.table.as_str(), rule.chain, &rest).unwrap()
            });
            assert!(found, "{}: {text}", rule.table.as_str());
        }
    }
}

#[test]
fn rules_of_others_stay_where_they_are() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(DUAL);
    sandbox.sh("iptables-nft -t nat -N CANARY; iptables-nft -t nat -A OUTPUT -p tcp --dport 1 -j CANARY;
         iptables-nft -t nat -A PREROUTING -p tcp --dport 2 -j RETURN; iptables-nft -A INPUT -s 1.2.3.4 -j DROP;
         nft add table inet other; nft add chain inet other c '{ type filter hook input priority 0 ; }'");
    let foreign = sandbox.saved_rules();
    sandbox.run(|| apply(&everything())).unwrap();
    sandbox.sh("iptables-nft -t nat -A OUTPUT -p tcp --dport 3 -j CANARY");
    // Another set replaces ours between the canaries.
    sandbox.run(|| apply(&captures_all())).unwrap();
    let saved = sandbox.saved_rules();
    for line in foreign.lines().filter(|line| line.starts_with("-A")) {
        assert!(saved.contains(line), "{line} is gone:\n{saved}");
    }
    let order: Vec<&str> =
        saved.lines().filter(|line| line.starts_with("-A OUTPUT") && line.contains("CANARY")).collect();
    assert_eq!(order.len(), 2, "{saved}");
    assert!(order[0].contains("--dport 1") && order[1].contains("--dport 3"), "{saved}");
    assert!(sandbox.sh("nft list ruleset").contains("table inet other"));
}

#[test]
fn another_configuration_leaves_nothing_of_the_earlier_one() {
    if !available() {
        return;
    }
    let (changed, fresh) = (Sandbox::with_addresses(DUAL), Sandbox::with_addresses(DUAL));
    let dual = Settings { dual_stack: true, ..captures_all() };
    changed.run(|| apply(&everything())).unwrap();
    changed.run(|| apply(&dual)).unwrap();
    fresh.run(|| apply(&dual)).unwrap();
    let saved = |sandbox: &Sandbox| {
        // Built-in chains and tables may stay behind, empty.
        let text = sandbox.saved_rules();
        text.lines()
            .filter(|line| line.starts_with("-A") || line.starts_with(":ISTIO"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(saved(&changed), saved(&fresh));
}

#[test]
fn five_hundred_excluded_ranges_go_in_at_once() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let ranges = (0..500u32).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250).parse().unwrap()).collect();
    let settings = Settings { outbound_cidrs_exclude: ranges, ..captures_all() };
    let applied = sandbox.run(|| apply(&settings)).unwrap();
    assert!(applied.rules > 500);
    assert_eq!(sandbox.saved_rules().lines().filter(|line| line.contains("-d 10.")).count(), 500);
    assert!(!sandbox.run(|| apply(&settings)).unwrap().changed);
}

#[test]
fn a_rule_that_the_kernel_cannot_be_given_leaves_no_rule_at_all() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(DUAL);
    let star = Settings { inbound_ports_exclude: vec![Port::new("*"), Port::new("15020")], ..captures_all() };
    let error = sandbox.run(|| apply(&star)).unwrap_err();
    assert!(matches!(error, ApplyError::Rule(_)), "{error}");
    assert!(error.to_string().contains("`*`"), "{error}");
    assert_eq!(sandbox.sh("nft list ruleset"), "");
}

#[test]
fn a_namespace_without_an_address_is_refused_before_anything_is_touched() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::new();
    let error = sandbox.run(|| apply(&captures_all())).unwrap_err();
    assert!(error.to_string().contains("no valid local IP address"), "{error}");
    assert_eq!(sandbox.sh("nft list ruleset"), "");
}

#[test]
fn tproxy_is_refused_with_a_sentence() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let error = sandbox.run(|| apply(&Settings { mode: Mode::Tproxy, ..captures_all() })).unwrap_err();
    assert!(error.to_string().contains("TPROXY"), "{error}");
    assert_eq!(sandbox.sh("nft list ruleset"), "");
}

#[test]
fn two_at_the_same_time_leave_one_set() {
    if !available() {
        return;
    }
    let (sandbox, alone) = (Sandbox::with_addresses(DUAL), Sandbox::with_addresses(DUAL));
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| sandbox.run(|| apply(&captures_all())))).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    alone.run(|| apply(&captures_all())).unwrap();
    assert_eq!(sandbox.saved_rules(), alone.saved_rules());
}
