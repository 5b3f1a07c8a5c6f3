//! The local admin port: log levels, to be looked at and changed while the agent runs.
//!
//! Paths and keys are those of Istio's introspection port, so that its tools work: `GET /scopej/`, `GET` and `PUT
//! /scopej/<scope>` with `{"output_level":"debug"}`; `/scopez` is the same. There is nothing secret here, and nothing
//! but levels can be changed. A new level of `cni-plugin` goes into the CNI list as well.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};

use crate::health::listen;
use crate::log::levels::{Level, Levels, SCOPES};

/// Largest request, in bytes.
const MAX_BODY: usize = 4 << 10;

/// A scope, as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    name: &'static str,
    description: &'static str,
    output_level: &'static str,
    stack_trace_level: &'static str,
    log_callers: bool,
}

/// What is to change.
#[derive(Debug, Deserialize)]
struct Wanted {
    output_level: String,
}

/// What is said to a request that makes no sense.
type Refusal = (StatusCode, String);

/// Serves until the task is dropped.
pub async fn serve(levels: Arc<Levels>, address: SocketAddr) {
    let listener = listen(address, "log levels").await;
    if let Err(error) = axum::serve(listener, router(levels)).await {
        tracing::error!(%error, "log levels are not served any more");
    }
}

fn router(levels: Arc<Levels>) -> Router {
    ["/scopej", "/scopez"]
        .into_iter()
        .fold(Router::new(), |router, path| {
            router
                .route(path, get(all))
                .route(&format!("{path}/"), get(all))
                .route(&format!("{path}/{{scope}}"), get(one).put(change))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(levels)
}

async fn all(State(levels): State<Arc<Levels>>) -> Result<Response, Refusal> {
    json(&SCOPES.into_iter().filter_map(|(name, _)| shown(&levels, name)).collect::<Vec<_>>())
}

async fn one(State(levels): State<Arc<Levels>>, Path(scope): Path<String>) -> Result<Response, Refusal> {
    json(&shown(&levels, &scope).ok_or_else(|| unknown(&scope))?)
}

async fn change(
    State(levels): State<Arc<Levels>>,
    Path(scope): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let refuse = |text: String| (StatusCode::BAD_REQUEST, text);
    let wanted: Wanted = serde_json::from_slice(&body)
        .map_err(|error| refuse(format!("{{\"output_level\":\"debug\"}} or the like is needed: {error}\n")))?;
    let level = Level::parse(&wanted.output_level).ok_or_else(|| {
        refuse(format!("unknown level {:?}; debug, info, warn, error, fatal and none are known\n", wanted.output_level))
    })?;
    if !levels.set(&scope, level) {
        return Err(unknown(&scope));
    }
    tracing::info!(of = scope, level = level.as_str(), "log level changed");
    Ok(StatusCode::ACCEPTED)
}

fn shown(levels: &Levels, scope: &str) -> Option<Shown> {
    let level = levels.get(scope)?;
    let (name, description) = SCOPES.into_iter().find(|(name, _)| *name == scope)?;
    let (output_level, stack_trace_level) = (level.as_str(), Level::None.as_str());
    Some(Shown { name, description, output_level, stack_trace_level, log_callers: false })
}

fn unknown(scope: &str) -> Refusal {
    let names: Vec<_> = SCOPES.into_iter().map(|(name, _)| name).collect();
    (StatusCode::BAD_REQUEST, format!("unknown scope name: {scope}; there are {}\n", names.join(", ")))
}

fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text =
        serde_json::to_string(value).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}
