//! The demo: the product on a real container runtime with a real Envoy.
//!
//! It starts a node of its own, installs istio-cni on it the way a cluster does, starts pods in and outside the mesh,
//! shows who serves their traffic, rotates the token, uninstalls, and removes what it made, also when interrupted.
//! Needs root and what `make demo` prepares. With `--keep` the node stays until Ctrl-C.

use std::process::ExitCode;

use e2e::cluster::Cluster;
use e2e::failure::Failure;
use e2e::images::Programs;
use e2e::interrupt::Interrupt;
use e2e::report::Progress;
use e2e::run::{explained, must_be_root};
use e2e::story::Story;
use testkit::work_dir::WorkDir;

/// Beginning of the name of the demo's directory among temporary files.
const WORK_PREFIX: &str = "istio-cni-demo";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let keep = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--keep"] => true,
        _ => {
            eprintln!("usage: demo [--keep]");
            return ExitCode::from(2);
        }
    };
    let progress = Progress::start();
    match run(&progress, keep) {
        Ok(()) => {
            progress.say("everything removed; the demo is as it must be");
            ExitCode::SUCCESS
        }
        Err(Failure::Interrupted) => {
            progress.say("interrupted; everything removed");
            ExitCode::from(130)
        }
        Err(failure) => {
            eprintln!("\nThe demo FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(progress: &Progress, keep: bool) -> Result<(), Failure> {
    must_be_root()?;
    let interrupt = Interrupt::listen()?;
    let programs = Programs::find()?;
    let work = WorkDir::create(WORK_PREFIX).map_err(Failure::system("make a temporary directory"))?;
    let started = |node: &testkit::containerd::Containerd| interrupt.ends(node.killer());
    let cluster = match Cluster::start(work, started) {
        Ok(cluster) => cluster,
        Err((work, failure)) => return Err(explained(&work, &interrupt, failure)),
    };
    let version = cluster.cri.version()?;
    progress.say(&format!(
        "node: {} {} in namespaces of its own, API server, a machine outside",
        version.runtime_name, version.runtime_version
    ));
    let story = Story { cluster: &cluster, interrupt: &interrupt, progress };
    story.tell(&programs, keep).map_err(|failure| {
        cluster.collect_evidence();
        explained(&cluster.work, &interrupt, failure)
    })
}
