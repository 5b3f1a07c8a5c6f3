//! Every rule of every conformance case has a reason that people can read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fs;
use std::path::Path;

use iptables_rules::config::options::Options;
use iptables_rules::config::{HostFacts, Settings};
use iptables_rules::model::Family;
use iptables_rules::plan::{native, sidecar};
use iptables_rules::render::explain::{explain, explain_native};
use serde_json::Value;

/// What is said about rules that nobody thought of.
const UNKNOWN: &str = "A rule outside the known steps.";

fn options(case: &Value) -> Options {
    let mut options = Options::default();
    for (name, value) in case["config"].as_object().unwrap() {
        let text = value.as_str().unwrap_or_default().to_owned();
        let on = value.as_bool().unwrap_or(false);
        match name.as_str() {
            "istio-inbound-interception-mode" => options.mode = text,
            "istio-inbound-ports" => options.inbound_ports = text,
            "istio-local-exclude-ports" => options.inbound_ports_exclude = text,
            "istio-exclude-interfaces" => options.exclude_interfaces = text,
            "istio-service-cidr" => options.outbound_cidrs = text,
            "istio-service-exclude-cidr" => options.outbound_cidrs_exclude = text,
            "istio-outbound-ports" => options.outbound_ports = text,
            "istio-local-outbound-ports-exclude" => options.outbound_ports_exclude = text,
            "kube-virt-interfaces" => options.virtual_interfaces = text,
            "proxy-uid" => options.proxy_uid = text,
            "proxy-gid" => options.proxy_gid = text,
            "redirect-dns" => options.redirect_dns = on,
            "capture-all-dns" => options.capture_all_dns = on,
            "drop-invalid" => options.drop_invalid = on,
            _ => {}
        }
    }
    let env = |name: &str| case["env"][name].as_str().map(str::to_owned);
    options.owner_groups = env("ISTIO_OUTBOUND_OWNER_GROUPS").unwrap_or(options.owner_groups);
    options.owner_groups_exclude = env("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE").unwrap_or_default();
    options
}

fn facts(case: &Value) -> HostFacts {
    let servers = |key: &str| {
        let listed = case["host"][key].as_array().into_iter().flatten();
        listed.map(|server| server.as_str().unwrap().to_owned()).collect()
    };
    HostFacts {
        ipv6: case["host"]["ipv6"] == true,
        dns_servers_v4: servers("dns_servers_v4"),
        dns_servers_v6: servers("dns_servers_v6"),
        ..HostFacts::default()
    }
}

#[test]
fn every_rule_of_every_case_has_a_sentence_in_both_forms() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance/cases/sidecar");
    let mut seen = 0;
    for entry in fs::read_dir(cases).unwrap() {
        let path = entry.unwrap().path();
        let case: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if !["rules", "cni-pod"].contains(&case["kind"].as_str().unwrap_or_default()) {
            continue;
        }
        let (settings, captured) = (options(&case).settings().unwrap(), facts(&case));
        let settings = Settings { refuse_uncaptured: true, ..settings };
        let uncaptured = HostFacts { ipv6: false, uncaptured: Some(Family::V6), ..captured.clone() };
        for facts in [captured, uncaptured] {
            let plan = sidecar(&settings, &facts);
            for rule in plan.v4.iter().chain(&plan.v6) {
                assert_ne!(explain(rule), UNKNOWN, "{}: {rule}", path.display());
                seen += 1;
            }
            for rule in native::sidecar(&settings, &facts).rules {
                assert_ne!(explain_native(&rule), UNKNOWN, "{}: {rule}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 1000, "only {seen} rules");
}
