//! ADD: redirect one pod if it is in the mesh, and hand the previous result on.

use std::time::{Duration, Instant};

use agent_api::logs::LEFT_ALONE;
use cni::{Error, Request, Verb};
use mesh::SkipReason;

use crate::apply::apply;
use crate::config::Environment;
use crate::enrol::enrol;
use crate::judge::{Call, Judgement};
use crate::log::{Level, Logger};
use crate::pod_get::Budget;

/// Serves one ADD and logs how it ended. The labels of that entry are what the agent counts.
pub(crate) fn add(request: &Request, environment: &Environment, budget: &Budget) -> Result<String, Error> {
    let started = Instant::now();
    let mut log = Logger::of(Verb::Add, request);
    let outcome = decide_and_act(request, environment, budget, &mut log);
    log.label("elapsed_ms", milliseconds(started.elapsed()));
    match &outcome {
        Ok((_, judgement)) => {
            let (decision, reason, message) = match judgement {
                Judgement::Skip { reason, .. } => ("skip", reason.as_str(), LEFT_ALONE),
                Judgement::Redirect(_) => ("redirect", "redirect", "pod is redirected to its sidecar"),
                Judgement::Ambient => ("ambient", "ambient", "pod is enrolled by the agent"),
            };
            log.label("decision", decision);
            log.label("reason", reason);
            let level = if reason == SkipReason::NotKubernetes.as_str() { Level::Debug } else { Level::Info };
            match judgement {
                Judgement::Skip { recorded: true, .. } => log.write_here(level, message),
                _ => log.write(level, message),
            }
        }
        Err(error) => {
            log.label("decision", "error");
            log.label("code", error.code);
            log.write(Level::Error, &error.to_string());
        }
    }
    log.send();
    outcome.map(|(result, _)| result)
}

/// For the log: thousandths are enough, since a whole ADD takes a few milliseconds.
fn milliseconds(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 1e6).round() / 1e3
}

fn decide_and_act(
    request: &Request,
    environment: &Environment,
    budget: &Budget,
    log: &mut Logger,
) -> Result<(String, Judgement), Error> {
    let call = Call::read(request, log)?;
    let result = request.conf.unchanged_result()?;
    let judgement = call.judge(Verb::Add, environment, budget, log)?;
    match &judgement {
        Judgement::Skip { .. } => {}
        Judgement::Ambient => enrol(&call, budget.enrolment, log)?,
        Judgement::Redirect(redirect) => {
            if log.wants(Level::Debug) {
                log.write(Level::Debug, &format!("redirect {:?}", redirect.to_texts()));
            }
            apply(redirect, &call, environment, log)?;
        }
    }
    Ok((result, judgement))
}
