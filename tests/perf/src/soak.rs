//! The agent on a node of its own: how fast it installs, what it costs while nothing happens, and what a thousand changes
//! leave behind.
//!
//! Times and sizes are printed beside what is aimed at. That nothing grows, no program is written again and the agent
//! stays ready is no matter of speed: whoever runs this is told that it failed.

mod node;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::api::ApiServer;
use testkit::netns::Sandbox;
use testkit::process::cpu_time;

use self::node::{Agent, Node, is_ready, wait};

const STARTS: usize = 15;
const PODS: usize = 250;
const IDLE: Duration = Duration::from_secs(60);
const CHANGES: usize = 1000;
/// Between two probes; kubelet asks every ten seconds.
const PROBE: Duration = Duration::from_millis(10);
/// What a thousand changes may add to the memory, in KiB: allocators do not give everything back.
const MEMORY: u64 = 1024;

/// What there is of a running agent.
#[derive(Debug, Clone, Copy)]
struct Size {
    files: usize,
    watches: usize,
    memory: u64,
}

impl Size {
    fn of(agent: &Agent) -> Self {
        Self { files: agent.count("fd"), watches: agent.watches(), memory: agent.memory() }
    }
}

/// Prints the table. False when something grows, is written again, or is not ready.
pub fn measure(bin: &Path) -> bool {
    Sandbox::new().run(|| {
        starts(bin);
        let api = ApiServer::start(([127, 0, 0, 1], 0).into()).expect("a stand-in API server");
        (0..PODS).for_each(|n| api.set_pod("shop", &format!("web-{n}"), pod(n)));
        let mut node = Node::new(bin, api.ca_pem());
        let agent = node.start(api.addr().port());
        wait("the last pod", || node.verdict(&format!("web-{}", PODS - 1)).contains("redirect"));
        wait("readiness", is_ready);
        idle(&agent);
        changes(&mut node, &agent)
    })
}

/// From start to the list in place, without API server.
fn starts(bin: &Path) {
    let mut times: Vec<Duration> = (0..STARTS)
        .map(|_| {
            let node = Node::new(bin, "CA");
            let started = std::time::Instant::now();
            let _agent = node.start(1);
            wait("the list", || node.is_installed());
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("agent, from start to the list in place, without API server ({STARTS} starts)");
    line("median", milliseconds(times[STARTS / 2]), "150 ms");
    line("slowest", milliseconds(times[STARTS - 1]), "");
}

fn idle(agent: &Agent) {
    // What the start has left to do is over.
    std::thread::sleep(Duration::from_secs(15));
    let before = cpu_time(agent.id()).expect("a running agent");
    std::thread::sleep(IDLE);
    let spent = cpu_time(agent.id()).expect("a running agent") - before;
    println!("agent, idle, {PODS} pods");
    line("processor time in a minute", milliseconds(spent), "5 ms");
    line("resident memory", kibibytes(agent.memory()), "12 MiB");
    line("threads", agent.count("task").to_string(), "8");
}

/// Rotations of the token and events in the CNI directory, while readiness is asked for all the time.
fn changes(node: &mut Node, agent: &Agent) -> bool {
    let programs = node.programs();
    let (probes, failures, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let (before, between, after, mut times) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                probes.fetch_add(1, Ordering::Relaxed);
                failures.fetch_add(usize::from(!is_ready()), Ordering::Relaxed);
                std::thread::sleep(PROBE);
            }
        });
        let before = settled(agent);
        let times: Vec<Duration> = (0..CHANGES).map(|n| rotate(node, n)).collect();
        let between = settled(agent);
        (0..CHANGES).for_each(|n| disturb(node, n));
        let after = settled(agent);
        over.store(true, Ordering::Relaxed);
        (before, between, after, times)
    });
    times.sort_unstable();
    println!("agent, {CHANGES} rotations of the token, then {CHANGES} events in the CNI directory");
    line("token in the kubeconfig, median", milliseconds(times[CHANGES / 2]), "");
    line("token in the kubeconfig, slowest", milliseconds(times[CHANGES - 1]), "1000 ms");
    for (name, size) in [("before", before), ("after the rotations", between), ("after the events", after)] {
        let text = format!("{} files, {} watches, {}", size.files, size.watches, kibibytes(size.memory));
        line(name, text, "");
    }
    let (probes, failures) = (probes.into_inner(), failures.into_inner());
    line("probes of readiness that failed", format!("{failures} of {probes}"), "0");
    let written = node.programs() != programs;
    line("programs written again", if written { "yes" } else { "none" }.to_owned(), "none");
    let grown = after.files > before.files || after.watches > before.watches || after.memory > before.memory + MEMORY;
    line("growth", if grown { "yes" } else { "none" }.to_owned(), "none");
    failures == 0 && !written && !grown && node.is_installed()
}

/// When all that was to be done is done.
fn settled(agent: &Agent) -> Size {
    std::thread::sleep(Duration::from_secs(12));
    Size::of(agent)
}

/// How long a new token takes to come into the kubeconfig.
fn rotate(node: &mut Node, number: usize) -> Duration {
    let token = format!("token-of-rotation-{number:04}");
    node.volume.rotate(&token).expect("a rotation");
    wait("the token", || node.kubeconfig().contains(&token))
}

/// Something that others do in the directory.
fn disturb(node: &Node, number: usize) {
    let path = node.list(&format!("other-{}", number % 20));
    match number % 3 {
        0 => fs::write(&path, "x").expect("a file"),
        1 => fs::rename(node.list(&format!("other-{}", (number - 1) % 20)), path).expect("a rename"),
        _ => fs::remove_file(node.list(&format!("other-{}", (number - 1) % 20))).expect("a removal"),
    }
    std::thread::sleep(Duration::from_millis(5));
}

/// About as large as pods are.
fn pod(number: usize) -> Value {
    let filler: Vec<Value> =
        (0..60).map(|n| json!({"name": format!("SETTING_{n}"), "value": "x".repeat(100)})).collect();
    let managed: Vec<Value> = (0..3)
        .map(|n| json!({"manager": format!("manager-{n}"), "fieldsV1": {"f:metadata": {"f:labels": "x".repeat(1000)}}}))
        .collect();
    json!({"metadata": {"uid": format!("uid-{number}"), "managedFields": managed,
            "labels": {"app": format!("web-{number}"), "pod-template-hash": "5d4f8c7b9", "version": "v1"},
            "annotations": {"sidecar.istio.io/status": "{\"containers\":[\"istio-proxy\"]}", "other.example/x": "y"}},
        "spec": {"nodeName": "node-1", "volumes": [{"name": "data"}], "containers": [
            {"name": "app", "image": "registry.example/shop/app:1", "env": filler},
            {"name": "istio-proxy", "image": "registry.example/istio/proxyv2:1", "args": ["proxy", "sidecar"],
             "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn kibibytes(kib: u64) -> String {
    format!("{kib} KiB")
}

fn line(name: &str, value: String, aim: &str) {
    let aim = if aim.is_empty() { String::new() } else { format!("   aim {aim}") };
    println!("  {name:44} {value:>12}{aim}");
}
