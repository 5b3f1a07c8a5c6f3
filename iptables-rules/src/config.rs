//! Settings of one rule set: what to capture, for whom, and where to send it.
//!
//! These are plain values. Reading flags, environment or pod annotations into them is the callers' work; what a list of
//! ports or addresses looks like is decided once, in [`values`].

pub mod detect;
pub mod options;
pub mod values;

pub use values::{Cidr, Id, InvalidCidr, Mark, Port, Selection};

use crate::model::Family;

/// Port the proxy takes outbound connections on.
pub const DEFAULT_PROXY_PORT: u16 = 15001;
/// Port the proxy takes inbound connections on.
pub const DEFAULT_INBOUND_CAPTURE_PORT: u16 = 15006;
/// Port of HBONE tunnels, which are never captured again.
pub const DEFAULT_INBOUND_TUNNEL_PORT: u16 = 15008;
/// UID and GID of the proxy when nothing else is known.
pub const DEFAULT_PROXY_ID: u32 = 1337;
/// Mark of inbound packets in TPROXY mode when nothing else is set.
pub const DEFAULT_TPROXY_MARK: u32 = 1337;
/// Route table of TPROXY mode when nothing else is set.
pub const DEFAULT_TPROXY_ROUTE_TABLE: u32 = 133;
/// IPv4 loopback prefix when nothing else is set.
pub const DEFAULT_LOOPBACK_V4: &str = "127.0.0.1/32";

/// How inbound connections reach the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Destination rewritten to the proxy's port; the application sees the proxy as peer.
    #[default]
    Redirect,
    /// Delivered to a transparent socket; the application sees the true peer.
    Tproxy,
}

impl Mode {
    /// The word used in flags and annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redirect => "REDIRECT",
            Self::Tproxy => "TPROXY",
        }
    }
}

/// Whose outbound traffic is captured, by the group of the sending process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerGroups {
    /// Everyone's but these groups'.
    AllExcept(Vec<Id>),
    /// Only these groups'. An empty list captures nothing outbound.
    Only(Vec<Id>),
}

/// One rule set. The default equals the defaults of the `istio-iptables` command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Port outbound TCP is sent to.
    pub proxy_port: Port,
    /// Port inbound TCP is sent to.
    pub inbound_capture_port: Port,
    /// Port that bypasses inbound capture.
    pub inbound_tunnel_port: Port,
    /// Users whose traffic is the proxy's own.
    pub proxy_uids: Vec<Id>,
    /// Groups whose traffic is the proxy's own.
    pub proxy_gids: Vec<Id>,
    /// Inbound interception mode.
    pub mode: Mode,
    /// Mark of inbound packets in TPROXY mode.
    pub tproxy_mark: Mark,
    /// Route table of TPROXY mode.
    pub tproxy_route_table: Mark,
    /// Inbound ports to capture.
    pub inbound_ports: Selection<Port>,
    /// Inbound ports never captured; only looked at when all ports are captured.
    pub inbound_ports_exclude: Vec<Port>,
    /// Outbound destinations to capture.
    pub outbound_cidrs: Selection<Cidr>,
    /// Outbound destinations never captured.
    pub outbound_cidrs_exclude: Vec<Cidr>,
    /// Outbound ports captured whatever the destination.
    pub outbound_ports: Vec<Port>,
    /// Outbound ports never captured.
    pub outbound_ports_exclude: Vec<Port>,
    /// Interfaces never captured, in or out.
    pub exclude_interfaces: Vec<String>,
    /// Interfaces whose incoming traffic counts as outbound.
    pub virtual_interfaces: Vec<String>,
    /// Whose outbound traffic is captured.
    pub owner_groups: OwnerGroups,
    /// IPv4 loopback prefix.
    pub loopback_v4: Cidr,
    /// Capture DNS.
    pub redirect_dns: bool,
    /// With `redirect_dns`: all of port 53 rather than the servers of resolv.conf.
    pub capture_all_dns: bool,
    /// Drop packets that connection tracking calls invalid.
    pub drop_invalid: bool,
    /// Look past the first local address for an IPv6 one.
    pub dual_stack: bool,
    /// Where a family has addresses but no rules, refuse what the rules would capture, rather than let it pass around
    /// the proxy as Istio does.
    pub refuse_uncaptured: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            proxy_port: DEFAULT_PROXY_PORT.into(),
            inbound_capture_port: DEFAULT_INBOUND_CAPTURE_PORT.into(),
            inbound_tunnel_port: DEFAULT_INBOUND_TUNNEL_PORT.into(),
            proxy_uids: vec![DEFAULT_PROXY_ID.into()],
            proxy_gids: vec![DEFAULT_PROXY_ID.into()],
            mode: Mode::Redirect,
            tproxy_mark: DEFAULT_TPROXY_MARK.into(),
            tproxy_route_table: DEFAULT_TPROXY_ROUTE_TABLE.into(),
            inbound_ports: Selection::None,
            inbound_ports_exclude: Vec::new(),
            outbound_cidrs: Selection::None,
            outbound_cidrs_exclude: Vec::new(),
            outbound_ports: Vec::new(),
            outbound_ports_exclude: Vec::new(),
            exclude_interfaces: Vec::new(),
            virtual_interfaces: Vec::new(),
            owner_groups: OwnerGroups::AllExcept(Vec::new()),
            loopback_v4: Cidr::LOOPBACK_V4,
            redirect_dns: false,
            capture_all_dns: false,
            drop_invalid: false,
            dual_stack: false,
            refuse_uncaptured: false,
        }
    }
}

/// What the network namespace and its host look like, as far as the rule set depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// IPv6 rules are wanted.
    pub ipv6: bool,
    /// The family that has addresses although no rules are wanted for it. It can only be IPv6.
    pub uncaptured: Option<Family>,
    /// IPv4 name servers of resolv.conf, in order.
    pub dns_servers_v4: Vec<String>,
    /// IPv6 name servers of resolv.conf, in order.
    pub dns_servers_v6: Vec<String>,
}
