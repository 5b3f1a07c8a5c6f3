//! CHECK: is the pod's traffic still redirected as it asks for?

use cni::error::code;
use cni::{Error, Request, Verb};

use crate::apply::differences;
use crate::codes;
use crate::config::Environment;
use crate::judge::{Call, Judgement};
use crate::log::{Level, Logger};
use crate::pod_get::Budget;

/// Serves one CHECK, and logs a pod that does not pass.
pub(crate) fn check(request: &Request, environment: &Environment, budget: &Budget) -> Result<(), Error> {
    let mut log = Logger::of(Verb::Check, request);
    compare(request, environment, budget, &mut log).inspect_err(|error| {
        log.label("code", error.code);
        log.write(Level::Error, &error.to_string());
        log.send();
    })
}

fn compare(request: &Request, environment: &Environment, budget: &Budget, log: &mut Logger) -> Result<(), Error> {
    let call = Call::read(request, log)?;
    let redirect = match call.judge(Verb::Check, environment, &budget.once(), log).map_err(passing)? {
        Judgement::Skip { reason, .. } => {
            log.label("reason", reason);
            log.write(Level::Debug, "pod is left alone, there is nothing to check");
            return Ok(());
        }
        Judgement::Ambient => {
            log.write(Level::Debug, "pod is the agent's, which looks after it itself");
            return Ok(());
        }
        Judgement::Redirect(redirect) => redirect,
    };
    let found = differences(&redirect, &call, environment)?;
    if found.is_empty() {
        log.write(Level::Debug, "pod is redirected as it asks for");
        return Ok(());
    }
    let message = format!(
        "{}: network namespace {} does not redirect traffic as the pod asks for: {}; if nobody changed the pod's \
         annotations, somebody changed its rules; delete the pod to have them made anew",
        call.name(),
        request.netns,
        found.join("; ")
    );
    Err(Error::new(codes::RULES_DIFFER, message))
}

/// While the agent starts anew there may be no kubeconfig. That says nothing about the pod, and passes.
fn passing(error: Error) -> Error {
    if matches!(error.code, code::IO | code::DECODE) { Error { code: code::TRY_AGAIN, ..error } } else { error }
}
