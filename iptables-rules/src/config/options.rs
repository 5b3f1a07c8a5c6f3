//! Settings as text, by the names of the `istio-iptables` flags, and what they mean.
//!
//! The command fills these from flags and environment. A value that cannot be is refused with its flag's name.

use thiserror::Error;

use crate::config::values::{Cidr, Id, Mark, Port, Selection, items};
use crate::config::{
    DEFAULT_INBOUND_CAPTURE_PORT, DEFAULT_INBOUND_TUNNEL_PORT, DEFAULT_LOOPBACK_V4, DEFAULT_PROXY_ID,
    DEFAULT_PROXY_PORT, DEFAULT_TPROXY_MARK, DEFAULT_TPROXY_ROUTE_TABLE, InvalidCidr, Mode, OwnerGroups, Settings,
};

/// Most owner groups that can be included.
const OWNER_GROUPS_MAX: usize = 64;

/// The options of one rule set as text. The default equals the defaults of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `--envoy-port`.
    pub envoy_port: String,
    /// `--inbound-capture-port`.
    pub inbound_capture_port: String,
    /// `--inbound-tunnel-port`.
    pub inbound_tunnel_port: String,
    /// `--proxy-uid`; empty means the user of the proxy, or 1337.
    pub proxy_uid: String,
    /// `--proxy-gid`; empty means the same as the UID.
    pub proxy_gid: String,
    /// `--istio-inbound-interception-mode`; exactly `TPROXY`, everything else is REDIRECT.
    pub mode: String,
    /// `--istio-inbound-tproxy-mark`.
    pub tproxy_mark: String,
    /// `--istio-inbound-tproxy-route-table`.
    pub tproxy_route_table: String,
    /// `--istio-inbound-ports`.
    pub inbound_ports: String,
    /// `--istio-local-exclude-ports`.
    pub inbound_ports_exclude: String,
    /// `--istio-service-cidr`.
    pub outbound_cidrs: String,
    /// `--istio-service-exclude-cidr`.
    pub outbound_cidrs_exclude: String,
    /// `--istio-outbound-ports`.
    pub outbound_ports: String,
    /// `--istio-local-outbound-ports-exclude`.
    pub outbound_ports_exclude: String,
    /// `--istio-exclude-interfaces`.
    pub exclude_interfaces: String,
    /// `--kube-virt-interfaces`.
    pub virtual_interfaces: String,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS`.
    pub owner_groups: String,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE`.
    pub owner_groups_exclude: String,
    /// `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`.
    pub loopback_v4: String,
    /// `--redirect-dns`.
    pub redirect_dns: bool,
    /// `--capture-all-dns`.
    pub capture_all_dns: bool,
    /// `--drop-invalid`.
    pub drop_invalid: bool,
    /// `--dual-stack`.
    pub dual_stack: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            envoy_port: DEFAULT_PROXY_PORT.to_string(),
            inbound_capture_port: DEFAULT_INBOUND_CAPTURE_PORT.to_string(),
            inbound_tunnel_port: DEFAULT_INBOUND_TUNNEL_PORT.to_string(),
            proxy_uid: String::new(),
            proxy_gid: String::new(),
            mode: String::new(),
            tproxy_mark: DEFAULT_TPROXY_MARK.to_string(),
            tproxy_route_table: DEFAULT_TPROXY_ROUTE_TABLE.to_string(),
            inbound_ports: String::new(),
            inbound_ports_exclude: String::new(),
            outbound_cidrs: String::new(),
            outbound_cidrs_exclude: String::new(),
            outbound_ports: String::new(),
            outbound_ports_exclude: String::new(),
            exclude_interfaces: String::new(),
            virtual_interfaces: String::new(),
            owner_groups: "*".to_owned(),
            owner_groups_exclude: String::new(),
            loopback_v4: DEFAULT_LOOPBACK_V4.to_owned(),
            redirect_dns: false,
            capture_all_dns: false,
            drop_invalid: false,
            dual_stack: false,
        }
    }
}

/// An option whose value cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidOption {
    /// A list of address ranges holds something else.
    #[error("invalid value for {option}: {source}")]
    Cidr {
        /// The option.
        option: &'static str,
        /// The item.
        source: InvalidCidr,
    },
    /// Everything cannot be excluded.
    #[error(
        "invalid value for OUTBOUND_IP_RANGES_EXCLUDE (--istio-service-exclude-cidr): `*` would exclude everything; list the ranges"
    )]
    ExcludeEverything,
    /// The list is longer than a rule can hold.
    #[error("ISTIO_OUTBOUND_OWNER_GROUPS lists {count} groups, but at most {OWNER_GROUPS_MAX} can be included: {list}")]
    TooManyGroups {
        /// How many.
        count: usize,
        /// The value.
        list: String,
    },
    /// Not a loopback prefix.
    #[error("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR `{value}`: {reason}")]
    Loopback {
        /// The value.
        value: String,
        /// Why not.
        reason: &'static str,
    },
}

impl Options {
    /// The settings that these options mean.
    ///
    /// # Errors
    /// The first option whose value cannot be.
    pub fn settings(&self) -> Result<Settings, InvalidOption> {
        if self.outbound_cidrs_exclude == "*" {
            return Err(InvalidOption::ExcludeEverything);
        }
        let outbound_cidrs_exclude = cidrs("--istio-service-exclude-cidr", &self.outbound_cidrs_exclude)?;
        let outbound_cidrs = Selection::parse(&self.outbound_cidrs, str::parse::<Cidr>)
            .map_err(|source| InvalidOption::Cidr { option: "--istio-service-cidr", source })?;
        let default_uid = DEFAULT_PROXY_ID.to_string();
        let uid = if self.proxy_uid.is_empty() { &default_uid } else { &self.proxy_uid };
        let gid = if self.proxy_gid.is_empty() { uid } else { &self.proxy_gid };
        Ok(Settings {
            proxy_port: Port::new(&self.envoy_port),
            inbound_capture_port: Port::new(&self.inbound_capture_port),
            inbound_tunnel_port: Port::new(&self.inbound_tunnel_port),
            proxy_uids: ids(uid),
            proxy_gids: ids(gid),
            mode: if self.mode == Mode::Tproxy.as_str() { Mode::Tproxy } else { Mode::Redirect },
            tproxy_mark: Mark::new(&self.tproxy_mark),
            tproxy_route_table: Mark::new(&self.tproxy_route_table),
            inbound_ports: selected_ports(&self.inbound_ports),
            inbound_ports_exclude: ports(&self.inbound_ports_exclude),
            outbound_cidrs,
            outbound_cidrs_exclude,
            outbound_ports: ports(&self.outbound_ports),
            outbound_ports_exclude: ports(&self.outbound_ports_exclude),
            exclude_interfaces: names(&self.exclude_interfaces),
            virtual_interfaces: names(&self.virtual_interfaces),
            owner_groups: owner_groups(&self.owner_groups, &self.owner_groups_exclude)?,
            loopback_v4: loopback_v4(&self.loopback_v4)?,
            redirect_dns: self.redirect_dns,
            capture_all_dns: self.capture_all_dns,
            drop_invalid: self.drop_invalid,
            dual_stack: self.dual_stack,
            // The command does what Istio's does.
            refuse_uncaptured: false,
        })
    }
}

/// The groups that two option texts mean; the second one counts only when the first is exactly `*`.
///
/// # Errors
/// When more groups are included than one rule can name.
pub fn owner_groups(include: &str, exclude: &str) -> Result<OwnerGroups, InvalidOption> {
    if include == "*" {
        return Ok(OwnerGroups::AllExcept(ids(exclude)));
    }
    let groups = ids(include);
    if groups.len() > OWNER_GROUPS_MAX {
        return Err(InvalidOption::TooManyGroups { count: groups.len(), list: include.to_owned() });
    }
    Ok(OwnerGroups::Only(groups))
}

/// The IPv4 loopback prefix that an option text means: within 127.0.0.0/8, 8 to 32 bits long.
///
/// # Errors
/// When it is something else.
pub fn loopback_v4(value: &str) -> Result<Cidr, InvalidOption> {
    let invalid = |reason| InvalidOption::Loopback { value: value.to_owned(), reason };
    let cidr: Cidr = value.parse().map_err(|_| invalid("it is not an address range such as 127.0.0.1/32"))?;
    if !cidr.address.is_ipv4() || !cidr.address.is_loopback() {
        return Err(invalid("its address is not an IPv4 loopback address (127.0.0.0/8)"));
    }
    if !(8..=32).contains(&cidr.prefix) {
        return Err(invalid("its length is not between 8 and 32"));
    }
    Ok(cidr)
}

fn cidrs(option: &'static str, list: &str) -> Result<Vec<Cidr>, InvalidOption> {
    let parsed: Result<_, _> = items(list).map(str::parse).collect();
    parsed.map_err(|source| InvalidOption::Cidr { option, source })
}

fn ids(list: &str) -> Vec<Id> {
    items(list).map(Id::new).collect()
}

fn ports(list: &str) -> Vec<Port> {
    items(list).map(Port::new).collect()
}

fn names(list: &str) -> Vec<String> {
    items(list).map(str::to_owned).collect()
}

fn selected_ports(list: &str) -> Selection<Port> {
    match list {
        "" => Selection::None,
        "*" => Selection::All,
        list => Selection::Only(ports(list)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(options: Options) -> String {
        options.settings().unwrap_err().to_string()
    }

    #[test]
    fn defaults_of_the_options_are_the_defaults_of_the_settings() {
        assert_eq!(Options::default().settings(), Ok(Settings::default()));
    }

    #[test]
    fn the_gid_follows_the_uid() {
        let settings = Options { proxy_uid: "1,2".to_owned(), ..Options::default() }.settings().unwrap();
        assert_eq!(settings.proxy_gids, [Id::from(1), Id::from(2)]);
    }

    #[test]
    fn a_refusal_names_the_flag_and_the_value() {
        let bad = Options { outbound_cidrs: "10.0.0.0/8,x".to_owned(), ..Options::default() };
        let text = error(bad);
        assert!(text.contains("--istio-service-cidr") && text.contains("`x`"), "{text}");
        let everything = Options { outbound_cidrs_exclude: "*".to_owned(), ..Options::default() };
        assert!(error(everything).contains("invalid value for OUTBOUND_IP_RANGES_EXCLUDE"));
        let groups = (0..65).map(|group| group.to_string()).collect::<Vec<_>>().join(",");
        let text = error(Options { owner_groups: groups, ..Options::default() });
        assert!(text.contains("65") && text.contains("64"), "{text}");
    }

    #[test]
    fn only_an_ipv4_loopback_prefix_is_taken() {
        for value in ["127.0.0.1/32", "127.1.2.3/8"] {
            assert!(loopback_v4(value).is_ok(), "{value}");
        }
        for value in ["", "127.0.0.1", "10.0.0.0/8", "::1/128", "127.0.0.0/7"] {
            let text = loopback_v4(value).unwrap_err().to_string();
            assert!(text.contains(&format!("`{value}`")), "{text}");
        }
    }
}
