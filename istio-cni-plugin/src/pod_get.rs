//! Reads one pod from the API server with the kubeconfig that the agent keeps fresh.
//!
//! Fails closed, but not at once: the kubeconfig is read again before every attempt, since the agent may just have
//! renewed the token, and every kind of failure is retried inside one total deadline.

mod failure;
mod http;
mod tls;
mod url;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_api::Kubeconfig;
use mesh::Pod;

use crate::log::{Level, Logger};

pub use failure::{Cause, Failure};
pub use http::HttpError;
pub use tls::TrustError;
pub use url::UrlError;

/// Fewest attempts before giving up.
const MIN_ATTEMPTS: u32 = 3;

/// Patience towards the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// For everything together.
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

/// Reads the pod `namespace`/`name`.
///
/// # Errors
/// The last attempt's failure, after as many attempts as `budget` allows. A kubeconfig that is missing or broken is not
/// waited for: the runtime tries the whole sandbox again.
pub fn read_pod(
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
    budget: &Budget,
    log: &mut Logger,
) -> Result<Pod, Box<Failure>> {
    let started = Instant::now();
    let path = format!("/api/v1/namespaces/{}/pods/{}", url::encode_segment(namespace), url::encode_segment(name));
    let mut pause = budget.first_pause;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (server, cause) = match attempt(kubeconfig, &path, budget.request) {
            Ok(pod) => return Ok(pod),
            Err(failed) => failed,
        };
        let patience = match cause {
            Cause::Kubeconfig { .. } | Cause::KubeconfigContent { .. } => Duration::ZERO,
            Cause::Status { code: 404, .. } => budget.not_found.min(budget.total),
            _ => budget.total,
        };
        let elapsed = started.elapsed();
        let early = attempts < MIN_ATTEMPTS && !patience.is_zero();
        // The last request must still fit in, as far as the fewest attempts allow.
        if !early && elapsed + pause >= patience {
            return Err(Box::new(Failure {
                resource: format!("{namespace}/{name}"),
                path,
                server,
                kubeconfig: kubeconfig.to_owned(),
                attempts,
                elapsed,
                cause,
            }));
        }
        log.write(Level::Debug, &format!("attempt {attempts} to read the pod failed and is repeated: {cause}"));
        std::thread::sleep(pause);
        pause = (pause * 2).min(budget.longest_pause);
    }
}

/// One attempt. On failure the server is given as far as it is known.
fn attempt(kubeconfig: &Path, path: &str, patience: Duration) -> Result<Pod, (String, Cause)> {
    let text = fs::read_to_string(kubeconfig).map_err(|source| (String::new(), Cause::Kubeconfig { source }))?;
    let content = |reason: String| Cause::KubeconfigContent { reason };
    let access = Kubeconfig::parse(&text).map_err(|error| (String::new(), content(error.to_string())))?;
    let failed = |cause| (access.server.clone(), cause);
    let server = url::Server::parse(&access.server).map_err(|error| failed(content(error.to_string())))?;
    let trust = tls::client_config(&access.trust).map_err(|error| failed(content(error.to_string())))?;
    let deadline = Instant::now() + patience;
    let answer =
        http::get(&server, trust, path, &access.token, deadline).map_err(|error| failed(Cause::Http(error)))?;
    if answer.status != 200 {
        return Err(failed(Cause::Status { code: answer.status, message: failure::status_message(&answer.body) }));
    }
    let pod: Pod =
        serde_json::from_slice(&answer.body).map_err(|error| failed(Cause::NotAPod { reason: error.to_string() }))?;
    // Anything else that answers with JSON must not pass for a pod without a sidecar.
    if pod.kind != "Pod" || pod.metadata.name.is_empty() {
        return Err(failed(Cause::NotAPod { reason: format!("it is of kind `{}`", pod.kind) }));
    }
    Ok(pod)
}
