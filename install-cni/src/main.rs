//! Starts the agent. See the library for what it does.

use std::process::ExitCode;

use install_cni::app::App;
use install_cni::args::{Args, Run, Task};
use install_cni::shutdown::Signals;

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
    run.config.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let signal = App::new(run.config)
            .run(signals.received(), |address| tracing::info!(%address, "health checks are served"))
            .await?;
        tracing::info!(signal, "ended");
        Ok(())
    })
}
