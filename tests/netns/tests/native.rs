//! Native rules in real namespaces: what the kernel holds after our transaction, beside what `nft -f` makes of the text.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;

use conformance::cases::{Case, load};
use conformance::{native, sidecar};
use iptables_rules::apply::ApplyError;
use iptables_rules::apply::native::{apply, check, remove};
use iptables_rules::config::{HostFacts, Mode, OwnerGroups, Port, Selection, Settings};
use iptables_rules::plan::native::sidecar as plan;
use iptables_rules::render::nft::transaction;
use netns_tests::random;
use proptest::prelude::*;
use testkit::netns::{Sandbox, available};
use testkit::traffic::{ask_tcp, ask_udp, says, serve_tcp, serve_udp};

/// An ordinary user, and the proxy's.
const APP: (u32, u32) = (1000, 1000);
const PROXY: (u32, u32) = (1337, 1337);

fn cases() -> Vec<Case> {
    let cases = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases")).unwrap();
    let wanted = |case: &Case| case.kind == "rules" && case.data["backend"] == "nftables";
    let cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
    assert!(cases.len() > 30, "only {} cases found", cases.len());
    cases
}

fn load_reference(sandbox: &Sandbox, text: &[String]) -> Result<String, String> {
    sandbox.feed("nft -f -", &(text.join("\n") + "\n"))
}

/// Everything without counts; handles too when they matter.
fn listing(sandbox: &Sandbox) -> String {
    sandbox.sh("nft -s list ruleset")
}

fn with_handles(sandbox: &Sandbox) -> String {
    sandbox.sh("nft -s -a list ruleset")
}

/// The expressions as the kernel holds them, by `nft`'s own reading. Numbers of sets and rules are left out.
fn expressions(sandbox: &Sandbox) -> Vec<String> {
    let text = sandbox.sh("nft --debug=netlink list ruleset");
    text.lines().filter(|line| line.trim_start().starts_with('[')).map(str::to_owned).collect()
}

/// The chains of a listing, each with its table, sorted: what was made anew is listed last.
fn sorted(listing: &str) -> Vec<String> {
    let mut table = "";
    let mut chains = Vec::new();
    for line in listing.lines() {
        if line.starts_with("table ") {
            table = line;
            chains.push(table.to_owned());
        } else if line.starts_with("\tchain ") {
            chains.push(format!("{table}\n{line}\n"));
        } else if let Some(chain) = chains.last_mut().filter(|_| line.starts_with('\t')) {
            *chain = format!("{chain}{line}\n");
        }
    }
    chains.sort();
    chains
}

fn captures_all() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: vec![Port::new("15020")],
        outbound_cidrs: Selection::All,
        outbound_ports_exclude: vec![Port::new("15020")],
        ..Settings::default()
    }
}

/// All that the rule set knows, at once.
fn everything(mode: Mode) -> Settings {
    Settings {
        mode,
        inbound_ports: Selection::Only(["80", "8000"].map(Port::new).to_vec()),
        outbound_cidrs: Selection::Only(
            ["10.1.2.3/12", "fd00::/8", "fc00::/7", "0.0.0.0/0", "::/0"].map(|text| text.parse().unwrap()).to_vec(),
        ),
        outbound_cidrs_exclude: ["192.168.0.0/16", "2001:db8::/33"].map(|text| text.parse().unwrap()).to_vec(),
        outbound_ports: vec![Port::new("3306")],
        exclude_interfaces: vec!["net1".to_owned()],
        virtual_interfaces: vec!["tap0".to_owned(), "tap*".to_owned()],
        owner_groups: OwnerGroups::Only(vec![5.into(), 6.into()]),
        loopback_v4: "127.0.0.1/8".parse().unwrap(),
        proxy_uids: vec![1337.into(), 7.into()],
        redirect_dns: true,
        capture_all_dns: true,
        drop_invalid: true,
        ..captures_all()
    }
}

const V6: HostFacts =
    HostFacts { ipv6: true, uncaptured: None, dns_servers_v4: Vec::new(), dns_servers_v6: Vec::new() };

#[test]
fn the_kernel_holds_what_nft_would_have_made_of_every_case() {
    if !available() {
        return;
    }
    for case in cases() {
        native::check(&case.data).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let (theirs, ours) = (Sandbox::new(), Sandbox::new());
        let (settings, facts) = (sidecar::settings(&case.data).unwrap(), sidecar::facts(&case.data));
        let cleanup = case.data["config"]["cleanup-only"] == true;
        let applied = ours.run(|| if cleanup { remove() } else { apply(&settings, &facts) });
        match load_reference(&theirs, &sidecar::lines(&case.data["expected"]["transaction"])) {
            Ok(_) => {
                applied.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                assert_eq!(listing(&theirs), listing(&ours), "{}", case.name);
                assert_eq!(expressions(&theirs), expressions(&ours), "{}", case.name);
                assert_eq!(expressions(&ours).is_empty(), cleanup, "{}", case.name);
            }
            // A group that this machine does not know, a port that is none: we must refuse as the tool does.
            Err(refusal) => {
                assert!(applied.is_err(), "{}: nft refuses: {refusal}", case.name);
                assert_eq!(listing(&ours), "", "{}", case.name);
            }
        }
    }
}

/// The text in the spelling of `nft`, whose ranges have a dash and whose wildcard is a star.
fn spelled_for_nft(text: &[String]) -> Vec<String> {
    let spell = |line: &String| {
        let mut before = "";
        let words = line.split(' ').map(|word| {
            let port = before == "dport" || before == "dport !=";
            let name = before == "iifname" || before == "oifname";
            before = match (before, word) {
                ("dport", "!=") => "dport !=",
                _ => word,
            };
            match word {
                word if port => word.replace(':', "-"),
                // In quotes, so that a name that is a word of nft's own is no syntax error.
                word if name => format!("\"{}\"", word.replace('+', "*")),
                word => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    };
    text.iter().map(spell).collect()
}

fn names_only_servers_that_are_off(settings: &Settings, facts: &HostFacts) -> bool {
    let servers = settings.redirect_dns && !settings.capture_all_dns && !facts.dns_servers_v6.is_empty();
    servers && !facts.ipv6 && facts.dns_servers_v4.is_empty()
}

#[test]
fn the_kernel_holds_what_nft_makes_of_any_settings_and_the_next_set_leaves_nothing_of_it() {
    if !available() {
        return;
    }
    let any = (random::settings(), random::facts(), random::settings(), random::facts());
    random::check(file!(), 60, any, |(settings, facts, next, next_facts)| {
        let (theirs, ours) = (Sandbox::new(), Sandbox::new());
        let text = spelled_for_nft(&transaction(&plan(&settings, &facts)));
        let applied = ours.run(|| apply(&settings, &facts));
        if names_only_servers_that_are_off(&settings, &facts) {
            prop_assert!(applied.is_err() && load_reference(&theirs, &text).is_err());
            prop_assert_eq!(listing(&ours), "");
            return Ok(());
        }
        load_reference(&theirs, &text).unwrap_or_else(|error| panic!("{error}"));
        applied.unwrap();
        prop_assert_eq!(listing(&theirs), listing(&ours));
        prop_assert_eq!(expressions(&theirs), expressions(&ours));
        // Read back from the kernel, the rules are the plan's, whoever put them there.
        for sandbox in [&theirs, &ours] {
            prop_assert_eq!(sandbox.run(|| check(&settings, &facts)).unwrap(), []);
        }
        prop_assume!(!names_only_servers_that_are_off(&next, &next_facts));
        let fresh = Sandbox::new();
        for sandbox in [&ours, &fresh] {
            sandbox.run(|| apply(&next, &next_facts)).unwrap();
        }
        prop_assert_eq!(sorted(&listing(&ours)), sorted(&listing(&fresh)));
        ours.run(remove).unwrap();
        prop_assert_eq!(listing(&ours), "");
        Ok(())
    });
}

#[test]
fn rules_that_nft_loaded_are_recognised_and_left_alone() {
    if !available() {
        return;
    }
    let sets = [everything(Mode::Redirect), everything(Mode::Tproxy), captures_all()];
    for (settings, facts) in sets.iter().flat_map(|set| [(set, V6), (set, HostFacts::default())]) {
        let (sandbox, ours) = (Sandbox::new(), Sandbox::new());
        load_reference(&sandbox, &transaction(&plan(settings, &facts))).unwrap();
        let before = with_handles(&sandbox);
        assert_eq!(sandbox.run(|| check(settings, &facts)).unwrap(), []);
        assert_eq!(sandbox.run(|| apply(settings, &facts)).unwrap().differences, []);
        assert_eq!(before, with_handles(&sandbox));
        ours.run(|| apply(settings, &facts)).unwrap();
        assert_eq!(listing(&sandbox), listing(&ours));
    }
}

#[test]
fn applying_twice_changes_nothing() {
    if !available() {
        return;
    }
    for settings in [captures_all(), everything(Mode::Redirect), everything(Mode::Tproxy)] {
        let sandbox = Sandbox::new();
        assert!(!sandbox.run(|| apply(&settings, &V6)).unwrap().differences.is_empty());
        // Handles show that no rule was replaced by its equal.
        let before = with_handles(&sandbox);
        let again = sandbox.run(|| apply(&settings, &V6)).unwrap();
        assert_eq!(again.differences, []);
        assert_eq!(before, with_handles(&sandbox));
    }
}

#[test]
fn another_configuration_leaves_nothing_of_the_earlier_one() {
    if !available() {
        return;
    }
    let (changed, fresh) = (Sandbox::new(), Sandbox::new());
    changed.run(|| apply(&everything(Mode::Tproxy), &V6)).unwrap();
    assert!(listing(&changed).contains("istio-proxy-mangle"));
    let outcome = changed.run(|| apply(&captures_all(), &HostFacts::default())).unwrap();
    let told: Vec<String> = outcome.differences.iter().map(ToString::to_string).collect();
    assert!(told.contains(&"table istio-proxy-mangle is not wanted".to_owned()), "{told:?}");
    assert!(told.contains(&"table istio-proxy-nat: chain istio-output-dns is not wanted".to_owned()), "{told:?}");
    fresh.run(|| apply(&captures_all(), &HostFacts::default())).unwrap();
    assert_eq!(listing(&changed), listing(&fresh));
}

#[test]
fn a_table_that_is_as_it_should_be_is_not_touched_when_another_one_changes() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::new();
    let tproxy = Settings { mode: Mode::Tproxy, ..captures_all() };
    sandbox.run(|| apply(&tproxy, &V6)).unwrap();
    let mangle = || sandbox.sh("nft -s -a list table inet istio-proxy-mangle");
    let before = mangle();
    sandbox.run(|| apply(&Settings { outbound_ports: vec![Port::new("1")], ..tproxy.clone() }, &V6)).unwrap();
    assert_eq!(before, mangle());
    assert!(listing(&sandbox).contains("tcp dport 1 "));
}

#[test]
fn what_others_did_to_our_tables_is_put_right() {
    if !available() {
        return;
    }
    let settings = everything(Mode::Tproxy);
    let right = Sandbox::new();
    right.run(|| apply(&settings, &V6)).unwrap();
    let right = listing(&right);
    for (damage, told) in [
        ("flush chain inet istio-proxy-nat istio-output", "the rules of chain istio-output differ"),
        ("insert rule inet istio-proxy-nat output accept", "the rules of chain output differ"),
        ("delete table inet istio-proxy-raw", "chain prerouting is missing"),
        ("add chain inet istio-proxy-nat extra", "chain extra is not wanted"),
        ("add table inet istio-proxy-nat { flags dormant ; }", "table istio-proxy-nat is switched off"),
        (
            "add chain inet istio-proxy-mangle output { type route hook output priority -150 ; policy drop ; }",
            "chain output has another hook or policy",
        ),
        (
            "flush chain inet istio-proxy-raw output; delete chain inet istio-proxy-raw output; \
             add chain inet istio-proxy-raw output { type filter hook output priority -301 ; }",
            "chain output has another hook or policy",
        ),
    ] {
        let sandbox = Sandbox::new();
        sandbox.run(|| apply(&settings, &V6)).unwrap();
        load_reference(&sandbox, &[damage.to_owned()]).unwrap();
        let found = sandbox.run(|| check(&settings, &V6)).unwrap();
        assert!(found.iter().any(|it| it.to_string().ends_with(told)), "{damage}: {found:?}");
        sandbox.run(|| apply(&settings, &V6)).unwrap();
        assert_eq!(sandbox.run(|| check(&settings, &V6)).unwrap(), [], "{damage}");
        assert_eq!(sorted(&listing(&sandbox)), sorted(&right), "{damage}");
    }
}

#[test]
fn tables_of_others_survive_apply_and_clean_up() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.sh("nft add table inet other; nft add chain inet other c '{ type nat hook output priority -101 ; }';
         nft add rule inet other c tcp dport 1 counter packets 5 bytes 7 accept;
         nft add table ip istio-proxy-nat; iptables-nft -t nat -A OUTPUT -p tcp --dport 2 -j RETURN");
    let before = sandbox.sh("nft -a list ruleset");
    sandbox.run(|| apply(&everything(Mode::Tproxy), &V6)).unwrap();
    sandbox.run(|| apply(&captures_all(), &V6)).unwrap();
    let outcome = sandbox.run(remove).unwrap();
    assert_eq!(outcome.rules, 0);
    assert_eq!(before, sandbox.sh("nft -a list ruleset"));
    assert_eq!(sandbox.run(remove).unwrap().differences, []);
}

#[test]
fn name_servers_of_a_family_that_is_off_are_refused_before_anything_is_touched() {
    if !available() {
        return;
    }
    let (theirs, ours) = (Sandbox::new(), Sandbox::new());
    let settings = Settings { redirect_dns: true, ..captures_all() };
    let facts = HostFacts { dns_servers_v6: vec!["fd00::a".to_owned()], ..HostFacts::default() };
    // The text jumps to a chain that is not there.
    load_reference(&theirs, &transaction(&plan(&settings, &facts))).unwrap_err();
    let error = ours.run(|| apply(&settings, &facts)).unwrap_err();
    assert!(error.to_string().contains("all name servers are IPv6"), "{error}");
    assert_eq!(listing(&ours), "");
}

#[test]
fn five_hundred_excluded_ranges_go_in_at_once() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::new();
    let ranges = (0..500u32).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250).parse().unwrap()).collect();
    let settings = Settings { outbound_cidrs_exclude: ranges, ..captures_all() };
    assert!(sandbox.run(|| apply(&settings, &V6)).unwrap().rules > 500);
    assert_eq!(listing(&sandbox).matches("ip daddr 10.").count(), 500);
    assert_eq!(sandbox.run(|| apply(&settings, &V6)).unwrap().differences, []);
}

#[test]
fn a_rule_that_the_kernel_cannot_be_given_leaves_no_rule_at_all() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::new();
    let star = Settings { inbound_ports_exclude: vec![Port::new("*"), Port::new("15020")], ..captures_all() };
    let error = sandbox.run(|| apply(&star, &V6)).unwrap_err();
    assert!(matches!(error, ApplyError::Rule(_)), "{error}");
    assert!(error.to_string().contains("`meta l4proto tcp tcp dport * counter return`"), "{error}");
    assert_eq!(listing(&sandbox), "");
}

#[test]
fn two_at_the_same_time_leave_one_set() {
    if !available() {
        return;
    }
    let (sandbox, alone) = (Sandbox::new(), Sandbox::new());
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| sandbox.run(|| apply(&captures_all(), &V6)))).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    alone.run(|| apply(&captures_all(), &V6)).unwrap();
    assert_eq!(listing(&sandbox), listing(&alone));
}

#[test]
fn with_rules_the_proxy_gets_what_comes_in_and_goes_out_and_the_agent_gets_dns() {
    if !available() {
        return;
    }
    let (pod, neighbour) = Sandbox::pair(&["10.77.0.2/24", "fd77::2/64"], &["10.77.0.3/24", "fd77::3/64"]);
    for (port, name) in [(8080, "app"), (15020, "agent"), (15001, "outbound"), (15006, "inbound")] {
        serve_tcp(&pod, port, name);
    }
    serve_tcp(&neighbour, 9090, "server");
    for server in ["10.77.0.3:53", "[fd77::3]:53"] {
        serve_udp(&neighbour, (0, 0), server, "resolver");
    }
    for agent in ["127.0.0.1:15053", "[::1]:15053"] {
        serve_udp(&pod, PROXY, agent, "agent");
    }
    let settings = Settings { redirect_dns: true, capture_all_dns: true, ..captures_all() };
    pod.run(|| apply(&settings, &V6)).unwrap();
    says(ask_tcp(&neighbour, APP, "10.77.0.2:8080"), "inbound for 10.77.0.2:8080 from 10.77.0.3");
    says(ask_tcp(&neighbour, APP, "[fd77::2]:8080"), "inbound for [fd77::2]:8080 from fd77::3");
    says(ask_tcp(&neighbour, APP, "10.77.0.2:15020"), "agent");
    says(ask_tcp(&pod, APP, "10.77.0.3:9090"), "outbound for 10.77.0.3:9090");
    says(ask_tcp(&pod, APP, "[fd77::3]:9090"), "outbound for [fd77::3]:9090");
    says(ask_tcp(&pod, PROXY, "10.77.0.3:9090"), "server");
    says(ask_tcp(&pod, PROXY, "10.77.0.2:8080"), "inbound for 10.77.0.2:8080");
    says(ask_tcp(&pod, APP, "127.0.0.1:8080"), "app");
    says(ask_udp(&pod, APP, "10.77.0.3:53"), "agent");
    says(ask_udp(&pod, APP, "[fd77::3]:53"), "agent");
    says(ask_udp(&pod, PROXY, "10.77.0.3:53"), "resolver");
    pod.run(remove).unwrap();
    says(ask_tcp(&neighbour, APP, "10.77.0.2:8080"), "app");
    says(ask_tcp(&pod, APP, "10.77.0.3:9090"), "server");
}
