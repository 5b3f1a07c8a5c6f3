//! `log.sock`: takes the log of plugins. What they say goes to the agent's log, and is counted.
//!
//! Plugins are answered 200 whatever they send, as Istio's agent does: those of older versions know nothing else.

use std::path::PathBuf;
use std::sync::Arc;

use agent_api::logs::{LOG_PATH, MAX_BATCH, REFUSED, parse};
use agent_api::paths;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::any;
use tokio::sync::mpsc::Sender;

use crate::config::Config;
use crate::credential::Credential;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pod_events::Report;

#[derive(Debug)]
struct Sink {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    reports: Sender<Report>,
    credential: Arc<Credential>,
}

/// Serves until the task is dropped. Entries that tell of uncaptured traffic go to `reports` as well, and `credential`
/// hears of a token that was refused.
pub async fn serve(
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    reports: Sender<Report>,
    credential: Arc<Credential>,
    health: Arc<Health>,
) {
    let path: PathBuf = paths::log_socket(&config.dirs.run);
    let sink = Sink { config, metrics, reports, credential };
    let router = Router::new().route(LOG_PATH, any(take)).with_state(Arc::new(sink));
    super::serve(paths::LOG_SOCKET_NAME, &path, router, &health).await;
}

async fn take(State(sink): State<Arc<Sink>>, request: Request) -> StatusCode {
    let Ok(body) = to_bytes(request.into_body(), MAX_BATCH).await else {
        sink.metrics.entries(0, 1);
        tracing::warn!(limit = MAX_BATCH, "a batch of log entries was too large or broke off, it is dropped");
        return StatusCode::OK;
    };
    let batch = parse(&body);
    sink.metrics.entries(batch.entries.len(), batch.dropped);
    if batch.dropped > 0 {
        tracing::debug!(dropped = batch.dropped, "log entries were not understood");
    }
    for entry in &batch.entries {
        sink.metrics.outcome(entry);
        if entry.labels.get(REFUSED.0).is_some_and(|value| value == REFUSED.1) {
            sink.credential.refused();
        }
        if let Some(report) = Report::of(entry)
            && sink.reports.try_send(report).is_err()
        {
            tracing::debug!("too many reports of uncaptured traffic at once");
        }
    }
    sink.config.agent.plugin_log.write(batch.entries);
    StatusCode::OK
}
