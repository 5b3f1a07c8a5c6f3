//! Why a pod could not be read, as the runtime and a person get to see it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cni::Error;
use cni::error::code;
use serde_json::Value;
use thiserror::Error;

use crate::codes;
use crate::http::HttpError;

/// Longest part of a server's message that is passed on, in characters.
const MAX_MESSAGE: usize = 500;

/// What the last attempt ran into.
#[derive(Debug, Error)]
pub enum Cause {
    /// The kubeconfig cannot be read.
    #[error("{source}")]
    Kubeconfig {
        /// The system's reason.
        source: io::Error,
    },
    /// The kubeconfig cannot be understood.
    #[error("{reason}")]
    KubeconfigContent {
        /// What is wrong with it.
        reason: String,
    },
    /// No answer.
    #[error(transparent)]
    Http(HttpError),
    /// An answer other than 200.
    #[error("the answer was {code}{}", if message.is_empty() { String::new() } else { format!(": {message}") })]
    Status {
        /// HTTP status.
        code: u16,
        /// Message of the `Status` object, or empty.
        message: String,
    },
    /// 200, but not with what was asked for.
    #[error("the answer was 200, but not a {kind}: {reason}")]
    NotTheObject {
        /// What was asked for.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// A pod that could not be read.
#[derive(Debug)]
pub struct Failure {
    /// `namespace/name` of the pod.
    pub resource: String,
    /// Path of the request.
    pub path: String,
    /// URL of the API server, empty when it is not known.
    pub server: String,
    /// Path of the kubeconfig.
    pub kubeconfig: PathBuf,
    /// Attempts made.
    pub attempts: u32,
    /// Time they took.
    pub elapsed: Duration,
    /// What the last one ran into.
    pub cause: Cause,
}

impl Failure {
    /// The error object's content.
    pub fn into_cni(self) -> Error {
        let kubeconfig = self.kubeconfig.display();
        let request = format!(
            "pod {}: GET {} at {} failed after {} attempts in {} ms: {}",
            self.resource,
            self.path,
            self.server,
            self.attempts,
            self.elapsed.as_millis(),
            self.cause
        );
        let agent = "is the istio-cni-node pod on this node running?";
        let (code, message) = match &self.cause {
            Cause::Kubeconfig { source } => {
                let message =
                    format!("pod {}: kubeconfig {kubeconfig} cannot be read: {source}; {agent}", self.resource);
                (code::IO, message)
            }
            Cause::KubeconfigContent { reason } => {
                let message = format!(
                    "pod {}: kubeconfig {kubeconfig} cannot be understood: {reason}; the agent writes it: {agent}",
                    self.resource
                );
                (code::DECODE, message)
            }
            Cause::Status { code: 401, .. } => (
                codes::CREDENTIALS_REFUSED,
                format!("{request}; the token in {kubeconfig} is not valid, and the agent renews it: {agent}"),
            ),
            Cause::Status { code: 403, .. } => (
                codes::CREDENTIALS_REFUSED,
                format!(
                    "{request}; the service account of {kubeconfig} lacks the right to get pods: check its ClusterRole"
                ),
            ),
            Cause::Status { code: 404, .. } => (
                codes::POD_NOT_FOUND,
                format!("{request}; the pod may have been deleted, and then this ends by itself"),
            ),
            Cause::Http(HttpError::Stopped(stopped)) => {
                (code::TRY_AGAIN, format!("pod {} was being read when {stopped}; nothing was done", self.resource))
            }
            Cause::Http(HttpError::Tls(_)) => (
                code::TRY_AGAIN,
                format!("{request}; does the authority in {kubeconfig} fit the API server's certificate?"),
            ),
            _ => (code::TRY_AGAIN, format!("{request}; is the API server reachable from this node?")),
        };
        Error::new(code, message)
    }
}

/// The message in a `Status` object.
pub(super) fn status_message(body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status.get("message").and_then(Value::as_str).unwrap_or_default();
    message.chars().take(MAX_MESSAGE).collect()
}
