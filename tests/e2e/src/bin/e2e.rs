//! `make e2e`: our agent as a DaemonSet on a real one-node Kubernetes in namespaces of its own.
//!
//! It starts the cluster, proves claim by claim what we say about our agent there, and removes what it made, also when
//! interrupted. Needs root and what `make e2e` prepares: the programs of Kubernetes are in the directory it is given.

use std::path::Path;
use std::process::ExitCode;

use e2e::failure::Failure;
use e2e::images::Programs;
use e2e::interrupt::Interrupt;
use e2e::kubernetes::machine::Machine;
use e2e::kubernetes::node::Node;
use e2e::kubernetes::story::Story;
use e2e::report::Progress;
use e2e::run::{explained, must_be_root};
use testkit::work_dir::WorkDir;

/// Beginning of the name of the directory among temporary files.
const WORK_PREFIX: &str = "istio-cni-e2e";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [programs] = arguments.as_slice() else {
        eprintln!("usage: e2e DIRECTORY_WITH_THE_PROGRAMS_OF_KUBERNETES");
        return ExitCode::from(2);
    };
    let progress = Progress::start();
    match run(&progress, Path::new(programs)) {
        Ok(()) => {
            progress.say("everything removed, the machine is as before; all claims hold");
            ExitCode::SUCCESS
        }
        Err(Failure::Interrupted) => {
            progress.say("interrupted; everything removed");
            ExitCode::from(130)
        }
        Err(failure) => {
            eprintln!("\nmake e2e FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(progress: &Progress, kubernetes: &Path) -> Result<(), Failure> {
    must_be_root()?;
    let interrupt = Interrupt::listen()?;
    let programs = Programs::find()?;
    let work = WorkDir::create(WORK_PREFIX).map_err(Failure::system("make a temporary directory"))?;
    let machine = Machine::before(&work);
    let told = prove(progress, &interrupt, &programs, kubernetes, &work);
    told.map_err(|failure| explained(&work, &interrupt, failure))?;
    drop(work);
    machine.must_be_as_before()
}

fn prove(
    progress: &Progress,
    interrupt: &Interrupt,
    programs: &Programs,
    kubernetes: &Path,
    work: &WorkDir,
) -> Result<(), Failure> {
    let node = Node::start(work, kubernetes, |killer| interrupt.ends(killer))?;
    node.wait_for_runtime(interrupt)?;
    programs.load(work.path(), |archive, reference| node.import(archive, reference))?;
    node.wait_until_ready(interrupt)?;
    let runtime = node.cri.version()?;
    progress.say(&format!(
        "node Ready: Kubernetes {} with {} {}, in namespaces of its own",
        node.version()?,
        runtime.runtime_name,
        runtime.runtime_version
    ));
    Story { node: &node, interrupt, progress }.tell()
}
