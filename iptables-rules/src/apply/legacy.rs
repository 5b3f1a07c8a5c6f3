//! The way to the host's iptables programs, for builds that have one.
//!
//! The plugin has none: it must stay small and start no program, and a kernel that Kubernetes runs on has nf_tables.

use crate::apply::backend::Programs;
use crate::apply::{ApplyError, Differences, Job, Policy};
use crate::plan::Plan;

/// Where the host's programs are when nobody says.
#[cfg(feature = "legacy")]
const DEFAULT_SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Brings the legacy rules of the calling thread's namespace to `plan`. `known` are rules that count as ours, too.
#[cfg(feature = "legacy")]
pub(super) fn apply(
    job: &Job,
    plan: &Plan,
    known: &Plan,
    policy: Policy,
    programs: Programs,
    notes: &mut Vec<String>,
) -> Result<Differences, ApplyError> {
    use crate::apply::exec::{self, ExecError, Host};

    let search = job.search.clone().unwrap_or_else(|| DEFAULT_SEARCH.into());
    let host = Host { search: &search, on_host: job.on_host, netns: job.netns.as_deref() };
    let mut told = Vec::new();
    let result = exec::apply(plan, known, policy, programs, host, &mut told);
    notes.extend(told.into_iter().map(|note| note.0));
    result.map_err(|error| match error {
        ExecError::Differ(differences) => ApplyError::RulesDiffer(differences),
        other => other.into(),
    })
}

/// Says that there is no way.
#[cfg(not(feature = "legacy"))]
pub(super) fn apply(
    _job: &Job,
    _plan: &Plan,
    _known: &Plan,
    _policy: Policy,
    _programs: Programs,
    _notes: &mut Vec<String>,
) -> Result<Differences, ApplyError> {
    Err(ApplyError::NoWay("legacy iptables, since the kernel has no nf_tables or the namespace holds legacy rules"))
}
