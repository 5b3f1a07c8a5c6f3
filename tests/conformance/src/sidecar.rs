//! `sidecar/`: rule sets as iptables text, and the small functions below them.

use std::net::IpAddr;

use iptables_rules::apply::exec::Kind;
use iptables_rules::config::detect::local_address;
use iptables_rules::config::options::{Options, loopback_v4, owner_groups};
use iptables_rules::config::values::{Cidr, Selection};
use iptables_rules::config::{HostFacts, Settings};
use iptables_rules::plan::sidecar;
use iptables_rules::render::iptables::restore;
use iptables_rules::state::save_text;
use serde_json::{Map, Value, json};

use crate::cases::Case;
use crate::{Outcome, expect, pending};

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    let data = &case.data;
    let iptables = data["backend"] == "iptables";
    match case.kind.as_str() {
        "rules" if !iptables => crate::native::check(data).into(),
        "rules" => check(data).into(),
        "cni-pod" => check(data).and_then(|()| crate::plugin::maps_to(data)).into(),
        "unit" => unit(data)
            .unwrap_or_else(|| Outcome::Pending(format!("sidecar/unit, {}", data["unit"].as_str().unwrap_or("?")))),
        _ => pending(case),
    }
}

/// Runs a case about one function; `None` when that function is not ours yet.
fn unit(data: &Value) -> Option<Outcome> {
    let cases = data["input"]["cases"].as_array();
    let each = |judge: &dyn Fn(&Value) -> Value| cases.into_iter().flatten().map(judge).collect::<Vec<Value>>();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (want, got) = match data["unit"].as_str()? {
        "local-ip" => (data["expected"].clone(), local_ip(&data["input"])),
        "cidr-split" => (data["expected"]["results"].clone(), each(&cidr_split).into()),
        "validate-loopback-cidr" => {
            let valid = |value: &Value| loopback_v4(value.as_str().unwrap_or_default()).is_ok().into();
            (data["expected"]["valid"].clone(), each(&valid).into())
        }
        "validate-owner-groups" => {
            let valid = |value: &Value| owner_groups(&text(value, "include"), &text(value, "exclude")).is_ok().into();
            (data["expected"]["valid"].clone(), each(&valid).into())
        }
        "parse-state" => (data["expected"].clone(), parse_state(&text(&data["input"], "text"))),
        "iptables-version-parse" => {
            let kinds: Vec<Kind> = lines(&data["input"]["cases"]).iter().map(|line| Kind::parse(line)).collect();
            let version = |kind: &Kind| kind.version.0.map(|number| number.to_string()).join(".");
            let versions: Vec<String> = kinds.iter().map(version).collect();
            let nft: Vec<bool> = kinds.iter().map(|kind| kind.nft).collect();
            (data["expected"].clone(), json!({"version": versions, "nft": nft}))
        }
        _ => return None,
    };
    Some(expect("result", &want, &got).into())
}

/// The command hands addresses over with IPv4 first, as the kernel lists them.
fn local_ip(input: &Value) -> Value {
    let mut addresses: Vec<IpAddr> =
        lines(&input["interface_addresses"]).iter().filter_map(|address| address.parse().ok()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    match local_address(&addresses, input["dual_stack"] == true) {
        Ok(found) => json!({"ipv6_enabled": found.ipv6, "host_ip": found.host.to_string()}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// Chains and their rules, by table.
fn parse_state(text: &str) -> Value {
    let parsed = save_text::parse(text);
    parsed.tables.iter().map(|(table, chains)| (table.as_str().to_owned(), json!(chains))).collect::<Map<_, _>>().into()
}

fn cidr_split(list: &Value) -> Value {
    let selected = Selection::parse(list.as_str().unwrap_or_default(), str::parse::<Cidr>);
    let Ok(selected) = selected else { return json!("error") };
    let of = |v4: bool| -> Vec<String> {
        selected.listed().iter().filter(|cidr| cidr.address.is_ipv4() == v4).map(Cidr::to_string).collect()
    };
    json!({"wildcard": selected == Selection::All, "v4": of(true), "v6": of(false)})
}

/// The settings of a case's `config` and `env`.
///
/// # Errors
/// A flag that nobody knows, or a value that cannot be.
pub fn settings(case: &Value) -> Result<Settings, String> {
    let mut options = Options::default();
    for (flag, value) in case["config"].as_object().into_iter().flatten() {
        set(&mut options, flag, value).ok_or_else(|| format!("unknown flag --{flag}, or its value {value}"))?;
    }
    for (name, value) in case["env"].as_object().into_iter().flatten() {
        let value = value.as_str().ok_or("an environment variable that is no text")?.to_owned();
        match name.as_str() {
            "ISTIO_OUTBOUND_OWNER_GROUPS" => options.owner_groups = value,
            "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE" => options.owner_groups_exclude = value,
            "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR" => options.loopback_v4 = value,
            other => return Err(format!("unknown variable {other}")),
        }
    }
    options.settings().map_err(|error| error.to_string())
}

fn set(options: &mut Options, flag: &str, value: &Value) -> Option<()> {
    let text = match flag {
        "envoy-port" => &mut options.envoy_port,
        "inbound-capture-port" => &mut options.inbound_capture_port,
        "inbound-tunnel-port" => &mut options.inbound_tunnel_port,
        "proxy-uid" => &mut options.proxy_uid,
        "istio-inbound-tproxy-mark" => &mut options.tproxy_mark,
        "istio-inbound-tproxy-route-table" => &mut options.tproxy_route_table,
        "proxy-gid" => &mut options.proxy_gid,
        "istio-inbound-interception-mode" => &mut options.mode,
        "istio-inbound-ports" => &mut options.inbound_ports,
        "istio-local-exclude-ports" => &mut options.inbound_ports_exclude,
        "istio-service-cidr" => &mut options.outbound_cidrs,
        "istio-service-exclude-cidr" => &mut options.outbound_cidrs_exclude,
        "istio-outbound-ports" => &mut options.outbound_ports,
        "istio-local-outbound-ports-exclude" => &mut options.outbound_ports_exclude,
        "istio-exclude-interfaces" => &mut options.exclude_interfaces,
        "kube-virt-interfaces" => &mut options.virtual_interfaces,
        _ => return set_switch(options, flag, value.as_bool()?),
    };
    value.as_str()?.clone_into(text);
    Some(())
}

fn set_switch(options: &mut Options, flag: &str, on: bool) -> Option<()> {
    match flag {
        "redirect-dns" => options.redirect_dns = on,
        "capture-all-dns" => options.capture_all_dns = on,
        "drop-invalid" => options.drop_invalid = on,
        "dual-stack" => options.dual_stack = on,
        // These say what to do with the rules, not which rules there are.
        "dry-run" | "reconcile" | "cleanup-only" | "force-apply" => {}
        _ => return None,
    }
    Some(())
}

/// The facts of a case's `host`.
#[must_use]
pub fn facts(case: &Value) -> HostFacts {
    let servers = |key: &str| lines(&case["host"][key]);
    HostFacts {
        ipv6: case["host"]["ipv6"].as_bool().unwrap_or(false),
        dns_servers_v4: servers("dns_servers_v4"),
        dns_servers_v6: servers("dns_servers_v6"),
        ..HostFacts::default()
    }
}

/// Compares the rules of a case strictly: the text must be equal line by line.
///
/// # Errors
/// What was expected and what came out.
pub fn check(case: &Value) -> Result<(), String> {
    let plan = sidecar(&settings(case)?, &facts(case));
    for (family, rules) in [("v4", &plan.v4), ("v6", &plan.v6)] {
        let (want, got) = (lines(&case["expected"][family]), restore(rules));
        if want != got {
            return Err(format!("{family}: expected\n{}\n  got\n{}", want.join("\n"), got.join("\n")));
        }
    }
    Ok(())
}

/// The texts of a list.
#[must_use]
pub fn lines(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
