//! Answers of a kernel that lies, save text from nowhere, and what a runtime, an agent or an API server might hand the
//! plugin: nothing panics and nothing takes for ever. Needs no namespace. `tests/fuzz` throws far more at the same code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../../fuzz/plugin_targets.rs"]
mod plugin_targets;

#[path = "../../fuzz/targets.rs"]
mod targets;

use agent_api::kubeconfig::ServerTrust;
use agent_api::{Answer, Kubeconfig, Verdict};
use iptables_rules::model::Family;
use iptables_rules::nft::message::Transaction;
use iptables_rules::plan::sidecar;
use iptables_rules::render::compat::{OwnerForm, encode};
use iptables_rules::render::iptables::restore;
use netns_tests::random::{check, facts, settings};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

/// All that the plugin reads.
const PLUGIN: [fn(&[u8]); 5] = [
    plugin_targets::stdin,
    plugin_targets::cni_args,
    plugin_targets::kubeconfig,
    plugin_targets::pod,
    plugin_targets::reply,
];

/// Places to change, and what to write there.
type Changes = Vec<(Index, u8)>;

fn changes() -> impl Strategy<Value = Changes> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(4), Just(0xff), Just(b'-'), Just(b'\n'), Just(b'"'), Just(b',')];
    vec((any::<Index>(), byte), 0..12)
}

fn changed(mut bytes: Vec<u8>, changes: &Changes, end: Index) -> Vec<u8> {
    if !bytes.is_empty() {
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = *value;
        }
        bytes.truncate(end.index(bytes.len() + 1));
    }
    bytes
}

#[test]
fn random_bytes_are_no_answer() {
    check(file!(), 3000, vec(any::<u8>(), 0..512), |bytes| {
        targets::netlink(&bytes);
        targets::save_text(&bytes);
        for read in PLUGIN {
            read(&bytes);
        }
        Ok(())
    });
}

#[test]
fn damaged_rules_are_read_or_left() {
    check(file!(), 1500, (settings(), facts(), changes(), any::<Index>()), |(settings, facts, changes, end)| {
        let plan = sidecar(&settings, &facts);
        let mut transaction = Transaction::begin(1);
        for rule in &plan.v4 {
            for owners in [OwnerForm::Extension, OwnerForm::Metadata] {
                let exprs = encode(rule, Family::V4, owners).unwrap();
                transaction.append_rule(Family::V4, rule.table, rule.chain, &exprs);
            }
        }
        let (bytes, _) = transaction.finish();
        targets::netlink(&bytes);
        targets::netlink(&changed(bytes, &changes, end));
        Ok(())
    });
}

#[test]
fn damaged_save_text_is_read_or_left() {
    check(file!(), 1500, (settings(), facts(), changes(), any::<Index>()), |(settings, facts, changes, end)| {
        let text = restore(&sidecar(&settings, &facts).v4).join("\n").into_bytes();
        targets::save_text(&text);
        targets::save_text(&changed(text, &changes, end));
        Ok(())
    });
}

/// What a runtime, an agent and an API server hand the plugin when all is well.
fn well_formed() -> [Vec<u8>; 5] {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "istio-cni", "plugin_log_level": "info",
        "cni_agent_run_dir": "/var/run/istio-cni", "exclude_namespaces": ["kube-system"],
        "pod_namespace": "istio-system",
        "prevResult": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
            "ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.0.0.10"]}}
    });
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u";
    let kubeconfig = Kubeconfig {
        server: "https://[2001:db8::1]:6443".to_owned(),
        trust: ServerTrust::CaData("Y2E=".to_owned()),
        token: "header.payload.signature".to_owned(),
    };
    let pod = json!({
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": {
            "sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "TPROXY",
            "traffic.sidecar.istio.io/includeOutboundIPRanges": "10.0.0.0/8,2001:db8::/32",
            "traffic.sidecar.istio.io/excludeInboundPorts": "3306,8080",
            "traffic.sidecar.istio.io/kubevirtInterfaces": "net1"}},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"],
            "securityContext": {"runAsUser": 1337}, "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}]}]}
    });
    let redirect = mesh::Redirect::from_pod(&serde_json::from_value(pod.clone()).unwrap()).unwrap();
    let answer = Answer { verdict: Verdict::Redirect, redirection: redirect.to_texts(), ..Answer::default() };
    let answer = json!(answer).to_string();
    let (head, length) = ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:", answer.len());
    let reply = format!("{head} {length}\r\n\r\n{answer}");
    [conf.to_string(), args.to_owned(), kubeconfig.render(), pod.to_string(), reply].map(String::into_bytes)
}

#[test]
fn what_the_plugin_is_handed_may_be_damaged() {
    let originals = well_formed();
    // Undamaged, all of it is understood: otherwise this would try the first refusal only.
    let text = |which: usize| String::from_utf8(originals[which].clone()).unwrap();
    assert!(cni::NetConf::parse(&originals[0]).unwrap().unchanged_result().is_ok());
    assert_eq!(cni::PodArgs::parse(&text(1)).unwrap().name, "web");
    assert!(Kubeconfig::parse(&text(2)).is_ok());
    let pod: mesh::Pod = serde_json::from_str(&text(3)).unwrap();
    assert!(matches!(mesh::decide(&pod), Ok(mesh::Decision::Redirect(_))));
    let answer: Answer = serde_json::from_str(text(4).split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert!(mesh::Redirect::from_texts(&answer.redirection).is_ok());
    check(file!(), 4000, (0..originals.len(), changes(), any::<Index>()), |(which, changes, end)| {
        // Whole as often as cut short.
        let cut = changed(originals[which].clone(), &changes, end);
        PLUGIN[which](&cut);
        let mut whole = originals[which].clone();
        whole[..cut.len()].copy_from_slice(&cut);
        PLUGIN[which](&whole);
        Ok(())
    });
}
