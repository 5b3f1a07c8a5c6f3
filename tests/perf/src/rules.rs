//! Putting the default sidecar set into a fresh namespace: our transaction beside the iptables tools.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use iptables_rules::apply::{Form, Job, run};
use iptables_rules::config::{HostFacts, Port, Selection, Settings};
use iptables_rules::plan::{Plan, native, sidecar};
use iptables_rules::render::commands::cleanup_list;
use iptables_rules::render::iptables::restore;
use iptables_rules::render::nft;
use testkit::netns::Sandbox;
use testkit::process::Call;

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

/// A job on the default set.
fn job(settings: &Settings, form: Form) -> Job {
    Job { settings: settings.clone(), form, reconcile: true, ..Job::default() }
}

fn timed_run(job: &Job) -> Duration {
    let started = Instant::now();
    run(job).expect("rules");
    started.elapsed()
}

/// The programs that Istio's own command starts for one apply in a fresh namespace, one after the other.
fn reference_apply(v4: &str, v6: &str) -> Duration {
    let probe = ["-t", "nat", "-A", "INPUT", "-p", "255", "-j", "RETURN"];
    let undo = ["-t", "nat", "-D", "INPUT", "-p", "255", "-j", "RETURN"];
    let mut took = Duration::ZERO;
    for base in ["iptables-nft", "ip6tables-nft"] {
        let save = format!("{base}-save");
        took += exec(&save, &[], "") + exec(&save, &["--version"], "") + exec(base, &probe, "") + exec(base, &undo, "");
    }
    took += exec("iptables-nft-save", &[], "") + exec("ip6tables-nft-save", &[], "");
    took += exec("iptables-nft-restore", &["--noflush"], v4) + exec("ip6tables-nft-restore", &["--noflush"], v6);
    took + exec("iptables-nft-save", &[], "") + exec("ip6tables-nft-save", &[], "")
}

/// The programs that it starts to clean up: one for each rule it deletes, and two for each chain.
fn reference_cleanup(lists: &[(&str, Vec<String>)]) -> Duration {
    let commands = lists.iter().flat_map(|(base, list)| list.iter().map(move |command| (base, command)));
    commands
        .map(|(base, command)| {
            let args: Vec<&str> = command.split(' ').collect();
            let started = Instant::now();
            // Some fail, as they do for Istio, which does not mind.
            let _ = Command::new(base).args(&args).stderr(Stdio::null()).status().expect("iptables");
            started.elapsed()
        })
        .sum()
}

/// Prints the tables.
pub fn measure(command: &Path) {
    let settings = default_set();
    let facts = HostFacts { ipv6: true, ..HostFacts::default() };
    let plan = sidecar(&settings, &facts);
    let (v4, v6) = (restore(&plan.v4).join("\n") + "\n", restore(&plan.v6).join("\n") + "\n");
    let native = nft::transaction(&native::sidecar(&settings, &facts)).join("\n") + "\n";
    let fresh = |addresses: &[&str], work: &(dyn Fn() -> Duration + Sync)| Sandbox::with_addresses(addresses).run(work);
    let (v4_only, dual): (&[&str], &[&str]) = (&["10.0.0.2/24"], &["10.0.0.2/24", "fd00:9::2/64"]);
    let (compatible, in_nft) = (job(&settings, Form::Compatible), job(&settings, Form::Native));

    compare(
        &format!("rules, IPv4, {} of them, fresh namespace", plan.v4.len()),
        ROUNDS,
        vec![
            Subject::new("ours", |_| fresh(v4_only, &|| timed_run(&compatible))),
            Subject::new("iptables-nft-restore", |_| {
                fresh(v4_only, &|| exec("iptables-nft-restore", &["--noflush"], &v4))
            }),
            Subject::new("/bin/true (the price of any program)", |_| fresh(v4_only, &|| exec("/bin/true", &[], ""))),
        ],
    );
    compare(
        &format!("rules, IPv4 and IPv6, {} of them, fresh namespace", plan.v4.len() + plan.v6.len()),
        ROUNDS,
        vec![
            Subject::new("ours", |_| fresh(dual, &|| timed_run(&compatible))),
            Subject::new("iptables-nft-restore + ip6tables-nft-restore", |_| {
                fresh(dual, &|| {
                    exec("iptables-nft-restore", &["--noflush"], &v4)
                        + exec("ip6tables-nft-restore", &["--noflush"], &v6)
                })
            }),
            Subject::new("ours, applied again", |_| {
                fresh(dual, &|| {
                    timed_run(&compatible);
                    timed_run(&compatible)
                })
            }),
        ],
    );
    compare(
        "rules, native form, IPv4 and IPv6, fresh namespace",
        ROUNDS,
        vec![
            Subject::new("ours", |_| fresh(dual, &|| timed_run(&in_nft))),
            Subject::new("nft -f -", |_| fresh(dual, &|| exec("nft", &["-f", "-"], &native))),
            Subject::new("ours, applied again", |_| {
                fresh(dual, &|| {
                    timed_run(&in_nft);
                    timed_run(&in_nft)
                })
            }),
        ],
    );
    many_rules(&settings, v4_only, &fresh);
    whole_command(command, &plan, (&v4, &v6), dual, &fresh);
}

type Fresh<'a> = dyn Fn(&[&str], &(dyn Fn() -> Duration + Sync)) -> Duration + 'a;

/// Whether a set with 500 ranges costs more per rule than the small one.
fn many_rules(settings: &Settings, addresses: &[&str], fresh: &Fresh<'_>) {
    let ranges = (0..500u32).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250).parse().expect("a range")).collect();
    let large = Settings { outbound_cidrs_exclude: ranges, dual_stack: false, ..settings.clone() };
    let small = Settings { dual_stack: false, ..settings.clone() };
    let count =
        |settings: &Settings| u32::try_from(sidecar(settings, &HostFacts::default()).v4.len()).expect("a count");
    let (few, many) = (count(&small), count(&large));
    let (small, large) = (job(&small, Form::Compatible), job(&large, Form::Compatible));
    compare(
        &format!("time per rule, {few} rules and {many} rules"),
        ROUNDS / 2,
        vec![
            Subject::new("few", |_| fresh(addresses, &|| timed_run(&small)) / few),
            Subject::new("many", |_| fresh(addresses, &|| timed_run(&large)) / many),
        ],
    );
}

/// The command, from start to exit, beside the programs that Istio's starts.
fn whole_command(command: &Path, plan: &Plan, (v4, v6): (&str, &str), addresses: &[&str], fresh: &Fresh<'_>) {
    let program = command.to_string_lossy().into_owned();
    let args = ["-b", "*", "-d", "15090,15021,15020", "-i", "*", "-u", "1337", "--dual-stack"];
    let cleanup = [&args[..], &["--cleanup-only"]].concat();
    let lists = [("iptables-nft", cleanup_list(&plan.v4)), ("ip6tables-nft", cleanup_list(&plan.v6))];
    compare(
        "istio-iptables, the whole command: apply",
        ROUNDS / 2,
        vec![
            Subject::new("ours", |_| fresh(addresses, &|| exec(&program, &args, ""))),
            Subject::new("the 14 programs of Istio's", |_| fresh(addresses, &|| reference_apply(v4, v6))),
        ],
    );
    compare(
        "istio-iptables, the whole command: clean-up",
        ROUNDS / 4,
        vec![
            Subject::new("ours", |_| {
                fresh(addresses, &|| {
                    exec(&program, &args, "");
                    exec(&program, &cleanup, "")
                })
            }),
            Subject::new("the programs of Istio's", |_| {
                fresh(addresses, &|| {
                    exec("iptables-nft-restore", &["--noflush"], v4);
                    exec("ip6tables-nft-restore", &["--noflush"], v6);
                    reference_cleanup(&lists)
                })
            }),
        ],
    );
    let sandbox = Sandbox::with_addresses(addresses);
    let env =
        vec![("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".into()), ("DUAL_STACK".to_owned(), "true".into())];
    let observed = sandbox.run(|| Call { env, stdin: String::new() }.observe(command));
    println!(
        "istio-iptables: {} programs and {} processes started, {} KiB at its peak",
        observed.programs, observed.processes, observed.peak
    );
}
