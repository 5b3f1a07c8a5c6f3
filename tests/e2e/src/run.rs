//! How a run begins and ends: who may start it, and what is said when it fails.

use std::fs;
use std::os::unix::fs::MetadataExt;

use testkit::work_dir::WorkDir;

use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Fails for anybody but root.
///
/// # Errors
/// Says what needs root.
pub fn must_be_root() -> Result<(), Failure> {
    let me = fs::metadata("/proc/self").map_err(Failure::system("look at ourselves"))?;
    if me.uid() == 0 {
        return Ok(());
    }
    Failure::unexpected("namespaces and a container runtime need root: run it as root")
}

/// After a signal every call fails: then the signal is the reason. Otherwise the logs are kept, and it is said where.
pub fn explained(work: &WorkDir, interrupt: &Interrupt, failure: Failure) -> Failure {
    if interrupt.asked() {
        return Failure::Interrupted;
    }
    match work.keep_logs() {
        Ok(Some(logs)) => Failure::Unexpected(format!("{failure}\nThe logs are kept in {}", logs.display())),
        Ok(None) | Err(_) => failure,
    }
}
