//! The two lists at the head of the log that tell with what the command runs: variables, and effective values.
//!
//! Names and order are Istio's; support tools and people look for them.

use crate::cli::args::Request;
use crate::config::HostFacts;

/// Variables that are listed raw, also when they are not set.
const VARIABLES: [&str; 12] = [
    "ENVOY_PORT",
    "INBOUND_CAPTURE_PORT",
    "ISTIO_INBOUND_INTERCEPTION_MODE",
    "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
    "ISTIO_INBOUND_PORTS",
    "ISTIO_OUTBOUND_PORTS",
    "ISTIO_LOCAL_EXCLUDE_PORTS",
    "ISTIO_EXCLUDE_INTERFACES",
    "ISTIO_SERVICE_CIDR",
    "ISTIO_SERVICE_EXCLUDE_CIDR",
    "ISTIO_META_DNS_CAPTURE",
    "INVALID_DROP",
];

/// The variables as they are in the process; `env` looks one up.
pub fn environment(native: bool, env: impl Fn(&str) -> String) -> String {
    let backend = if native { "nftables" } else { "iptables" };
    let lines = VARIABLES.iter().map(|name| format!("{name}={}", env(name)));
    list(&format!("Istio {backend} environment:"), lines)
}

/// The values that are in effect.
pub fn config(request: &Request, facts: &HostFacts) -> String {
    let options = &request.options;
    let servers = format!("[{}],[{}]", facts.dns_servers_v4.join(" "), facts.dns_servers_v6.join(" "));
    let word = |on: bool| if on { "true" } else { "false" };
    let values: [(&str, &str); 31] = [
        ("PROXY_PORT", &options.envoy_port),
        ("PROXY_INBOUND_CAPTURE_PORT", &options.inbound_capture_port),
        ("PROXY_TUNNEL_PORT", &options.inbound_tunnel_port),
        ("PROXY_UID", &options.proxy_uid),
        ("PROXY_GID", &options.proxy_gid),
        ("INBOUND_INTERCEPTION_MODE", &options.mode),
        ("INBOUND_TPROXY_MARK", &options.tproxy_mark),
        ("INBOUND_TPROXY_ROUTE_TABLE", &options.tproxy_route_table),
        ("INBOUND_PORTS_INCLUDE", &options.inbound_ports),
        ("INBOUND_PORTS_EXCLUDE", &options.inbound_ports_exclude),
        ("OUTBOUND_OWNER_GROUPS_INCLUDE", &options.owner_groups),
        ("OUTBOUND_OWNER_GROUPS_EXCLUDE", &options.owner_groups_exclude),
        ("OUTBOUND_IP_RANGES_INCLUDE", &options.outbound_cidrs),
        ("OUTBOUND_IP_RANGES_EXCLUDE", &options.outbound_cidrs_exclude),
        ("OUTBOUND_PORTS_INCLUDE", &options.outbound_ports),
        ("OUTBOUND_PORTS_EXCLUDE", &options.outbound_ports_exclude),
        ("KUBE_VIRT_INTERFACES", &options.virtual_interfaces),
        ("ENABLE_INBOUND_IPV6", word(facts.ipv6)),
        ("DUAL_STACK", word(options.dual_stack)),
        ("DNS_CAPTURE", word(options.redirect_dns)),
        ("DROP_INVALID", word(options.drop_invalid)),
        ("CAPTURE_ALL_DNS", word(options.capture_all_dns)),
        ("DNS_SERVERS", &servers),
        ("NETWORK_NAMESPACE", &request.network_namespace),
        ("CNI_MODE", word(request.cni_mode)),
        ("EXCLUDE_INTERFACES", &options.exclude_interfaces),
        ("RECONCILE", word(request.reconcile)),
        ("CLEANUP_ONLY", word(request.cleanup_only)),
        ("FORCE_APPLY", word(request.force_apply)),
        ("NATIVE_NFTABLES", word(request.native_nftables)),
        ("FORCE_IPTABLES_BINARY", &request.force_iptables_binary),
    ];
    list("Istio config:", values.iter().map(|(name, value)| format!("{name}={value}")))
}

fn list(title: &str, lines: impl Iterator<Item = String>) -> String {
    lines.fold(title.to_owned(), |text, line| text + "\n" + &line)
}
