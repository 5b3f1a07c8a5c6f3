//! `agent.sock`: plugins ask about pods, and tell when sandboxes go.
//!
//! Nothing is kept per sandbox in this version, so the latter are noted and forgotten.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_api::ask::{ATTACHMENTS_PATH, Attachments, GONE_PATH, MAX_BODY, VERDICT_PATH};
use agent_api::{Question, paths};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::de::DeserializeOwned;

use crate::answer::{answer, answer_by_name};
use crate::config::Config;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pods::Pods;

/// How long a pod may be unknown before the answer says so. The kubelet may have heard of it before us.
const PATIENCE: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct Desk {
    config: Arc<Config>,
    pods: Arc<Pods>,
    metrics: Arc<Metrics>,
}

/// What is said to a question that makes no sense.
type Refusal = (StatusCode, String);

/// Serves until the task is dropped.
pub async fn serve(config: Arc<Config>, pods: Arc<Pods>, metrics: Arc<Metrics>, health: Arc<Health>) {
    let path: PathBuf = paths::agent_socket(&config.dirs.run);
    let router = Router::new()
        .route(VERDICT_PATH, post(verdict))
        .route(GONE_PATH, post(gone))
        .route(ATTACHMENTS_PATH, post(attachments))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(Desk { config, pods, metrics }));
    super::serve(paths::AGENT_SOCKET_NAME, &path, router, &health).await;
}

async fn verdict(State(desk): State<Arc<Desk>>, body: Bytes) -> Result<Response, Refusal> {
    let question: Question = read(&body)?;
    let answer = match answer_by_name(&question, &desk.config.plugin) {
        Some(answer) => answer,
        None => answer(&question, &desk.pods.find(&question, PATIENCE).await, &desk.config.plugin),
    };
    desk.metrics.answered(answer.verdict);
    tracing::debug!(
        verb = question.verb,
        namespace = question.namespace,
        pod = question.pod,
        container_id = question.container_id,
        verdict = ?answer.verdict,
        reason = answer.reason,
        "question answered"
    );
    let text =
        serde_json::to_string(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

async fn gone(body: Bytes) -> Result<StatusCode, Refusal> {
    let Question { namespace, pod, container_id, .. } = read(&body)?;
    tracing::debug!(namespace, pod, container_id, "a sandbox goes");
    Ok(StatusCode::OK)
}

async fn attachments(body: Bytes) -> Result<StatusCode, Refusal> {
    let Attachments { network, valid } = read(&body)?;
    tracing::debug!(network, sandboxes = valid.len(), "the sandboxes of a network");
    Ok(StatusCode::OK)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))
}
