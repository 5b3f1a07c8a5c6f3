//! Putting the default sidecar set into a fresh namespace: our transaction beside the iptables tools.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use iptables_rules::apply::apply;
use iptables_rules::config::{HostFacts, Port, Selection, Settings};
use iptables_rules::plan::sidecar;
use iptables_rules::render::iptables::restore;
use testkit::netns::Sandbox;

use crate::series::{Subject, compare};

const ROUNDS: usize = 60;

/// What the plugin makes of a pod without annotations.
fn default_set() -> Settings {
    Settings {
        inbound_ports: Selection::All,
        inbound_ports_exclude: ["15020", "15021", "15090"].map(Port::new).to_vec(),
        outbound_cidrs: Selection::All,
        outbound_ports_exclude: vec![Port::new("15020")],
        dual_stack: true,
        ..Settings::default()
    }
}

/// Runs a program with this input inside the calling thread's namespace.
fn exec(program: &str, args: &[&str], input: &str) -> Duration {
    let started = Instant::now();
    let mut child =
        Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect(program);
    child.stdin.take().expect("piped").write_all(input.as_bytes()).ok();
    assert!(child.wait().expect(program).success(), "{program} failed");
    started.elapsed()
}

fn timed_apply(settings: &Settings) -> Duration {
    let started = Instant::now();
    let applied = apply(settings).expect("rules");
    assert!(applied.changed);
    started.elapsed()
}

/// Prints the tables.
pub fn measure(command: &Path) {
    let settings = default_set();
    let plan = sidecar(&settings, &HostFacts { ipv6: true, ..HostFacts::default() });
    let (v4, v6) = (restore(&plan.v4).join("\n") + "\n", restore(&plan.v6).join("\n") + "\n");
    let in_fresh =
        |addresses: &[&str], work: &(dyn Fn() -> Duration + Sync)| Sandbox::with_addresses(addresses).run(work);
    let (v4_only, dual): (&[&str], &[&str]) = (&["10.0.0.2/24"], &["10.0.0.2/24", "fd00:9::2/64"]);

    compare(
        &format!("rules, IPv4, {} of them, fresh namespace", plan.v4.len()),
        ROUNDS,
        vec![
            Subject::new("ours", |_| in_fresh(v4_only, &|| timed_apply(&settings))),
            Subject::new("iptables-nft-restore", |_| {
                in_fresh(v4_only, &|| exec("iptables-nft-restore", &["--noflush"], &v4))
            }),
            Subject::new("/bin/true (the price of any program)", |_| in_fresh(v4_only, &|| exec("/bin/true", &[], ""))),
        ],
    );
    compare(
        &format!("rules, IPv4 and IPv6, {} of them, fresh namespace", plan.v4.len() + plan.v6.len()),
        ROUNDS,
        vec![
            Subject::new("ours", |_| in_fresh(dual, &|| timed_apply(&settings))),
            Subject::new("iptables-nft-restore + ip6tables-nft-restore", |_| {
                in_fresh(dual, &|| {
                    exec("iptables-nft-restore", &["--noflush"], &v4)
                        + exec("ip6tables-nft-restore", &["--noflush"], &v6)
                })
            }),
            Subject::new("ours, applied again", |_| {
                in_fresh(dual, &|| {
                    timed_apply(&settings);
                    let started = Instant::now();
                    assert!(!apply(&settings).expect("rules").changed);
                    started.elapsed()
                })
            }),
            Subject::new("istio-iptables, the whole command", |_| {
                let program = command.to_string_lossy().into_owned();
                let args = ["-b", "*", "-d", "15090,15021,15020", "-i", "*", "-u", "1337", "--dual-stack"];
                in_fresh(dual, &|| exec(&program, &args, ""))
            }),
        ],
    );
}
