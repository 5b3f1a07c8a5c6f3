//! Bad input: each gives an error object with the right code and a message that names the thing, and nothing else.

use std::process::{Command, Stdio};

use crate::call::{Node, api_with, sidecar_pod};

#[test]
fn a_malformed_configuration_is_refused() {
    let node = Node::without_agent();
    for (stdin, code, word) in [
        ("{\"cniVersion\":", 6, "JSON"),
        ("", 6, "JSON"),
        (r#"{"cniVersion":"1.0.0"}"#, 7, "name"),
        (r#"{"cniVersion":"7.0.0","name":"n"}"#, 1, "7.0.0"),
        (r#"{"cniVersion":"1.0.0","name":"n","exclude_namespaces":7}"#, 7, "invalid type"),
        (r#"{"cniVersion":"1.0.0","name":"n","prevResult":[]}"#, 7, "prevResult"),
    ] {
        let (got, message) = node.call_with(stdin).error();
        assert!(got == code && message.contains(word), "{stdin}: {got} {message}");
    }
}

#[test]
fn an_unknown_verb_and_missing_variables_are_named() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "REMOVE");
    let (code, message) = node.call().error();
    assert!(code == 4 && message.contains("REMOVE"), "{message}");
    node.set("CNI_COMMAND", "ADD");
    node.unset("CNI_NETNS");
    node.set("CNI_IFNAME", "");
    let (code, message) = node.call().error();
    assert!(code == 4 && message.contains("CNI_NETNS, CNI_IFNAME"), "{message}");
}

#[test]
fn unreadable_cni_args_are_named() {
    let mut node = Node::without_agent();
    for args in ["K8S_POD_NAME=a;VENDOR=1", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME"] {
        node.set("CNI_ARGS", args);
        let (code, message) = node.call().error();
        assert!(code == 4 && message.contains("CNI_ARGS"), "{message}");
    }
}

#[test]
fn a_missing_kubeconfig_points_at_the_agent() {
    let node = Node::without_agent();
    let (code, message) = node.call().error();
    let kubeconfig = node.kubeconfig().display().to_string();
    assert_eq!(code, 5, "{message}");
    for part in ["shop/web", kubeconfig.as_str(), "istio-cni-node"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_malformed_kubeconfig_points_at_the_agent() {
    let node = Node::without_agent();
    for (text, word) in [
        ("", "server"),
        ("\u{0}\u{1}", "server"),
        ("server: https://10.0.0.1:443\ninsecure-skip-tls-verify: true\n", "token"),
        ("server: 10.0.0.1\ninsecure-skip-tls-verify: true\ntoken: t\n", "10.0.0.1"),
        ("server: https://10.0.0.1:443\ncertificate-authority-data: bm8=\ntoken: t\n", "PEM"),
        ("server: https://10.0.0.1:443\ncertificate-authority-data: '%'\ntoken: t\n", "base64"),
    ] {
        std::fs::write(node.kubeconfig(), text).unwrap();
        let (code, message) = node.call().error();
        let kubeconfig = node.kubeconfig().display().to_string();
        assert!(code == 6 && message.contains(word) && message.contains(&kubeconfig), "{text}: {code} {message}");
    }
}

#[test]
fn an_invalid_annotation_is_named() {
    for (annotation, value) in [
        ("traffic.sidecar.istio.io/includeInboundPorts", "80,http"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.1"),
        ("sidecar.istio.io/interceptionMode", "tproxy"),
        ("cni.istio.io/uncaptured-traffic", "drop"),
    ] {
        let api = api_with(sidecar_pod(&[(annotation, value)]));
        let (code, message) = Node::with_agent(&api).call().error();
        assert!(code == 103 && message.contains(annotation) && message.contains(value), "{code} {message}");
    }
}

#[test]
fn a_sidecar_pod_whose_namespace_is_gone_does_not_start() {
    let api = api_with(sidecar_pod(&[]));
    let (code, message) = Node::with_agent(&api).call().error();
    assert!(code == 8 && message.contains("none-of-this-name"), "{code} {message}");
}

#[test]
fn del_succeeds_whatever_is_broken() {
    let mut node = Node::without_agent();
    node.set("CNI_COMMAND", "DEL");
    node.set("CNI_NETNS", "");
    for conf in [
        node.conf.to_string(),
        r#"{"cniVersion":"1.0.0","name":"n","prevResult":7,"exclude_namespaces":7,"cni_agent_run_dir":[]}"#.to_owned(),
        r#"{"name":"n"}"#.to_owned(),
    ] {
        let outcome = node.call_with(&conf);
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (0, ""), "{conf}: {outcome:?}");
    }
}

#[test]
fn version_answers_while_stdin_stays_open() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_istio-cni"))
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let held_open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held_open);
    assert!(output.status.success());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["cniVersion"], "1.1.0");
}
