//! Random settings that the kernel can be given, and a runner for tests that take them.
//!
//! Everything that a rule can say occurs: each family, list, range and switch, also the edges (port 0, prefix 0, host
//! bits, no item at all). Values that no kernel takes are left to other tests.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use iptables_rules::config::{Cidr, HostFacts, Id, Mode, OwnerGroups, Port, Selection, Settings};
use iptables_rules::model::Family;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

/// Runs `test` on values of `strategy`. A failure names the smallest value found, and the line to put into
/// `SOURCE.regressions` so that it is tried first next time. `PROPTEST_CASES` replaces the number of cases.
///
/// # Panics
/// When `test` fails.
pub fn check<S: Strategy>(
    source: &'static str,
    cases: u32,
    strategy: S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) where
    S::Value: Debug,
{
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    let config = Config {
        cases,
        source_file: Some(source),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        // Every step costs two namespaces.
        max_shrink_iters: 300,
        ..Config::default()
    };
    if let Err(failure) = TestRunner::new(config).run(&strategy, test) {
        panic!("{failure}");
    }
}

/// Settings of any kind.
pub fn settings() -> BoxedStrategy<Settings> {
    let ports = (1..=u16::MAX, 1..=u16::MAX, any::<u16>());
    let owners = (vec(id(), 0..3), vec(id(), 0..3), owner_groups());
    let inbound = (any::<bool>(), selection(port()), vec(port(), 0..4));
    let outbound = (selection(cidr()), vec(cidr(), 0..4), vec(port(), 0..4), vec(port(), 0..4));
    let interfaces = (vec(interface(), 0..3), vec(interface(), 0..3));
    let tproxy = (1..=u32::MAX, 1..=u32::MAX);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (ports, owners, inbound, outbound, interfaces, tproxy, loopback(), switches)
        .prop_map(|(ports, owners, inbound, outbound, interfaces, tproxy, loopback_v4, switches)| Settings {
            proxy_port: ports.0.into(),
            inbound_capture_port: ports.1.into(),
            inbound_tunnel_port: ports.2.into(),
            proxy_uids: owners.0,
            proxy_gids: owners.1,
            owner_groups: owners.2,
            mode: if inbound.0 { Mode::Tproxy } else { Mode::Redirect },
            inbound_ports: inbound.1,
            inbound_ports_exclude: inbound.2,
            outbound_cidrs: outbound.0,
            outbound_cidrs_exclude: outbound.1,
            outbound_ports: outbound.2,
            outbound_ports_exclude: outbound.3,
            exclude_interfaces: interfaces.0,
            virtual_interfaces: interfaces.1,
            tproxy_mark: tproxy.0.into(),
            tproxy_route_table: tproxy.1.into(),
            loopback_v4,
            redirect_dns: switches.0,
            capture_all_dns: switches.1,
            drop_invalid: switches.2,
            dual_stack: switches.3,
            refuse_uncaptured: switches.4,
        })
        .boxed()
}

/// Hosts of any kind: with IPv6, without, and with addresses of it only; with name servers of both families.
pub fn facts() -> BoxedStrategy<HostFacts> {
    let ipv6 = prop_oneof![2 => Just((true, None)), 1 => Just((false, None)), 2 => Just((false, Some(Family::V6)))];
    (ipv6, vec(any::<Ipv4Addr>(), 0..3), vec(any::<Ipv6Addr>(), 0..3))
        .prop_map(|((ipv6, uncaptured), v4, v6)| HostFacts {
            ipv6,
            uncaptured,
            dns_servers_v4: v4.iter().map(Ipv4Addr::to_string).collect(),
            dns_servers_v6: v6.iter().map(Ipv6Addr::to_string).collect(),
        })
        .boxed()
}

/// A port, or a range of ports up to "all of them".
fn port() -> impl Strategy<Value = Port> {
    let range = prop_oneof![
        3 => (any::<u16>(), any::<u16>()),
        1 => any::<u16>().prop_map(|high| (0, high)),
        1 => any::<u16>().prop_map(|low| (low, u16::MAX)),
        1 => Just((0, u16::MAX)),
    ];
    prop_oneof![
        4 => any::<u16>().prop_map(Port::from),
        1 => range.prop_map(|(one, other)| Port::new(&format!("{}:{}", one.min(other), one.max(other)))),
    ]
}

/// Any user or group that exists; the highest number means "none".
fn id() -> impl Strategy<Value = Id> {
    prop_oneof![Just(0), Just(1337), 0..u32::MAX].prop_map(Id::from)
}

fn owner_groups() -> impl Strategy<Value = OwnerGroups> {
    prop_oneof![
        2 => vec(id(), 0..4).prop_map(OwnerGroups::AllExcept),
        1 => vec(id(), 0..12).prop_map(OwnerGroups::Only),
    ]
}

fn cidr() -> impl Strategy<Value = Cidr> {
    let v4 = prop_oneof![4 => any::<Ipv4Addr>(), 1 => Just(Ipv4Addr::LOCALHOST)];
    let v6 = prop_oneof![
        4 => any::<Ipv6Addr>(),
        1 => Just(Ipv6Addr::LOCALHOST),
        1 => any::<Ipv4Addr>().prop_map(|address| address.to_ipv6_mapped()),
    ];
    prop_oneof![
        (v4, 0..=32u8).prop_map(|(address, prefix)| Cidr { address: IpAddr::V4(address), prefix }),
        (v6, 0..=128u8).prop_map(|(address, prefix)| Cidr { address: IpAddr::V6(address), prefix }),
    ]
}

/// A prefix within 127.0.0.0/8.
fn loopback() -> impl Strategy<Value = Cidr> {
    let any = (any::<[u8; 3]>(), 8..=32u8)
        .prop_map(|([a, b, c], prefix)| Cidr { address: Ipv4Addr::new(127, a, b, c).into(), prefix });
    prop_oneof![Just(Cidr::LOOPBACK_V4), any]
}

/// A name of up to 15 bytes, or the beginning of one.
fn interface() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[a-z][a-z0-9_.-]{0,14}",
        2 => "[a-z][a-z0-9_.-]{0,13}\\+",
        1 => Just("lo".to_owned()),
    ]
}

fn selection<T: Debug + Clone + 'static>(
    item: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Selection<T>> {
    prop_oneof![
        1 => Just(Selection::None),
        2 => Just(Selection::All),
        3 => vec(item, 0..4).prop_map(Selection::Only),
    ]
}
