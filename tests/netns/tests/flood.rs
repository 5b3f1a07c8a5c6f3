//! New connections all the time while the rules are applied again and again: not one may get past the proxy, and not
//! one may be lost.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

use iptables_rules::apply::{Form, Job, run};
use iptables_rules::config::{Mode, Port, Selection, Settings};
use testkit::flood::{Client, Flood, Report, Transport, during};
use testkit::netns::{Sandbox, available};
use testkit::traffic::{serve_tcp, serve_transparent, serve_udp};

const APP: (u32, u32) = (1000, 1000);
const PROXY: (u32, u32) = (1337, 1337);
const APPLICATIONS: usize = 500;

static FLOOD: Mutex<()> = Mutex::new(());

/// A pod with an application and a stand-in proxy, and a neighbour with a server and a resolver.
struct World {
    pod: Sandbox,
    neighbour: Sandbox,
}

impl World {
    fn new() -> Self {
        let (pod, neighbour) = Sandbox::pair(&["10.77.0.2/24", "fd77::2/64"], &["10.77.0.3/24", "fd77::3/64"]);
        serve_tcp(&pod, 8080, "app");
        serve_tcp(&pod, 15001, "outbound");
        serve_transparent(&pod, 15006, "inbound");
        serve_tcp(&neighbour, 9090, "server");
        for (server, agent) in [("10.77.0.3:53", "127.0.0.1:15053"), ("[fd77::3]:53", "[::1]:15053")] {
            serve_udp(&neighbour, (0, 0), server, "resolver");
            serve_udp(&pod, PROXY, agent, "agent");
        }
        Self { pod, neighbour }
    }

    /// Clients of every kind, all of which the rules send to the proxy or its agent.
    fn clients(&self) -> Vec<Client<'_>> {
        let inbound =
            |to, expected| Client { sandbox: &self.neighbour, user: APP, transport: Transport::Tcp, to, expected };
        let outbound = |transport, to, expected| Client { sandbox: &self.pod, user: APP, transport, to, expected };
        vec![
            inbound("10.77.0.2:8080", "inbound for 10.77.0.2:8080 from 10.77.0.3"),
            inbound("[fd77::2]:8080", "inbound for [fd77::2]:8080 from fd77::3"),
            outbound(Transport::Tcp, "10.77.0.3:9090", "outbound for 10.77.0.3:9090"),
            outbound(Transport::Tcp, "[fd77::3]:9090", "outbound for [fd77::3]:9090"),
            outbound(Transport::Udp, "10.77.0.3:53", "agent"),
            outbound(Transport::Udp, "[fd77::3]:53", "agent"),
        ]
    }

    fn apply(&self, job: &Job) {
        self.pod.run(|| run(job)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Applies `jobs` in turn, [`APPLICATIONS`] times, with new connections of every client between any two.
    fn flood(&self, jobs: &[Job]) {
        // Two floods at once would only slow each other down.
        let _alone = FLOOD.lock().unwrap_or_else(PoisonError::into_inner);
        self.apply(&jobs[0]);
        let mut applied = 0;
        let reports = during(&self.clients(), |flood: &Flood| {
            for job in jobs.iter().cycle().skip(1).take(APPLICATIONS) {
                self.apply(job);
                applied += 1;
                if !flood.goes_on() {
                    break;
                }
            }
        });
        let faults: Vec<&Report> = reports.iter().filter(|report| report.fault.is_some()).collect();
        assert!(faults.is_empty(), "after {applied} applications: {faults:#?}");
        assert_eq!(applied, APPLICATIONS);
        assert!(reports.iter().all(|report| report.answers > APPLICATIONS), "{reports:#?}");
    }
}

fn captures_all() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: vec![Port::new("15020")],
        outbound_cidrs: Selection::All,
        redirect_dns: true,
        capture_all_dns: true,
        dual_stack: true,
        ..Settings::default()
    }
}

/// Captures the same connections by other rules.
fn captures_them_too() -> Settings {
    Settings {
        inbound_ports: Selection::Only(["80", "8080"].map(Port::new).to_vec()),
        outbound_cidrs: Selection::Only(["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).to_vec()),
        outbound_cidrs_exclude: ["10.1.0.0/16", "fd01::/16"].map(|text| text.parse().unwrap()).to_vec(),
        outbound_ports_exclude: ["15020", "9999"].map(Port::new).to_vec(),
        exclude_interfaces: vec!["net1".to_owned()],
        ..captures_all()
    }
}

fn job(settings: Settings, form: Form) -> Job {
    Job { settings, form, reconcile: true, ..Job::default() }
}

#[test]
fn no_connection_escapes_or_is_lost_while_two_sets_take_turns() {
    if !available() {
        return;
    }
    World::new().flood(&[captures_all(), captures_them_too()].map(|settings| job(settings, Form::Compatible)));
}

#[test]
fn no_connection_escapes_or_is_lost_while_the_same_set_is_applied_and_written_again() {
    if !available() {
        return;
    }
    let again = job(captures_all(), Form::Compatible);
    World::new().flood(&[again.clone(), Job { force: true, ..again }]);
}

/// No flood during the change: it moves the way in from one hook to another, and a packet that is between the two at
/// that instant meets neither.
#[test]
fn after_every_change_of_the_interception_mode_new_connections_go_to_the_proxy() {
    if !available() {
        return;
    }
    let world = World::new();
    let tproxy = Settings { mode: Mode::Tproxy, ..captures_all() };
    let jobs = [captures_all(), tproxy].map(|settings| job(settings, Form::Compatible));
    for job in jobs.iter().cycle().take(40) {
        world.apply(job);
        let reports = during(&world.clients(), |_| ());
        let served = |report: &Report| report.fault.is_none() && report.answers > 0;
        assert!(reports.iter().all(served), "{:?}: {reports:#?}", job.settings.mode);
    }
}

#[test]
fn no_connection_escapes_or_is_lost_while_two_native_sets_take_turns() {
    if !available() {
        return;
    }
    World::new().flood(&[captures_all(), captures_them_too()].map(|settings| job(settings, Form::Native)));
}

#[test]
fn the_flood_notices_when_the_rules_are_gone() {
    if !available() {
        return;
    }
    let world = World::new();
    let all = job(captures_all(), Form::Compatible);
    world.apply(&all);
    let reports = during(&world.clients(), |flood| {
        world.apply(&Job { cleanup_only: true, ..all });
        while flood.goes_on() {}
    });
    // What the first of them met is chance: a direct answer, or the end of a connection that was under way.
    assert!(reports.iter().any(|report| report.fault.is_some()), "{reports:#?}");
}
