//! ADD: redirect one pod if it is in the mesh, and hand the previous result on.

use std::time::{Duration, Instant};

use cni::{Error, Request};
use mesh::{Decision, SkipReason};

use crate::apply::apply;
use crate::config::Environment;
use crate::judge::Call;
use crate::log::{Level, Logger};
use crate::pod_get::Budget;

/// The reason of a pod that is redirected, beside those of [`SkipReason`].
const REDIRECT: &str = "redirect";

/// Serves one ADD and logs how it ended.
pub(crate) fn add(request: &Request, environment: &Environment, budget: &Budget) -> Result<String, Error> {
    let started = Instant::now();
    let mut log = Logger::of(request);
    let outcome = decide_and_act(request, environment, budget, &mut log);
    log.label("elapsed_ms", milliseconds(started.elapsed()));
    match outcome {
        Ok((result, end)) => {
            match end {
                End::Skipped(reason) => {
                    log.label("reason", reason.as_str());
                    let level = if reason == SkipReason::NotKubernetes { Level::Debug } else { Level::Info };
                    log.write(level, "pod is left alone");
                }
                End::Redirected => {
                    log.label("reason", REDIRECT);
                    log.write(Level::Info, "pod is redirected to its sidecar");
                }
            }
            Ok(result)
        }
        Err(error) => {
            log.label("code", error.code);
            log.write(Level::Error, &error.to_string());
            Err(error)
        }
    }
}

/// For the log: thousandths are enough, since a whole ADD takes a few milliseconds.
fn milliseconds(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 1e6).round() / 1e3
}

/// How a successful ADD ended.
enum End {
    Skipped(SkipReason),
    Redirected,
}

fn decide_and_act(
    request: &Request,
    environment: &Environment,
    budget: &Budget,
    log: &mut Logger,
) -> Result<(String, End), Error> {
    let call = Call::read(request, log)?;
    let result = request.conf.unchanged_result()?;
    match call.judge(environment, budget, log)? {
        Decision::Skip(reason) => Ok((result, End::Skipped(reason))),
        Decision::Redirect(redirect) => {
            for warning in &redirect.warnings {
                log.write(Level::Warn, &warning.to_string());
            }
            if call.config.native_nftables {
                log.write(
                    Level::Warn,
                    "native_nftables is set, but this version only has the iptables-compatible form of nf_tables rules, \
                     which is used instead",
                );
            }
            if log.wants(Level::Debug) {
                log.write(Level::Debug, &format!("redirect {:?}", redirect.to_texts()));
            }
            apply(&redirect, &request.netns, environment, log)?;
            Ok((result, End::Redirected))
        }
    }
}
