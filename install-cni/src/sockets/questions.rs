//! `agent.sock`: plugins ask about pods, and tell when sandboxes go.
//!
//! Nothing is kept per sandbox in this version, so the latter are noted and forgotten.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agent_api::ask::{ATTACHMENTS_PATH, Attachments, GONE_PATH, MAX_BODY, VERDICT_PATH};
use agent_api::logs::Entry;
use agent_api::{Question, Verdict, paths};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::de::DeserializeOwned;
use serde_json::Map;
use sys::log::rfc3339_micros;

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
    let mut answer = match answer_by_name(&question, &desk.config.plugin) {
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
    if answer.verdict == Verdict::Skip && question.verb == "ADD" {
        answer.recorded = true;
        // Not before the plugin has its answer.
        tokio::spawn(record(Arc::clone(&desk), question, answer.reason.clone()));
    }
    let text =
        serde_json::to_string(&answer).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Writes and counts the outcome that an ADD has with this answer, as if the plugin had told it: one request less for most
/// of the pods of a node.
async fn record(desk: Arc<Desk>, question: Question, reason: String) {
    let mut labels = Map::new();
    for (key, value) in [
        ("verb", question.verb),
        ("container_id", question.container_id),
        ("netns", question.netns),
        ("if", question.ifname),
        ("pod", format!("{}/{}", question.namespace, question.pod)),
        ("source", "agent".to_owned()),
        ("decision", "skip".to_owned()),
        ("reason", reason),
    ] {
        labels.insert(key.to_owned(), value.into());
    }
    let (level, message) = ("info".to_owned(), agent_api::logs::LEFT_ALONE.to_owned());
    let entry = Entry { level, time: rfc3339_micros(SystemTime::now()), message, labels };
    desk.metrics.outcome(&entry);
    desk.config.agent.plugin_log.write(vec![entry]);
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
