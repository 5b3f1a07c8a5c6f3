//! Who reaches whom, before and after the rules: real sockets, two namespaces and a cable.
#![allow(clippy::unwrap_used)]

use iptables_rules::apply::{apply, apply_plan};
use iptables_rules::config::{OwnerGroups, Port, Selection, Settings};
use iptables_rules::plan::Plan;
use testkit::netns::{Sandbox, available};
use testkit::traffic::{ask_tcp, ask_udp, says, serve_tcp, serve_udp};

/// An ordinary user, and the proxy's.
const APP: (u32, u32) = (1000, 1000);
const PROXY: (u32, u32) = (1337, 1337);

/// A pod with an application on 8080 and a stand-in proxy, and a neighbour that asks and is asked.
struct World {
    pod: Sandbox,
    neighbour: Sandbox,
}

impl World {
    fn new() -> Self {
        let (pod, neighbour) =
            Sandbox::pair(&["10.77.0.2/24", "fd77::2/64"], &["10.77.0.3/24", "10.77.0.4/24", "fd77::3/64"]);
        for (port, name) in [(8080, "app"), (15020, "agent"), (15001, "outbound"), (15006, "inbound")] {
            serve_tcp(&pod, port, name);
        }
        serve_tcp(&neighbour, 9090, "server");
        serve_tcp(&neighbour, 15020, "server");
        for server in ["10.77.0.3:53", "[fd77::3]:53"] {
            serve_udp(&neighbour, (0, 0), server, "resolver");
        }
        for agent in ["127.0.0.1:15053", "[::1]:15053"] {
            serve_udp(&pod, PROXY, agent, "agent");
        }
        Self { pod, neighbour }
    }

    fn apply(&self, settings: &Settings) {
        self.pod.run(|| apply(settings)).unwrap();
    }

    /// From the neighbour to the pod.
    fn inbound(&self, to: &str) -> Result<String, String> {
        ask_tcp(&self.neighbour, APP, to)
    }

    /// From the pod, as this user.
    fn outbound(&self, user: (u32, u32), to: &str) -> Result<String, String> {
        ask_tcp(&self.pod, user, to)
    }
}

fn captures_all() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: vec![Port::new("15020")],
        outbound_cidrs: Selection::All,
        outbound_ports_exclude: vec![Port::new("15020")],
        dual_stack: true,
        ..Settings::default()
    }
}

#[test]
fn without_rules_everyone_is_reached_directly() {
    if !available() {
        return;
    }
    let world = World::new();
    says(world.inbound("10.77.0.2:8080"), "app");
    says(world.outbound(APP, "10.77.0.3:9090"), "server");
    says(world.outbound(APP, "[fd77::3]:9090"), "server");
    says(ask_udp(&world.pod, APP, "10.77.0.3:53"), "resolver");
}

#[test]
fn with_rules_the_proxy_gets_what_comes_in_and_goes_out() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&captures_all());
    says(world.inbound("10.77.0.2:8080"), "inbound for 10.77.0.2:8080 from 10.77.0.3");
    says(world.inbound("[fd77::2]:8080"), "inbound for [fd77::2]:8080 from fd77::3");
    says(world.outbound(APP, "10.77.0.3:9090"), "outbound for 10.77.0.3:9090");
    says(world.outbound(APP, "[fd77::3]:9090"), "outbound for [fd77::3]:9090");
    // Also a port on which nobody listens: the proxy is asked, whatever it then does.
    says(world.inbound("10.77.0.2:7"), "inbound for 10.77.0.2:7");
}

#[test]
fn the_proxys_own_connections_go_out_directly_and_excluded_ports_come_in_directly() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&captures_all());
    says(world.outbound(PROXY, "10.77.0.3:9090"), "server");
    says(world.outbound(PROXY, "[fd77::3]:9090"), "server");
    says(world.inbound("10.77.0.2:15020"), "agent");
    says(world.outbound(APP, "10.77.0.3:15020"), "server");
}

#[test]
fn inside_the_pod_the_application_reaches_itself_and_the_proxy_goes_through_itself() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&captures_all());
    says(world.outbound(APP, "127.0.0.1:8080"), "app");
    says(world.outbound(APP, "10.77.0.2:8080"), "app");
    says(world.outbound(APP, "[::1]:8080"), "app");
    says(world.outbound(PROXY, "127.0.0.1:8080"), "app");
    says(world.outbound(PROXY, "10.77.0.2:8080"), "inbound for 10.77.0.2:8080");
    says(world.outbound(PROXY, "[fd77::2]:8080"), "inbound for [fd77::2]:8080");
}

#[test]
fn only_what_is_listed_is_captured() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&Settings {
        inbound_ports: Selection::Only(vec![Port::new("8080")]),
        outbound_cidrs: Selection::Only(vec!["10.77.0.4/32".parse().unwrap()]),
        ..captures_all()
    });
    says(world.inbound("10.77.0.2:8080"), "inbound");
    says(world.inbound("10.77.0.2:15001"), "outbound for 10.77.0.2:15001");
    says(world.outbound(APP, "10.77.0.4:9090"), "outbound for 10.77.0.4:9090");
    says(world.outbound(APP, "10.77.0.3:9090"), "server");
}

#[test]
fn excluded_ranges_and_groups_go_out_directly() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&Settings {
        outbound_cidrs_exclude: vec!["10.77.0.4/32".parse().unwrap()],
        owner_groups: OwnerGroups::AllExcept(vec![2000.into()]),
        ..captures_all()
    });
    says(world.outbound(APP, "10.77.0.4:9090"), "server");
    says(world.outbound(APP, "10.77.0.3:9090"), "outbound");
    says(world.outbound((1000, 2000), "10.77.0.3:9090"), "server");
}

#[test]
fn an_excluded_interface_is_not_touched() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&Settings { exclude_interfaces: vec!["eth0".to_owned()], ..captures_all() });
    says(world.inbound("10.77.0.2:8080"), "app");
    says(world.outbound(APP, "10.77.0.3:9090"), "server");
}

#[test]
fn dns_goes_to_the_agent_and_the_proxys_own_dns_to_the_resolver() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&Settings { redirect_dns: true, capture_all_dns: true, ..captures_all() });
    says(ask_udp(&world.pod, APP, "10.77.0.3:53"), "agent");
    says(ask_udp(&world.pod, APP, "[fd77::3]:53"), "agent");
    says(ask_udp(&world.pod, PROXY, "10.77.0.3:53"), "resolver");
}

#[test]
fn after_clean_up_everyone_is_reached_directly_again() {
    if !available() {
        return;
    }
    let world = World::new();
    world.apply(&captures_all());
    says(world.inbound("10.77.0.2:8080"), "inbound");
    world.pod.run(|| apply_plan(&Plan::default())).unwrap();
    says(world.inbound("10.77.0.2:8080"), "app");
    says(world.outbound(APP, "10.77.0.3:9090"), "server");
}
