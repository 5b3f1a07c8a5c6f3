//! Rules in real network namespaces. Needs root; see `testkit::netns::available`.

use std::path::Path;

use testkit::api::Behaviour;
use testkit::netns::{Sandbox, available};
use testkit::process::Call;

use crate::call::{Node, TOKEN, api_with, plain_pod, sidecar_pod};

fn sandbox(node: &mut Node) -> Sandbox {
    let sandbox = Sandbox::with_addresses(&["10.0.0.2/24"]);
    node.set("CNI_NETNS", &sandbox.path().display().to_string());
    sandbox
}

#[test]
fn an_injected_pod_is_redirected() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[("traffic.sidecar.istio.io/excludeInboundPorts", "3306")]));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    assert_eq!(node.call().reason(&node.prev_result()), "redirect");
    let rules = sandbox.saved_rules();
    for rule in [
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 3306 -j RETURN",
        "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001",
    ] {
        assert!(rules.contains(rule), "{rule} is not in\n{rules}");
    }
    // The runtime may try the same sandbox again.
    assert_eq!(node.call().exit, 0);
    assert_eq!(sandbox.saved_rules(), rules);
}

#[test]
fn a_dual_stack_pod_whose_proxy_only_knows_ipv4_is_told_and_counted() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[]));
    let mut node = Node::with_agent(&api);
    let sandbox = Sandbox::with_addresses(&["10.0.0.2/24", "fd00:9::2/64"]);
    node.set("CNI_NETNS", &sandbox.path().display().to_string());
    let outcome = node.call();
    assert_eq!(outcome.reason(&node.prev_result()), "redirect");
    let entries: Vec<serde_json::Value> =
        outcome.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(entries[0]["level"] == "warn" && entries[0]["msg"].as_str().unwrap().contains("IPv6"), "{outcome:?}");
    assert_eq!(entries.last().unwrap()["uncaptured"], "IPv6");
    assert!(!sandbox.sh("ip6tables-nft-save").contains("ISTIO"));
}

#[test]
fn native_rules_are_set_and_checked_where_the_node_asks_for_them() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[]));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    node.conf["native_nftables"] = true.into();
    assert_eq!(node.call().reason(&node.prev_result()), "redirect");
    assert!(sandbox.sh("nft list ruleset").contains("table inet istio-proxy-nat"));
    assert!(!sandbox.saved_rules().contains("ISTIO"), "in one form only");
    node.set("CNI_COMMAND", "CHECK");
    assert_eq!(node.call().exit, 0);
    sandbox.sh("nft flush table inet istio-proxy-nat");
    let (code, message) = node.call().error();
    assert!(code == 106 && message.contains("istio-proxy-nat"), "{code} {message}");
}

#[test]
fn a_minimal_host_without_iptables_nft_or_a_shell_is_enough() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[]));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    let call = Call {
        env: node.env.iter().map(|(key, value)| (key.clone(), value.into())).collect(),
        stdin: node.conf.to_string(),
    };
    let observed = call.observe(Path::new(env!("CARGO_BIN_EXE_istio-cni")));
    assert_eq!((observed.programs, observed.processes), (0, 0));
    assert!(sandbox.saved_rules().contains("ISTIO_OUTPUT"));
}

#[test]
fn a_pod_outside_the_mesh_gets_no_rules() {
    if !available() {
        return;
    }
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    let before = sandbox.saved_rules();
    assert_eq!(node.call().reason(&node.prev_result()), "no-istio-proxy");
    assert_eq!(sandbox.saved_rules(), before);
}

#[test]
fn what_cannot_be_programmed_names_its_annotation_and_leaves_nothing_behind() {
    if !available() {
        return;
    }
    for (annotation, value, code) in [
        ("traffic.sidecar.istio.io/excludeInboundPorts", "*", 103),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "*", 103),
    ] {
        let api = api_with(sidecar_pod(&[(annotation, value)]));
        let mut node = Node::with_agent(&api);
        let sandbox = sandbox(&mut node);
        let before = sandbox.saved_rules();
        let (got, message) = node.call().error();
        assert!(got == code && message.contains(annotation), "{got} {message}");
        assert_eq!(sandbox.saved_rules(), before, "{annotation}");
    }
}

#[test]
fn a_tproxy_pod_gets_its_rules_and_routes() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[("sidecar.istio.io/interceptionMode", "TPROXY")]));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    assert_eq!(node.call().reason(&node.prev_result()), "redirect");
    assert!(sandbox.saved_rules().contains("-j TPROXY --on-port 15006"));
    assert!(sandbox.sh("ip rule").contains("fwmark 0x539 lookup 133"));
    assert!(sandbox.sh("ip route show table 133").contains("local default dev lo"));
}

#[test]
fn a_check_says_what_somebody_did_to_a_pod() {
    if !available() {
        return;
    }
    let pod = |excluded: &str| {
        let mode = ("sidecar.istio.io/interceptionMode", "TPROXY");
        sidecar_pod(&[mode, ("traffic.sidecar.istio.io/excludeInboundPorts", excluded)])
    };
    let api = api_with(pod("3306"));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    assert_eq!(node.call().exit, 0);
    let verb = |node: &mut Node, verb: &str| {
        node.set("CNI_COMMAND", verb);
        node.call()
    };
    let passes = |node: &mut Node| {
        let outcome = verb(node, "CHECK");
        assert_eq!((outcome.exit, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
    };
    passes(&mut node);
    for (damage, told) in [
        (
            "iptables-nft -t mangle -D PREROUTING -p tcp -j ISTIO_INBOUND",
            "`-A PREROUTING -p tcp -j ISTIO_INBOUND` is missing",
        ),
        ("iptables-nft -t nat -I ISTIO_OUTPUT -j RETURN", "a rule that is not wanted: return"),
        ("ip route flush table 133", "the IPv4 route of marked packets is missing"),
        ("nft flush ruleset", "chain ISTIO_OUTPUT of table nat is missing"),
    ] {
        sandbox.sh(damage);
        let before = sandbox.saved_rules();
        let (code, message) = verb(&mut node, "CHECK").error();
        assert!(code == 106 && message.contains("shop/web") && message.contains(told), "{damage}: {code} {message}");
        assert_eq!(sandbox.saved_rules(), before, "a check changes nothing");
        assert_eq!(verb(&mut node, "ADD").exit, 0, "{damage}");
        passes(&mut node);
    }
    api.set_pod("shop", "web", pod("3307"));
    let (code, message) = verb(&mut node, "CHECK").error();
    assert!(code == 106 && message.contains("--dport 3307") && message.contains("annotations"), "{code} {message}");
}

#[test]
fn a_check_of_a_pod_that_is_left_alone_passes_whatever_its_rules() {
    if !available() {
        return;
    }
    let api = api_with(plain_pod());
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    sandbox.sh("iptables-nft -t nat -N ISTIO_OUTPUT");
    node.set("CNI_COMMAND", "CHECK");
    assert_eq!(node.call().exit, 0);
    node.pod("kube-system", "dns");
    assert_eq!(node.call().exit, 0);
    assert_eq!(api.requests().len(), 1, "an excluded namespace needs no question");
}

#[test]
fn a_check_while_the_agent_starts_anew_asks_to_try_again() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "CHECK");
    let (code, message) = node.call().error();
    assert!(code == 11 && message.contains("istio-cni-node"), "{code} {message}");
    std::fs::write(node.kubeconfig(), "half a ").unwrap();
    assert_eq!(node.call().error().0, 11);
    // Nor does a check hold up the runtime for an API server that fails.
    let api = api_with(plain_pod());
    api.set_behaviour(Behaviour::Status(500));
    node.write_kubeconfig(&api, TOKEN);
    assert_eq!((node.call().error().0, api.requests().len()), (11, 1));
}

#[test]
fn a_namespace_without_an_address_is_told() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[]));
    let mut node = Node::with_agent(&api);
    let sandbox = Sandbox::new();
    node.set("CNI_NETNS", &sandbox.path().display().to_string());
    let (code, message) = node.call().error();
    assert!(code == 104 && message.contains("address"), "{code} {message}");
}

#[test]
fn owner_groups_of_the_runtimes_environment_count() {
    if !available() {
        return;
    }
    let api = api_with(sidecar_pod(&[]));
    let mut node = Node::with_agent(&api);
    let sandbox = sandbox(&mut node);
    node.set("ISTIO_OUTBOUND_OWNER_GROUPS", "7");
    node.set("PROXY_UID", "99");
    assert_eq!(node.call().exit, 0);
    let rules = sandbox.saved_rules();
    assert!(rules.contains("! --gid-owner 7 -j RETURN") && !rules.contains("--uid-owner 99"), "{rules}");
}

#[test]
fn the_hosts_own_namespace_is_never_touched() {
    if !available() {
        return;
    }
    // A sandbox of the test's plays the host: if this goes wrong, nothing of value is hit.
    let host = Sandbox::with_addresses(&["10.0.0.1/24"]);
    let api = host.run(|| api_with(sidecar_pod(&[])));
    let mut node = Node::with_agent(&api);
    node.set("CNI_NETNS", "/proc/self/ns/net");
    let before = host.saved_rules();

    let (code, message) = host.run(|| node.call()).error();
    assert!(code == 8 && message.contains("/proc/self/ns/net"), "{code} {message}");
    assert_eq!(api.requests(), [], "refused before anything else");
    // The override is for pods that are left alone.
    for overridden in ["1", "TRUE"] {
        node.set("CNI_NETNS_OVERRIDE", overridden);
        assert_eq!(host.run(|| node.call()).error().0, 8);
    }
    assert_eq!(host.saved_rules(), before);

    api.set_pod("shop", "web", plain_pod());
    assert_eq!(host.run(|| node.call()).reason(&node.prev_result()), "no-istio-proxy");
    node.unset("CNI_NETNS_OVERRIDE");
    assert_eq!(host.run(|| node.call()).error().0, 8);
    // The agent is let through in any case: without it the node cannot heal.
    node.pod("istio-system", "istio-cni-node-x");
    assert_eq!(host.run(|| node.call()).reason(&node.prev_result()), "self-agent-pod");
}

#[test]
fn ipv6_beside_a_proxy_for_ipv4_is_refused_if_the_pod_or_else_the_node_says_so() {
    if !available() {
        return;
    }
    for (pod, node_refuses, refuses) in
        [(None, true, true), (Some("refuse"), false, true), (Some("pass"), true, false), (None, false, false)]
    {
        let annotation = pod.map(|value| ("cni.istio.io/uncaptured-traffic", value));
        let api = api_with(sidecar_pod(annotation.as_slice()));
        let mut node = Node::with_agent(&api);
        if node_refuses {
            node.conf["refuse_uncaptured"] = true.into();
        }
        let sandbox = Sandbox::with_addresses(&["10.0.0.2/24", "fd00::2/64"]);
        node.set("CNI_NETNS", &sandbox.path().display().to_string());
        let outcome = node.call();
        assert_eq!(outcome.reason(&node.prev_result()), "redirect");
        assert_eq!(outcome.stderr.contains(r#""uncaptured":"IPv6""#), !refuses, "{}", outcome.stderr);
        assert_eq!(sandbox.saved_rules().contains("REJECT --reject-with tcp-reset"), refuses);
        node.set("CNI_COMMAND", "CHECK");
        assert_eq!(node.call().exit, 0);
    }
}
