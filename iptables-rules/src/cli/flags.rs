//! Every flag with its variables and its default, as a table.
//!
//! The names are Istio's. A variable named later in a row wins over one named before it.

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// On or off; alone it means on.
    Switch,
    /// A number from 0 to 65535.
    Port,
    /// A length of time.
    Duration,
}

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name without its dashes.
    pub name: &'static str,
    /// Letter, if it has one.
    pub short: Option<char>,
    /// Variables, the strongest last.
    pub env: &'static [&'static str],
    /// What it takes.
    pub kind: Kind,
    /// Value when neither the command line nor the environment has one.
    pub default: &'static str,
    /// Word for the value in the help.
    pub value: &'static str,
    /// Sentence for the help.
    pub help: &'static str,
}

const fn text(
    name: &'static str,
    short: char,
    env: &'static [&'static str],
    default: &'static str,
    value: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, short: Some(short), env, kind: Kind::Text, default, value, help }
}

const fn long_text(name: &'static str, env: &'static [&'static str], value: &'static str, help: &'static str) -> Flag {
    Flag { name, short: None, env, kind: Kind::Text, default: "", value, help }
}

const fn switch(name: &'static str, env: &'static [&'static str], help: &'static str) -> Flag {
    Flag { name, short: None, env, kind: Kind::Switch, default: "false", value: "BOOL", help }
}

/// All flags that describe rules and what to do with them.
pub const FLAGS: [Flag; 33] = [
    // The only one of Istio's without a variable.
    text("envoy-port", 'p', &[], "15001", "PORT", "Port outbound TCP is redirected to"),
    text("inbound-capture-port", 'z', &["INBOUND_CAPTURE_PORT"], "15006", "PORT", "Port inbound TCP is redirected to"),
    text(
        "inbound-tunnel-port",
        'e',
        &["INBOUND_TUNNEL_PORT"],
        "15008",
        "PORT",
        "Port of tunnels, which inbound capture leaves alone",
    ),
    text(
        "proxy-uid",
        'u',
        &["PROXY_UID"],
        "",
        "LIST",
        "UIDs whose traffic is the proxy's own; empty: that of the user $ENVOY_USER (istio-proxy), or 1337",
    ),
    text("proxy-gid", 'g', &["PROXY_GID"], "", "LIST", "GIDs whose traffic is the proxy's own; empty: the UIDs"),
    text(
        "istio-inbound-interception-mode",
        'm',
        &["ISTIO_INBOUND_INTERCEPTION_MODE"],
        "",
        "MODE",
        "TPROXY, or REDIRECT, which everything else means too",
    ),
    text(
        "istio-inbound-ports",
        'b',
        &["ISTIO_INBOUND_PORTS"],
        "",
        "LIST",
        "Inbound ports to capture; `*` for all, empty for none",
    ),
    text(
        "istio-local-exclude-ports",
        'd',
        &["ISTIO_LOCAL_EXCLUDE_PORTS"],
        "",
        "LIST",
        "Inbound ports not to capture when all others are",
    ),
    text(
        "istio-exclude-interfaces",
        'c',
        &["ISTIO_EXCLUDE_INTERFACES"],
        "",
        "LIST",
        "Interfaces whose traffic is never captured, in or out",
    ),
    text(
        "istio-service-cidr",
        'i',
        &["ISTIO_SERVICE_CIDR"],
        "",
        "LIST",
        "Outbound destinations to capture; `*` for all, empty for none",
    ),
    text(
        "istio-service-exclude-cidr",
        'x',
        &["ISTIO_SERVICE_EXCLUDE_CIDR"],
        "",
        "LIST",
        "Outbound destinations never captured",
    ),
    text(
        "istio-outbound-ports",
        'q',
        &["ISTIO_OUTBOUND_PORTS"],
        "",
        "LIST",
        "Outbound ports to capture whatever the destination",
    ),
    text(
        "istio-local-outbound-ports-exclude",
        'o',
        &["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"],
        "",
        "LIST",
        "Outbound ports never captured",
    ),
    text(
        "kube-virt-interfaces",
        'k',
        &["KUBE_VIRT_INTERFACES"],
        "",
        "LIST",
        "Interfaces whose incoming traffic counts as outbound",
    ),
    text(
        "istio-inbound-tproxy-mark",
        't',
        &["ISTIO_INBOUND_TPROXY_MARK"],
        "1337",
        "MARK",
        "Mark of inbound packets in TPROXY mode",
    ),
    text(
        "istio-inbound-tproxy-route-table",
        'r',
        &["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"],
        "133",
        "TABLE",
        "Route table of inbound packets in TPROXY mode",
    ),
    Flag { short: Some('n'), ..switch("dry-run", &["DRY_RUN"], "Print the rules and change nothing") },
    switch("explain", &[], "Print the rules, a sentence about each, and change nothing"),
    Flag {
        name: "iptables-probe-port",
        short: None,
        env: &["IPTABLES_PROBE_PORT"],
        kind: Kind::Port,
        default: "15002",
        value: "PORT",
        help: "Port that --run-validation connects to",
    },
    Flag {
        name: "probe-timeout",
        short: None,
        env: &["PROBE_TIMEOUT"],
        kind: Kind::Duration,
        default: "5s",
        value: "DURATION",
        help: "Longest time that --run-validation takes",
    },
    switch("skip-rule-apply", &["SKIP_RULE_APPLY"], "Leave the rules as they are"),
    switch("run-validation", &["RUN_VALIDATION"], "Prove with a connection that traffic is redirected"),
    switch("redirect-dns", &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"], "Capture DNS"),
    switch("drop-invalid", &["DROP_INVALID", "INVALID_DROP"], "Drop packets that connection tracking calls invalid"),
    switch("dual-stack", &["DUAL_STACK", "ISTIO_DUAL_STACK"], "Look past the first local address for an IPv6 one"),
    switch(
        "capture-all-dns",
        &["CAPTURE_ALL_DNS"],
        "With --redirect-dns: all of port 53, not only the servers of /etc/resolv.conf",
    ),
    long_text(
        "network-namespace",
        &["NETWORK_NAMESPACE"],
        "PATH",
        "File of the network namespace, for locks; the command does not enter it",
    ),
    switch("cni-mode", &["CNI_MODE"], "The files are the host's: give helper programs a sandbox"),
    switch("reconcile", &["RECONCILE"], "Replace rules of ours that differ"),
    switch("cleanup-only", &["CLEANUP_ONLY"], "Remove the rules"),
    switch("force-apply", &["FORCE_APPLY"], "Write the rules even when they are there"),
    switch("native-nftables", &["NATIVE_NFTABLES"], "Rules as tables of nftables, not of iptables"),
    long_text(
        "force-iptables-binary",
        &["FORCE_IPTABLES_BINARY"],
        "FLAVOUR",
        "`legacy` or `nft`: use this flavour of iptables; empty: the one that fits",
    ),
];
