//! The agent of this node as the plugin sees it: somebody who may know all about a pod, and may not be there.
//!
//! Whatever goes wrong here is no failure of the call. A question without an answer is answered by the API server, and a
//! notice that nobody takes concerns nobody.

use std::path::Path;
use std::time::{Duration, Instant};

use agent_api::ask::{self, ATTACHMENTS_PATH, Attachments, GONE_PATH, VERDICT_PATH};
use agent_api::{Answer, Question, paths};
use serde::Serialize;
use thiserror::Error;

use crate::http::{HttpError, post, post_and_leave};

/// How long it may take to take a notice in.
const NOTICE_PATIENCE: Duration = Duration::from_millis(200);

/// Why the agent gave no answer.
#[derive(Debug, Error)]
pub(crate) enum NoAnswer {
    /// There is no answer at all.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It is none that we understand.
    #[error("it answered with status {status}: {reason}")]
    Unclear {
        /// HTTP status.
        status: u16,
        /// What it said, or what is wrong with that.
        reason: String,
    },
}

/// Asks the agent whose sockets are in `run_dir` about a pod.
pub(crate) fn ask(run_dir: &Path, question: &Question, patience: Duration) -> Result<Answer, NoAnswer> {
    let socket = paths::agent_socket(run_dir);
    let answer = post(&socket, VERDICT_PATH, &json(question), ask::MAX_BODY, Instant::now() + patience)?;
    let unclear = |reason: String| NoAnswer::Unclear { status: answer.status, reason };
    if answer.status != 200 {
        return Err(unclear(crate::http::excerpt(&answer.body)));
    }
    serde_json::from_slice(&answer.body).map_err(|error| unclear(error.to_string()))
}

/// Tells it that a sandbox goes.
pub(crate) fn tell_gone(run_dir: &Path, question: &Question) -> Result<(), HttpError> {
    tell(run_dir, GONE_PATH, &json(question))
}

/// Tells it which sandboxes there are.
pub(crate) fn tell_attachments(run_dir: &Path, attachments: &Attachments) -> Result<(), HttpError> {
    tell(run_dir, ATTACHMENTS_PATH, &json(attachments))
}

fn tell(run_dir: &Path, path: &str, body: &str) -> Result<(), HttpError> {
    post_and_leave(&paths::agent_socket(run_dir), path, body, Instant::now() + NOTICE_PATIENCE)
}

/// Texts, numbers and lists of them are all there is in these types, and JSON can express them.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
