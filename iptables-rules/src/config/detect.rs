//! Host facts from plain inputs: local addresses, resolv.conf, the user and group files.
//!
//! Pure; reading the system is the work of `apply` and of the command.

use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

use crate::model::Family;

/// File that lists users.
pub const PASSWD: &str = "/etc/passwd";
/// File that lists groups.
pub const GROUP: &str = "/etc/group";

/// No address that tells which families the namespace uses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "no valid local IP address found: the network namespace has only loopback and link-local addresses; is the pod's network set up before these rules?"
)]
pub struct NoLocalAddress;

/// The host's address and whether IPv6 rules are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalAddress {
    /// First address that counts.
    pub host: IpAddr,
    /// IPv6 rules are wanted.
    pub ipv6: bool,
    /// The family with an address that counts, but without rules.
    pub uncaptured: Option<Family>,
}

/// Picks from `addresses`, which hold IPv4 before IPv6. Without `dual_stack` the first one that is neither loopback nor
/// link-local decides; with it the search goes on to the first IPv6 one.
///
/// # Errors
/// When no address counts.
pub fn local_address(addresses: &[IpAddr], dual_stack: bool) -> Result<LocalAddress, NoLocalAddress> {
    let mut counting = addresses.iter().map(IpAddr::to_canonical).filter(counts);
    let host = counting.next().ok_or(NoLocalAddress)?;
    let has_ipv6 = host.is_ipv6() || counting.any(|address| address.is_ipv6());
    let ipv6 = host.is_ipv6() || (dual_stack && has_ipv6);
    Ok(LocalAddress { host, ipv6, uncaptured: (has_ipv6 && !ipv6).then_some(Family::V6) })
}

fn counts(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let link_local_multicast = v4.octets().starts_with(&[224, 0, 0]);
            !v4.is_loopback() && !v4.is_link_local() && !link_local_multicast
        }
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !is_link_local_multicast(v6),
    }
}

fn is_link_local_multicast(address: &Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 0xff && second & 0x0f == 0x02
}

/// Name servers of a resolv.conf, IPv4 and IPv6 apart, in normal form. What is not an address is left out; an
/// IPv4-mapped one counts as IPv6; a zone is kept.
pub fn name_servers(resolv_conf: &str) -> (Vec<String>, Vec<String>) {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for line in resolv_conf.lines() {
        let mut fields = line.split_whitespace();
        let (Some("nameserver"), Some(value)) = (fields.next(), fields.next()) else { continue };
        let (address, zone) = value.split_once('%').map_or((value, None), |(address, zone)| (address, Some(zone)));
        match (address.parse::<IpAddr>(), zone) {
            (Ok(IpAddr::V4(address)), None) => v4.push(address.to_string()),
            (Ok(IpAddr::V6(address)), None) => v6.push(address.to_string()),
            (Ok(IpAddr::V6(address)), Some(zone)) if !zone.is_empty() => v6.push(format!("{address}%{zone}")),
            _ => {}
        }
    }
    (v4, v6)
}

/// The number of `name` in the text of `/etc/passwd` or `/etc/group`: both have it in the third field.
pub fn id_of(name: &str, file: &str) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(addresses: &[&str], dual_stack: bool) -> Result<(String, bool), NoLocalAddress> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        local_address(&addresses, dual_stack).map(|found| (found.host.to_string(), found.ipv6))
    }

    #[test]
    fn the_first_address_decides_without_dual_stack() {
        assert_eq!(pick(&["127.0.0.1", "10.0.0.2", "::1", "fd00::2"], false), Ok(("10.0.0.2".to_owned(), false)));
        assert_eq!(pick(&["127.0.0.1", "::1", "fe80::1", "fd00::2"], false), Ok(("fd00::2".to_owned(), true)));
    }

    #[test]
    fn dual_stack_looks_on_for_ipv6() {
        assert_eq!(pick(&["10.0.0.2", "fe80::1", "fd00::2"], true), Ok(("10.0.0.2".to_owned(), true)));
        assert_eq!(pick(&["10.0.0.2", "fe80::1"], true), Ok(("10.0.0.2".to_owned(), false)));
    }

    #[test]
    fn an_ipv6_address_without_rules_is_told() {
        let uncaptured = |addresses: &[&str], dual_stack| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            local_address(&addresses, dual_stack).unwrap().uncaptured
        };
        assert_eq!(uncaptured(&["10.0.0.2", "::1", "fe80::1", "fd00::2"], false), Some(Family::V6));
        assert_eq!(uncaptured(&["10.0.0.2", "fd00::2"], true), None);
        assert_eq!(uncaptured(&["10.0.0.2", "::1", "fe80::1"], false), None);
        assert_eq!(uncaptured(&["10.0.0.2", "10.0.0.3"], false), None);
        assert_eq!(uncaptured(&["fd00::2"], false), None);
    }

    #[test]
    fn a_namespace_with_loopback_and_link_local_only_is_refused() {
        assert_eq!(pick(&["127.0.0.1", "169.254.1.1", "::1", "fe80::1"], true), Err(NoLocalAddress));
        assert_eq!(pick(&["::ffff:127.0.0.1"], false), Err(NoLocalAddress));
    }

    #[test]
    fn name_servers_are_normalised_and_sorted_by_family() {
        let text = "# nameserver 9.9.9.9\nnameserver 10.96.0.10 x\n nameserver\tFD00:0::A\nsearch a\nnameserver nonsense\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserver 10.0.0.1";
        let (v4, v6) = name_servers(text);
        assert_eq!(v4, ["10.96.0.10", "10.0.0.1"]);
        assert_eq!(v6, ["fd00::a", "fe80::1%eth0"]);
    }

    #[test]
    fn ids_are_found_by_name() {
        assert_eq!(id_of("istio-proxy", "root:x:0:0::/root:/bin/sh\nistio-proxy:x:1337:1337::/:/bin/sh\n"), Some(1337));
        assert_eq!(id_of("ftp", "ftpadmin:x:9:\nftp:x:21:a,b\n"), Some(21));
        assert_eq!(id_of("java", "ftp:x:21:\n"), None);
    }
}
