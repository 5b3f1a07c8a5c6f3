//! ADD: decide about one pod, and redirect it if it is in the mesh.
//!
//! What can be decided from names comes first. Only then are credentials and the API server needed, so that nothing
//! that depends on the agent can hold up the agent itself, or pods we would skip anyway.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent_api::{PluginConfig, paths};
use cni::error::code;
use cni::{Error, PodArgs, Request};
use mesh::{Decision, SkipReason, decide, decide_by_name};
use sys::netns::Netns;

use crate::apply::apply;
use crate::codes;
use crate::config::Environment;
use crate::log::{Level, Logger};
use crate::pod_get::{Budget, read_pod};

/// The reason of a pod that is redirected, beside those of [`SkipReason`].
const REDIRECT: &str = "redirect";

/// Serves one ADD and logs how it ended.
pub(crate) fn add(request: &Request, environment: &Environment, budget: &Budget) -> Result<String, Error> {
    let started = Instant::now();
    let mut log = Logger::to_stderr();
    log.label("container_id", request.container_id.as_str());
    log.label("netns", request.netns.as_str());
    log.label("if", request.ifname.as_str());
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
    let config: PluginConfig = request.conf.decode()?;
    let run_dir = run_dir(&config);
    log.configure(&config.plugin_log_level, &run_dir);
    if log.wants(Level::Debug) {
        let keys = serde_json::Value::Object(request.conf.keys().clone());
        log.write(Level::Debug, &format!("configuration {keys}"));
        log.write(Level::Debug, &format!("previous result {}", request.conf.prev_result().unwrap_or("none")));
    }
    let args =
        PodArgs::parse(&request.args).map_err(|error| Error::new(code::INVALID_ENVIRONMENT, error.to_string()))?;
    log.label("pod", format!("{}/{}", args.namespace, args.name));
    let result = request.conf.unchanged_result()?;

    let by_name = decide_by_name(&args.name, &args.namespace, &config.pod_namespace, &config.exclude_namespaces);
    // The agent is let through whatever else is odd about the call: without it the node cannot heal.
    if by_name != Some(SkipReason::SelfAgentPod) && !environment.netns_override {
        refuse_own_netns(&request.netns)?;
    }
    if let Some(reason) = by_name {
        return Ok((result, End::Skipped(reason)));
    }

    let kubeconfig = paths::kubeconfig(&run_dir);
    let pod = read_pod(&kubeconfig, &args.namespace, &args.name, budget, log).map_err(|failure| failure.into_cni())?;
    if config.ambient_enabled && !pod.never_ambient() {
        let message = format!(
            "pod {}/{} has no sidecar, and whether it belongs to ambient mode cannot be decided: ambient mode is \
             enabled in the CNI configuration, but this version of istio-cni does not have it; install with ambient \
             mode disabled",
            args.namespace, args.name
        );
        return Err(Error::new(codes::UNSUPPORTED, message));
    }
    let decision = decide(&pod).map_err(|invalid| {
        let message = format!("pod {}/{}: {invalid}; correct the annotation", args.namespace, args.name);
        Error::new(codes::INVALID_ANNOTATION, message)
    })?;
    match decision {
        Decision::Skip(reason) => Ok((result, End::Skipped(reason))),
        Decision::Redirect(redirect) => {
            for warning in &redirect.warnings {
                log.write(Level::Warn, &warning.to_string());
            }
            if config.native_nftables {
                log.write(
                    Level::Warn,
                    "native_nftables is set, but this version only has the iptables-compatible form of nf_tables rules, \
                     which is used instead",
                );
            }
            if log.wants(Level::Debug) {
                log.write(Level::Debug, &format!("redirect {}", serde_json::Value::Object(redirect.to_json())));
            }
            apply(&redirect, &request.netns, environment, log)?;
            Ok((result, End::Redirected))
        }
    }
}

/// Directory with the kubeconfig and the log.
fn run_dir(config: &PluginConfig) -> PathBuf {
    let stated = config.cni_agent_run_dir.as_str();
    PathBuf::from(if stated.is_empty() { paths::DEFAULT_RUN_DIR } else { stated })
}

/// Refuses a sandbox that shares our own, the host's, network namespace. One that cannot be opened is not judged here:
/// most pods need nothing from it.
fn refuse_own_netns(path: &str) -> Result<(), Error> {
    match (Netns::open(Path::new(path)), Netns::current()) {
        (Ok(netns), Ok(own)) if netns.id() == own.id() => Err(own_netns(path)),
        _ => Ok(()),
    }
}

/// The refusal to work in our own network namespace.
pub(crate) fn own_netns(path: &str) -> Error {
    let message = format!(
        "CNI_NETNS {path} is the network namespace of the plugin itself, that is the host's: rules there would capture \
         the node's traffic, so nothing was done; the runtime must name the sandbox's namespace"
    );
    Error::new(code::INVALID_NETNS, message)
}
