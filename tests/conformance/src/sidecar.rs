//! `sidecar/`: rule sets as iptables text.

use iptables_rules::config::options::Options;
use iptables_rules::config::{HostFacts, Settings};
use iptables_rules::plan::sidecar;
use iptables_rules::render::iptables::restore;
use serde_json::Value;

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
    }
}

/// Runs one case of kind `rules` or `cni-pod` strictly: the text must be equal line by line.
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
