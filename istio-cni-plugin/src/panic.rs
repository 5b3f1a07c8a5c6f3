//! The last resort: a defect of ours still gives the runtime an error object it can read.

use std::io::Write;
use std::process;

use cni::{Error, Version};

use crate::codes;

/// Makes a panic on any thread end the process with an error object on stdout and the place on stderr.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        // Nothing is left to do about a stream that is gone.
        let _ = writeln!(std::io::stderr(), "{text}");
        let message = format!("the istio-cni plugin stopped over a defect of its own, please report it: {text}");
        let _ = writeln!(std::io::stdout(), "{}", Error::new(codes::INTERNAL, message).to_json(Version::LATEST));
        let _ = std::io::stdout().flush();
        // Before the unwinding or the abort: a pod's traffic is at stake, not a core dump.
        process::exit(1);
    }));
}
