//! Rules in real namespaces: what the kernel holds after our transaction, beside what `iptables-restore` makes of the
//! same rules.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use conformance::cases::{Case, load};
use conformance::sidecar;
use iptables_rules::apply::{ApplyError, Job, apply, apply_plan, check, run};
use iptables_rules::config::{Cidr, HostFacts, Mark, Mode, OwnerGroups, Port, Selection, Settings};
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

/// Everything at once, in TPROXY mode.
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
        mode: Mode::Tproxy,
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

fn rule_cases() -> Vec<Case> {
    let cases = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/cases")).unwrap();
    let wanted = |case: &Case| ["rules", "cni-pod"].contains(&case.kind.as_str()) && case.data["backend"] == "iptables";
    let cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
    assert!(cases.len() > 25, "only {} cases found", cases.len());
    cases
}

#[test]
fn the_kernel_holds_what_iptables_restore_would_have_made_of_every_case() {
    if !available() {
        return;
    }
    for case in rule_cases() {
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

/// What `ip` shows of routing that TPROXY mode needs.
fn routing(sandbox: &Sandbox) -> String {
    sandbox.sh("for f in -4 -6; do ip $f rule; ip $f route show table 133 2>/dev/null; done; ip -6 addr show dev lo | grep '::6/' || :")
}

#[test]
fn tproxy_routes_are_added_once_and_taken_away_by_clean_up() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(DUAL);
    let before = routing(&sandbox);
    let job = Job { settings: everything(), reconcile: true, ..Job::default() };
    assert!(sandbox.run(|| run(&job)).unwrap().changed);
    let once = routing(&sandbox);
    assert_eq!(once.matches("fwmark 0x539 lookup 133").count(), 2, "{once}");
    assert_eq!(once.matches("local default dev lo").count(), 2, "{once}");
    assert!(once.contains("::6/128"), "{once}");
    assert!(!sandbox.run(|| run(&job)).unwrap().changed);
    assert_eq!(routing(&sandbox), once);
    let cleanup = Job { cleanup_only: true, ..job };
    assert!(sandbox.run(|| run(&cleanup)).unwrap().changed);
    assert_eq!(routing(&sandbox), before);
    assert!(!sandbox.run(|| run(&cleanup)).unwrap().changed);
}

#[test]
fn a_route_table_that_is_no_number_is_refused_before_anything_is_touched() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let settings = Settings { tproxy_route_table: Mark::new("abc"), ..everything() };
    let error = sandbox.run(|| apply(&settings)).unwrap_err().to_string();
    assert!(error.contains("--istio-inbound-tproxy-route-table") && error.contains("`abc`"), "{error}");
    assert_eq!(sandbox.sh("nft list ruleset"), "");
}

#[test]
fn without_reconcile_another_configuration_is_left_alone_and_told() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    sandbox.run(|| apply(&captures_all())).unwrap();
    let before = sandbox.saved_rules();
    let other = Settings { proxy_port: Port::new("16001"), ..captures_all() };
    let job = Job { settings: other, ..Job::default() };
    let error = sandbox.run(|| run(&job)).unwrap_err().to_string();
    assert!(error.contains("--reconcile") && error.contains("REDIRECT --to-ports 16001"), "{error}");
    assert_eq!(sandbox.saved_rules(), before);
    sandbox.run(|| run(&Job { reconcile: true, ..job })).unwrap();
    assert!(sandbox.saved_rules().contains("--to-ports 16001"));
}

#[test]
fn foreign_rules_alone_need_no_reconcile() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    sandbox.sh("iptables-nft -t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE");
    assert!(sandbox.run(|| run(&Job { settings: captures_all(), ..Job::default() })).unwrap().changed);
}

#[test]
fn leftovers_in_a_family_that_is_off_stop_nobody() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    sandbox.sh("ip6tables-nft -t nat -N ISTIO_OUTPUT");
    let job = Job { settings: captures_all(), ..Job::default() };
    assert!(sandbox.run(|| run(&job)).unwrap().changed);
    assert!(!sandbox.run(|| run(&job)).unwrap().changed);
    assert!(sandbox.saved_rules().ends_with(":ISTIO_OUTPUT -\nCOMMIT\n"), "{}", sandbox.saved_rules());
    sandbox.run(|| run(&Job { reconcile: true, ..job })).unwrap();
    assert_eq!(sandbox.sh("nft list chains ip6 | grep ISTIO || :"), "");
}

#[test]
fn forced_rules_are_written_again() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let job = Job { settings: captures_all(), ..Job::default() };
    sandbox.run(|| run(&job)).unwrap();
    let handles = || sandbox.sh("nft -s -a list ruleset");
    let (rules, before) = (sandbox.saved_rules(), handles());
    assert!(sandbox.run(|| run(&Job { force: true, ..job })).unwrap().changed);
    assert_ne!(handles(), before);
    assert_eq!(sandbox.saved_rules(), rules);
}

#[test]
fn a_check_tells_what_somebody_did_to_the_rules() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(V4);
    let job = Job { settings: captures_all(), ..Job::default() };
    let words = || sandbox.run(|| check(&job)).unwrap();
    sandbox.run(|| apply(&captures_all())).unwrap();
    assert_eq!(words(), [""; 0]);
    sandbox.sh("iptables-nft -t nat -D OUTPUT -j ISTIO_OUTPUT; iptables-nft -t nat -F ISTIO_IN_REDIRECT;
         iptables-nft -t nat -A ISTIO_INBOUND -p tcp --dport 7 -j ACCEPT; iptables-nft -t mangle -N ISTIO_OLD");
    assert_eq!(
        words(),
        [
            "in chain ISTIO_INBOUND of table nat there is a rule that is not wanted: protocol tcp, port 7, accept",
            "in chain ISTIO_IN_REDIRECT of table nat the rule `-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006` is missing",
            "in chain OUTPUT of table nat the rule `-A OUTPUT -j ISTIO_OUTPUT` is missing",
            "chain ISTIO_OLD of table mangle is there but not wanted",
        ]
    );
    sandbox.run(|| apply(&captures_all())).unwrap();
    assert_eq!(words(), [""; 0]);
}

#[test]
fn a_check_tells_which_address_and_routes_are_gone() {
    if !available() {
        return;
    }
    let sandbox = Sandbox::with_addresses(DUAL);
    let job = Job { settings: everything(), ..Job::default() };
    let words = || sandbox.run(|| check(&job)).unwrap();
    sandbox.run(|| apply(&everything())).unwrap();
    assert_eq!(words(), [""; 0]);
    for (damage, missing) in [
        ("ip addr del ::6/128 dev lo", "address ::6/128 on lo is missing"),
        ("ip rule del fwmark 1337 lookup 133", "the IPv4 route of marked packets is missing"),
        ("ip route flush table 133", "the IPv4 route of marked packets is missing"),
        ("ip -6 rule del fwmark 1337 lookup 133", "the IPv6 route of marked packets is missing"),
        ("ip -6 route flush table 133", "the IPv6 route of marked packets is missing"),
    ] {
        sandbox.sh(damage);
        assert_eq!(words(), [missing], "{damage}");
        assert!(sandbox.run(|| apply(&everything())).unwrap().changed, "{damage}");
        assert_eq!(words(), [""; 0], "{damage}");
    }
}

#[test]
fn a_pod_with_users_of_its_own_is_redirected_too() {
    if !available() {
        return;
    }
    // A namespace that belongs to another user namespace, held by a process of its own.
    let mut holder = std::process::Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            "ip link set lo up; ip addr add 10.0.0.2/24 dev lo; echo ready; read end",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()), &mut line).unwrap();
    if line != "ready\n" {
        holder.wait().unwrap();
        assert_ne!(std::env::var("REQUIRE_NETNS").as_deref(), Ok("1"), "no user namespace can be made here");
        return;
    }
    let netns = sys::netns::Netns::open(&Path::new("/proc").join(holder.id().to_string()).join("ns/net")).unwrap();
    let applied = netns.run(|| apply(&captures_all())).unwrap();
    let again = netns.run(|| apply(&captures_all())).unwrap();
    let listed = netns.run(|| std::process::Command::new("nft").args(["list", "ruleset"]).output()).unwrap().unwrap();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(applied.unwrap().changed);
    assert!(!again.unwrap().changed);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("skuid 1337") && listed.contains("jump ISTIO_OUTPUT"), "{listed}");
}
