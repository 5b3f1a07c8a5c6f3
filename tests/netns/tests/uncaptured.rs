//! A pod with addresses of both families whose proxy handles IPv4 only: what IPv6 can do by default, and where it is
//! refused. Real sockets, in every form of the rules.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use iptables_rules::apply::{Applied, Flavour, Form, Job, check, run};
use iptables_rules::config::{Mode, Port, Selection, Settings};
use iptables_rules::model::Family;
use testkit::netns::{Sandbox, available};
use testkit::traffic::{ask_tcp, ask_udp, says, serve_tcp, serve_udp};

/// An ordinary user, and the proxy's.
const APP: (u32, u32) = (1000, 1000);
const PROXY: (u32, u32) = (1337, 1337);

/// Every way to put rules in place.
const WAYS: [(Form, Option<Flavour>); 3] =
    [(Form::Compatible, None), (Form::Native, None), (Form::Compatible, Some(Flavour::Legacy))];

fn pair() -> (Sandbox, Sandbox) {
    let (pod, neighbour) = Sandbox::pair(&["10.77.0.2/24", "fd77::2/64"], &["10.77.0.3/24", "fd77::3/64"]);
    for (port, name) in [(8080, "app"), (15020, "agent"), (15008, "tunnel")] {
        serve_tcp(&pod, port, name);
    }
    // The proxy handles IPv4 only.
    for (port, name) in [(15001, "outbound"), (15006, "inbound")] {
        serve_ipv4(&pod, port, name);
    }
    for (port, name) in [(9090, "server"), (15020, "server")] {
        serve_tcp(&neighbour, port, name);
    }
    serve_udp(&neighbour, (0, 0), "[fd77::3]:53", "resolver");
    serve_udp(&neighbour, (0, 0), "[fd77::3]:54", "other");
    (pod, neighbour)
}

fn serve_ipv4(sandbox: &Sandbox, port: u16, name: &'static str) {
    let listener = sandbox.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(name.as_bytes())))
    });
}

fn captures_all() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: vec![Port::new("15020")],
        outbound_cidrs: Selection::All,
        outbound_cidrs_exclude: vec!["fd78::/16".parse().unwrap()],
        outbound_ports_exclude: vec![Port::new("15020")],
        ..Settings::default()
    }
}

fn refusing() -> Settings {
    Settings { refuse_uncaptured: true, ..captures_all() }
}

fn job((form, flavour): (Form, Option<Flavour>), settings: &Settings) -> Job {
    Job { settings: settings.clone(), form, flavour, reconcile: true, ..Job::default() }
}

fn apply(pod: &Sandbox, way: (Form, Option<Flavour>), settings: &Settings) -> Applied {
    pod.run(|| run(&job(way, settings))).unwrap_or_else(|error| panic!("{way:?}: {error}"))
}

#[track_caller]
fn refused(answer: Result<String, String>) {
    assert_eq!(answer, Err("connection refused".to_owned()));
}

/// All rules, with the numbers that tell a rule from its equal.
fn listing(sandbox: &Sandbox) -> String {
    sandbox.sh("nft -s -a list ruleset; iptables-legacy-save | grep ^-; ip6tables-legacy-save | grep ^-; true")
}

#[test]
fn by_default_ipv6_passes_around_the_proxy_and_that_is_told() {
    if !available() {
        return;
    }
    let (pod, neighbour) = pair();
    let applied = apply(&pod, WAYS[0], &captures_all());
    assert_eq!((applied.uncaptured, applied.ipv6), (Some(Family::V6), false));
    assert!(applied.notes.iter().any(|note| note.contains("IPv6") && note.contains("around")), "{applied:?}");
    says(ask_tcp(&neighbour, APP, "[fd77::2]:8080"), "app");
    says(ask_tcp(&pod, APP, "[fd77::3]:9090"), "server");
    says(ask_tcp(&neighbour, APP, "10.77.0.2:8080"), "inbound");
    assert!(!pod.sh("nft list ruleset").contains("ip6"));
    let captured = apply(&pod, WAYS[0], &Settings { dual_stack: true, ..captures_all() });
    assert_eq!((captured.uncaptured, captured.notes), (None, Vec::new()));
}

#[test]
fn what_would_be_captured_is_refused_at_once_and_ipv4_goes_to_the_proxy() {
    if !available() {
        return;
    }
    for way in WAYS {
        let (pod, neighbour) = pair();
        assert_eq!(apply(&pod, way, &refusing()).uncaptured, Some(Family::V6));
        refused(ask_tcp(&neighbour, APP, "[fd77::2]:8080"));
        refused(ask_tcp(&pod, APP, "[fd77::3]:9090"));
        // Also where nobody would answer.
        refused(ask_tcp(&pod, APP, "[fd77::99]:9090"));
        says(ask_tcp(&neighbour, APP, "10.77.0.2:8080"), "inbound");
        says(ask_tcp(&pod, APP, "10.77.0.3:9090"), "outbound");
    }
}

#[test]
fn what_would_not_be_captured_passes() {
    if !available() {
        return;
    }
    for way in WAYS {
        let (pod, neighbour) = pair();
        pod.sh("ip addr add fd78::2/64 dev eth0 nodad");
        neighbour.sh("ip addr add fd78::3/64 dev eth0 nodad");
        apply(&pod, way, &refusing());
        says(ask_tcp(&pod, PROXY, "[fd77::3]:9090"), "server");
        says(ask_tcp(&neighbour, APP, "[fd77::2]:15020"), "agent");
        says(ask_tcp(&neighbour, APP, "[fd77::2]:15008"), "tunnel");
        says(ask_tcp(&pod, APP, "[fd77::3]:15020"), "server");
        says(ask_tcp(&pod, APP, "[::1]:8080"), "app");
        says(ask_tcp(&pod, APP, "[fd77::2]:8080"), "app");
        says(ask_udp(&pod, APP, "[fd77::3]:53"), "resolver");
        if way.0 == Form::Compatible {
            // Istio's native rules send an excluded range of a family that is off to the proxy.
            says(ask_tcp(&pod, APP, "[fd78::3]:9090"), "server");
        }
        // Whoever was forgotten must be found again.
        pod.sh("ip -6 neigh flush all");
        neighbour.sh("ip -6 neigh flush all");
        says(ask_tcp(&neighbour, APP, "[fd77::2]:15020"), "agent");
        says(ask_tcp(&pod, PROXY, "[fd77::3]:9090"), "server");
    }
}

#[test]
fn transparent_interception_refuses_the_same() {
    if !available() {
        return;
    }
    for way in WAYS {
        let (pod, neighbour) = pair();
        apply(&pod, way, &Settings { mode: Mode::Tproxy, ..refusing() });
        refused(ask_tcp(&neighbour, APP, "[fd77::2]:8080"));
        refused(ask_tcp(&pod, APP, "[fd77::3]:9090"));
        says(ask_tcp(&neighbour, APP, "[fd77::2]:15020"), "agent");
        says(ask_tcp(&pod, PROXY, "[fd77::3]:9090"), "server");
    }
}

#[test]
fn dns_over_ipv6_is_refused_where_it_would_be_captured() {
    if !available() {
        return;
    }
    for way in WAYS {
        let (pod, _neighbour) = pair();
        apply(&pod, way, &Settings { redirect_dns: true, capture_all_dns: true, ..refusing() });
        // The sender learns it from its own kernel, in one way or another.
        let answer = ask_udp(&pod, APP, "[fd77::3]:53").unwrap_err();
        assert!(["connection refused", "permission denied"].contains(&answer.as_str()), "{way:?}: {answer}");
        says(ask_udp(&pod, APP, "[fd77::3]:54"), "other");
        says(ask_udp(&pod, PROXY, "[fd77::3]:53"), "resolver");
    }
}

#[test]
fn a_connection_that_has_begun_goes_on() {
    if !available() {
        return;
    }
    for way in [WAYS[0], WAYS[2]] {
        let (pod, neighbour) = pair();
        let listener = neighbour.run(|| TcpListener::bind("[fd77::3]:7000")).unwrap();
        let to: SocketAddr = "[fd77::3]:7000".parse().unwrap();
        let mut near = pod.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(2))).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        apply(&pod, way, &refusing());
        let mut byte = [0];
        near.write_all(b"a").unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(b"b").unwrap();
        near.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"b");
    }
}

#[test]
fn applying_again_changes_nothing_a_lost_rule_is_told_and_clean_up_leaves_nothing() {
    if !available() {
        return;
    }
    for way in WAYS {
        let (pod, neighbour) = pair();
        let before = listing(&pod);
        assert!(apply(&pod, way, &refusing()).changed);
        let rules = listing(&pod);
        let again = apply(&pod, way, &refusing());
        assert!(!again.changed, "{way:?}: {again:?}");
        assert_eq!(rules, listing(&pod), "{way:?}");
        // Switched off, only the refusal goes.
        assert!(apply(&pod, way, &captures_all()).changed);
        says(ask_tcp(&neighbour, APP, "10.77.0.2:8080"), "inbound");
        assert!(!listing(&pod).contains("REJECT") && !listing(&pod).contains("reject"), "{way:?}");
        apply(&pod, way, &refusing());
        pod.run(|| run(&Job { cleanup_only: true, ..job(way, &refusing()) })).unwrap();
        assert_eq!(before, listing(&pod), "{way:?}");
        says(ask_tcp(&neighbour, APP, "[fd77::2]:8080"), "app");
    }
}

#[test]
fn check_sees_a_refusal_that_is_missing_and_one_that_is_not_wanted() {
    if !available() {
        return;
    }
    for (way, lose, lost) in [
        (WAYS[0], "ip6tables-nft -D INPUT 1", "-I INPUT 1 -p tcp --syn -j ISTIO_INBOUND"),
        (WAYS[1], "nft flush chain inet istio-proxy-filter prerouting", "chain prerouting differ"),
    ] {
        let (pod, _neighbour) = pair();
        let differences = |settings: &Settings| pod.run(|| check(&job(way, settings))).unwrap();
        apply(&pod, way, &refusing());
        assert!(differences(&refusing()).is_empty(), "{way:?}");
        assert!(!differences(&captures_all()).is_empty(), "{way:?}");
        pod.sh(lose);
        let found = differences(&refusing());
        assert!(found.len() == 1 && found[0].contains(lost), "{found:?}");
    }
}

#[test]
fn rules_of_others_in_the_same_table_are_asked_after_ours() {
    if !available() {
        return;
    }
    let (pod, neighbour) = pair();
    pod.sh("ip6tables-nft -A INPUT -p tcp --dport 15020 -j REJECT --reject-with tcp-reset; ip6tables-nft -A INPUT -p tcp --dport 8080 -j ACCEPT");
    let before = pod.saved_rules();
    apply(&pod, WAYS[0], &refusing());
    refused(ask_tcp(&neighbour, APP, "[fd77::2]:15020"));
    refused(ask_tcp(&neighbour, APP, "[fd77::2]:8080"));
    pod.run(|| run(&Job { cleanup_only: true, ..job(WAYS[0], &refusing()) })).unwrap();
    assert_eq!(before, pod.saved_rules());
}
