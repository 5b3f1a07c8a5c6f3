//! Reads one pod from the API server with the kubeconfig that the agent keeps fresh.
//!
//! Fails closed, but not at once: the kubeconfig is read again before every attempt, since the agent may just have
//! renewed the token, and every kind of failure is retried inside one total deadline.

mod failure;
mod request;
mod tls;
mod url;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_api::Kubeconfig;
use agent_api::logs::REFUSED;
use mesh::Pod;
use sys::interrupt::{self, Stopped};

use crate::http::{Answer, HttpError};
use crate::log::{Level, Logger};

pub use failure::{Cause, Failure};
pub use tls::TrustError;
pub use url::UrlError;

/// Fewest attempts before giving up.
const MIN_ATTEMPTS: u32 = 3;

/// Patience towards the agent and the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// For an answer of the agent, which has it in memory and waits a moment for a pod that it has not heard of yet.
    pub agent: Duration,
    /// For the agent to enrol a pod of ambient mode. Istio's own plugin waits as long.
    pub enrolment: Duration,
    /// For the API server, everything together.
    pub total: Duration,
    /// For one request: name, connection, TLS, answer.
    pub request: Duration,
    /// For a pod that the API server does not know yet.
    pub not_found: Duration,
    /// Pause after the first failure; it doubles from there.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            agent: Duration::from_secs(2),
            enrolment: Duration::from_secs(5),
            total: Duration::from_secs(30),
            request: Duration::from_secs(5),
            not_found: Duration::from_secs(8),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(1),
        }
    }
}

impl Budget {
    /// For who can be told to ask again: one request.
    #[must_use]
    pub fn once(&self) -> Self {
        Self { total: Duration::ZERO, ..self.clone() }
    }
}

/// What the API server says about a pod.
#[derive(Debug, Default)]
pub struct Found {
    /// The pod.
    pub pod: Pod,
    /// Labels of its namespace; empty unless asked for.
    pub namespace_labels: BTreeMap<String, String>,
}

/// Reads the pod `namespace`/`name`, and its namespace too if `with_namespace`.
///
/// # Errors
/// The last attempt's failure, after as many attempts as `budget` allows. A kubeconfig that is missing or broken is not
/// waited for: the runtime tries the whole sandbox again.
pub fn read_pod(
    kubeconfig: &Path,
    (namespace, name): (&str, &str),
    with_namespace: bool,
    budget: &Budget,
    log: &mut Logger,
) -> Result<Found, Box<Failure>> {
    let started = Instant::now();
    let namespace_path = format!("/api/v1/namespaces/{}", url::encode_segment(namespace));
    let path = format!("{namespace_path}/pods/{}", url::encode_segment(name));
    let namespace_path = with_namespace.then_some(namespace_path.as_str());
    let mut pause = budget.first_pause;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (server, cause) = match attempt(kubeconfig, &path, namespace_path, budget.request) {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        let patience = match cause {
            Cause::Kubeconfig { .. } | Cause::KubeconfigContent { .. } | Cause::Http(HttpError::Stopped(_)) => {
                Duration::ZERO
            }
            Cause::Status { code: 404, .. } => budget.not_found.min(budget.total),
            _ => budget.total,
        };
        if let Cause::Status { code: 401, .. } = cause {
            // The agent looks for it: it may know a newer token, or get one.
            log.label(REFUSED.0, REFUSED.1);
        }
        let elapsed = started.elapsed();
        let early = attempts < MIN_ATTEMPTS && !patience.is_zero();
        let failure = |cause| {
            let resource = format!("{namespace}/{name}");
            let (path, kubeconfig) = (path.clone(), kubeconfig.to_owned());
            Box::new(Failure { resource, path, server, kubeconfig, attempts, elapsed, cause })
        };
        // The last request must still fit in, as far as the fewest attempts allow.
        if !early && elapsed + pause >= patience {
            return Err(failure(cause));
        }
        let level = if attempts == 1 { Level::Warn } else { Level::Debug };
        log.write(level, &format!("attempt {attempts} to read the pod failed and is repeated: {cause}"));
        // The pod may hang here for long: whoever looks for it should find out why.
        log.send();
        if let Some(stopped) = interrupt::sleep(pause).err().as_ref().and_then(Stopped::behind) {
            return Err(failure(Cause::Http(HttpError::Stopped(stopped))));
        }
        pause = (pause * 2).min(budget.longest_pause);
    }
}

/// One attempt. On failure the server is given as far as it is known.
fn attempt(
    kubeconfig: &Path,
    pod: &str,
    namespace: Option<&str>,
    patience: Duration,
) -> Result<Found, (String, Cause)> {
    let text = fs::read_to_string(kubeconfig).map_err(|source| (String::new(), Cause::Kubeconfig { source }))?;
    let content = |reason: String| Cause::KubeconfigContent { reason };
    let access = Kubeconfig::parse(&text).map_err(|error| (String::new(), content(error.to_string())))?;
    let failed = |cause| (access.server.clone(), cause);
    let server = url::Server::parse(&access.server).map_err(|error| failed(content(error.to_string())))?;
    let trust = tls::client_config(&access.trust).map_err(|error| failed(content(error.to_string())))?;
    let read = |path: &str, kind: &'static str| {
        let deadline = Instant::now() + patience;
        let answer = request::get(&server, Arc::clone(&trust), path, &access.token, deadline).map_err(Cause::Http)?;
        object(answer, kind)
    };
    let pod = read(pod, "Pod").map_err(failed)?;
    let namespace = namespace.map(|path| read(path, "Namespace")).transpose().map_err(failed)?;
    Ok(Found { pod, namespace_labels: namespace.unwrap_or_default().metadata.labels })
}

/// The object in an answer; of another kind than a pod only the metadata is of interest.
fn object(answer: Answer, kind: &'static str) -> Result<Pod, Cause> {
    if answer.status != 200 {
        return Err(Cause::Status { code: answer.status, message: failure::status_message(&answer.body) });
    }
    let not = |reason: String| Cause::NotTheObject { kind, reason };
    let object: Pod = serde_json::from_slice(&answer.body).map_err(|error| not(error.to_string()))?;
    // Anything else that answers with JSON must not pass for a pod without a sidecar.
    if object.kind != kind || object.metadata.name.is_empty() {
        return Err(not(format!("it is of kind `{}`", object.kind)));
    }
    Ok(object)
}
