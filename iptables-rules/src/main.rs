//! The `istio-iptables` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    iptables_rules::cli::run()
}
