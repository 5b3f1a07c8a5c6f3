//! A real Envoy behind our rules: who served a connection, and whom the application saw.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use iptables_rules::apply::{Form, Job, run};
use iptables_rules::config::{Mode, Selection, Settings};
use tempfile::TempDir;
use testkit::envoy::{Interception, Served, Sidecar, program};
use testkit::netns::{Sandbox, available};
use testkit::traffic::{ask_tcp, serve_tcp};

const APP: (u32, u32) = (1000, 1000);
const CLIENT: (u32, u32) = (2000, 2000);

/// A pod with an application and Envoy, and a neighbour with a server.
struct World {
    pod: Sandbox,
    neighbour: Sandbox,
    files: TempDir,
}

impl World {
    fn new(mode: Mode, form: Form) -> Self {
        let (pod, neighbour) = Sandbox::pair(&["10.77.0.2/24", "fd77::2/64"], &["10.77.0.3/24", "fd77::3/64"]);
        serve_tcp(&pod, 8080, "app");
        serve_tcp(&neighbour, 9090, "server");
        let settings = Settings {
            mode,
            inbound_ports: Selection::All,
            outbound_cidrs: Selection::All,
            dual_stack: true,
            ..Settings::default()
        };
        pod.run(|| run(&Job { settings, form, ..Job::default() })).unwrap();
        let native = pod.sh("nft list tables").contains("inet istio-proxy-nat");
        assert_eq!(native, form == Form::Native);
        Self { pod, neighbour, files: tempfile::tempdir().unwrap() }
    }

    fn sidecar(&self, program: &Path, interception: Interception) -> Sidecar<'_> {
        Sidecar::start(program, interception, &self.pod, self.files.path())
    }
}

/// The only line of the log in this direction with this destination.
fn one<'a>(served: &'a [Served], direction: &str, destination: &str) -> &'a Served {
    let wanted = |line: &&Served| line.direction == direction && line.destination == destination;
    let lines: Vec<&Served> = served.iter().filter(wanted).collect();
    let [line] = lines.as_slice() else { panic!("{direction} to {destination}: {lines:?} among {served:#?}") };
    line
}

/// Both directions and both families; `clients` are whom the application sees.
fn envoy_serves_everything(mode: Mode, form: Form, clients: [&str; 2]) {
    let Some(program) = program().filter(|_| available()) else { return };
    let interception = match mode {
        Mode::Redirect => Interception::Redirect,
        Mode::Tproxy => Interception::Tproxy,
    };
    let world = World::new(mode, form);
    let sidecar = world.sidecar(&program, interception);
    let inbound = ["10.77.0.2:8080", "[fd77::2]:8080"];
    for (to, seen) in inbound.iter().zip(clients) {
        let answer = ask_tcp(&world.neighbour, CLIENT, to).unwrap();
        assert!(answer.starts_with("app for ") && answer.ends_with(&format!(" from {seen}")), "{answer}");
    }
    let outbound = [("10.77.0.3:9090", "10.77.0.2"), ("[fd77::3]:9090", "fd77::2")];
    for (to, from) in outbound {
        let answer = ask_tcp(&world.pod, APP, to).unwrap();
        assert_eq!(answer, format!("server for {to} from {from}"));
    }
    // Within the pod nobody else is asked.
    for to in ["127.0.0.1:8080", "10.77.0.2:8080", "[::1]:8080"] {
        assert!(ask_tcp(&world.pod, APP, to).unwrap().starts_with("app for "));
    }
    // Who knocks at Envoy's own port was not captured there, and learns nothing.
    let knock = ask_tcp(&world.neighbour, CLIENT, "10.77.0.2:15006");
    assert!(knock.as_deref().unwrap_or_default().is_empty(), "{knock:?}");

    let served = sidecar.served(5);
    for (to, client) in inbound.iter().zip(["10.77.0.3:", "[fd77::3]:"]) {
        assert!(one(&served, "inbound", to).client.starts_with(client), "{served:#?}");
    }
    for (to, from) in outbound {
        let source = one(&served, "outbound", to).source.clone().unwrap();
        assert!(source.contains(from), "{served:#?}");
    }
    assert_eq!(served.iter().filter(|line| line.direction == "not-captured").count(), 1, "{served:#?}");
    assert_eq!(served.len(), 5, "{served:#?}");
}

#[test]
fn by_redirect_envoy_serves_both_directions_and_the_application_sees_envoy() {
    envoy_serves_everything(Mode::Redirect, Form::Compatible, ["127.0.0.6", "::6"]);
}

#[test]
fn by_tproxy_envoy_serves_both_directions_and_the_application_sees_the_client() {
    envoy_serves_everything(Mode::Tproxy, Form::Compatible, ["10.77.0.3", "fd77::3"]);
}

#[test]
fn behind_native_rules_envoy_serves_the_same_by_redirect() {
    envoy_serves_everything(Mode::Redirect, Form::Native, ["127.0.0.6", "::6"]);
}

#[test]
fn behind_native_rules_envoy_serves_the_same_by_tproxy() {
    envoy_serves_everything(Mode::Tproxy, Form::Native, ["10.77.0.3", "fd77::3"]);
}
