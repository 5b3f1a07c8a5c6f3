//! Entry point; everything else is in the library.

use std::process::ExitCode;

use istio_cni_plugin::stdin::Stdin;
use istio_cni_plugin::{ABOUT, IstioCni, config, panic};

#[global_allocator]
static MEMORY: sys::arena::Arena = sys::arena::Arena::new();

fn main() -> ExitCode {
    panic::install();
    // Without a descriptor for signals the process is simply ended by them.
    let _ = sys::interrupt::hold();
    let plugin = IstioCni::new(config::Environment::read());
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    ExitCode::from(cni::dispatch::run(ABOUT, &config::variable, Stdin, &mut stdout, &mut stderr, &plugin))
}
