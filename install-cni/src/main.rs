//! Starts the agent. See the library for what it does.

use std::process::ExitCode;

use install_cni::app::App;
use install_cni::args::{Args, Run, Task};
use install_cni::daemonset;
use install_cni::shutdown::Signals;
use sys::capabilities::{self, Capability, Kept};

fn main() -> ExitCode {
    match Args::task(std::env::args_os(), &|name| std::env::var(name).ok()) {
        Task::Print(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Task::Usage(text) => {
            eprint!("{text}");
            ExitCode::FAILURE
        }
        Task::Run(run) => match start(*run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(cause = %error, "the agent ends");
                ExitCode::FAILURE
            }
        },
    }
}

fn start(run: Run) -> Result<(), Box<dyn std::error::Error>> {
    run.log.start();
    for warning in &run.warnings {
        tracing::warn!("{warning}");
    }
    for note in &run.notes {
        tracing::info!("{note}");
    }
    if !run.faults.is_empty() {
        return Err(run.faults.join("; ").into());
    }
    run.config.check()?;
    run.config.tell();
    drop_capabilities();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let question = daemonset::question(&run.config);
        let signal = App::new(run.config)
            .asking(question)
            .run(signals.received(), |address| tracing::info!(%address, "health checks are served"))
            .await?;
        tracing::info!(signal, "ended");
        Ok(())
    })
}

/// Installing takes nothing but files that may belong to others.
fn drop_capabilities() {
    let needed = [Capability::CHOWN, Capability::DAC_OVERRIDE, Capability::FOWNER, Capability::FSETID];
    match capabilities::keep_only(&needed) {
        Ok(Kept { kept, dropped }) => {
            tracing::info!(
                kept = names(&kept),
                dropped = names(&dropped),
                "capabilities that are not needed are dropped"
            );
        }
        Err(error) => tracing::warn!(cause = %error, "capabilities could not be dropped"),
    }
}

fn names(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}
