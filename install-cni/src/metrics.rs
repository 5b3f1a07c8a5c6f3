//! What is counted, and `/metrics`, where it is read.
//!
//! Names are Istio's where Istio has such a metric. The text is OpenMetrics; the library appends `_total` to counters.
//! What comes from a socket is a label only if it is one of the words we know, so that nobody can make endless series.

pub mod installs;
mod now;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agent_api::Verdict;
use agent_api::logs::Entry;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mesh::SkipReason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde_json::Value;

use self::now::Now;
use crate::health::{Health, listen};

/// What a socket said that is no word we know.
const OTHER: &str = "other";
/// Verbs of a plugin.
const VERBS: [&str; 6] = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"];
/// Decisions of a plugin.
const DECISIONS: [&str; 4] = ["skip", "redirect", "ambient", "error"];
/// Reasons beside those of [`SkipReason`].
const REASONS: [&str; 2] = ["redirect", "ambient"];
/// Codes of CNI errors are smaller; ours end long before.
const CODES: u64 = 128;
/// Families of addresses.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Upper bounds of durations, in seconds: an ADD takes milliseconds, or waits for an API server.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 100.0];
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: Family<Decided, Counter>,
    add_duration: Histogram,
    uncaptured: Family<Uncaptured, Counter>,
    entries: Family<Taken, Counter>,
    answers: Family<Answered, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    verb: &'static str,
    decision: &'static str,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Uncaptured {
    family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Taken {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    verdict: &'static str,
}

impl Metrics {
    /// Counts from zero. What `health` knows is shown as well, and how old the file `kubeconfig` is.
    pub fn new(health: &Arc<Health>, kubeconfig: PathBuf) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            decisions: Family::default(),
            add_duration: Histogram::new(BUCKETS),
            uncaptured: Family::default(),
            entries: Family::default(),
            answers: Family::default(),
        };
        let own = metrics.registry.sub_registry_with_prefix("istio_cni");
        own.register("build", "The running agent", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        health.installs().register(own);
        own.register_collector(Box::new(Now { health: Arc::clone(health), kubeconfig }));
        own.register("plugin_decisions", "What plugins did with pods", metrics.decisions.clone());
        own.register("plugin_add_duration_seconds", "How long an ADD took", metrics.add_duration.clone());
        own.register("uncaptured_family", "Pods with addresses that are not captured", metrics.uncaptured.clone());
        own.register("plugin_log_entries", "Entries of plugins' logs", metrics.entries.clone());
        own.register("plugin_answers", "Answers to questions of plugins", metrics.answers.clone());
        metrics
    }

    /// A plugin's log has come.
    pub fn entries(&self, received: usize, dropped: usize) {
        for (result, count) in [("received", received), ("dropped", dropped)] {
            self.entries.get_or_create(&Taken { result }).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// A plugin was answered.
    pub fn answered(&self, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Skip => "skip",
            Verdict::Redirect => "redirect",
            Verdict::Refuse => "refuse",
            Verdict::Unknown => "unknown",
        };
        self.answers.get_or_create(&Answered { verdict }).inc();
    }

    /// Counts what an entry says about the end of a call; most say nothing about it.
    pub fn outcome(&self, entry: &Entry) {
        let text = |key: &str| entry.labels.get(key).and_then(Value::as_str);
        let Some(decision) = text("decision") else { return };
        let verb = known(text("verb"), VERBS);
        let reason = reason(text("reason"), entry.labels.get("code").and_then(Value::as_u64));
        self.decisions.get_or_create(&Decided { verb, decision: known(Some(decision), DECISIONS), reason }).inc();
        if let ("ADD", Some(elapsed)) = (verb, entry.labels.get("elapsed_ms").and_then(Value::as_f64)) {
            self.add_duration.observe(elapsed / 1e3);
        }
        if let Some(family) = text("uncaptured") {
            self.uncaptured.get_or_create(&Uncaptured { family: known(Some(family), FAMILIES) }).inc();
        }
    }

    /// All of it as text.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Serves until the task is dropped.
pub async fn serve(metrics: Arc<Metrics>, address: SocketAddr) {
    let listener = listen(address, "metrics").await;
    let router = Router::new().route("/metrics", get(|| async move { page(&metrics) }));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "metrics are not served any more");
    }
}

fn page(metrics: &Metrics) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn known<const N: usize>(text: Option<&str>, words: [&'static str; N]) -> &'static str {
    words.into_iter().find(|word| Some(*word) == text).unwrap_or(OTHER)
}

/// The reason, or the code of an error.
fn reason(text: Option<&str>, code: Option<u64>) -> String {
    match (text, code) {
        (None, Some(code)) if code < CODES => format!("code-{code}"),
        _ => match SkipReason::ALL.into_iter().map(SkipReason::as_str).find(|word| Some(*word) == text) {
            Some(word) => word.to_owned(),
            None => known(text, REASONS).to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use agent_api::logs::parse;

    use super::*;

    fn after(labels: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, "").unwrap();
        let health = Arc::new(Health::default());
        let metrics = Metrics::new(&health, file);
        health.installs().token_ends(Some(SystemTime::now() - Duration::from_secs(10)));
        health.installs().failed("credentials");
        health.in_order("list");
        health.in_order("programs");
        health.turn();
        health.turn();
        health.missing_part("programs", "they have gone");
        health.installs().reverted();
        for labels in labels {
            let line = format!("{{\"level\":\"info\",\"time\":\"2020-01-01T00:00:00Z\",\"msg\":\"\",{labels}}}\n");
            let batch = parse(line.as_bytes());
            metrics.entries(batch.entries.len(), batch.dropped);
            batch.entries.iter().for_each(|entry| metrics.outcome(entry));
        }
        metrics.answered(Verdict::Refuse);
        metrics.text().unwrap()
    }

    #[track_caller]
    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|have| have == *line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn metrics_have_the_names_that_dashboards_know() {
        let text = after(&[
            r#""verb":"ADD","decision":"redirect","reason":"redirect","elapsed_ms":7.5,"uncaptured":"IPv6""#,
            r#""verb":"ADD","decision":"skip","reason":"no-sidecar-status","elapsed_ms":0.4"#,
            r#""verb":"ADD","decision":"error","code":101,"elapsed_ms":0.5"#,
            // Other entries of the same call carry its labels too.
            r#""verb":"ADD","pod":"shop/web","uncaptured":"IPv6""#,
        ]);
        has(
            &text,
            &[
                &format!("istio_cni_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
                "istio_cni_installs_total{result=\"SUCCESS\"} 1",
                "istio_cni_installs_total{result=\"CREATE_KUBECONFIG_FAILURE\"} 1",
                "istio_cni_install_ready 1",
                "istio_cni_plugin_decisions_total{verb=\"ADD\",decision=\"redirect\",reason=\"redirect\"} 1",
                "istio_cni_plugin_decisions_total{verb=\"ADD\",decision=\"skip\",reason=\"no-sidecar-status\"} 1",
                "istio_cni_plugin_add_duration_seconds_bucket{le=\"0.001\"} 2",
                "istio_cni_plugin_add_duration_seconds_bucket{le=\"0.01\"} 3",
                "istio_cni_plugin_add_duration_seconds_count 3",
                "istio_cni_plugin_decisions_total{verb=\"ADD\",decision=\"error\",reason=\"code-101\"} 1",
                "istio_cni_ready_part{part=\"list\"} 1",
                "istio_cni_ready_part{part=\"programs\"} 0",
                "istio_cni_rival_writes_total 1",
                "istio_cni_uncaptured_family_total{family=\"IPv6\"} 1",
                "istio_cni_plugin_log_entries_total{result=\"received\"} 4",
                "istio_cni_plugin_answers_total{verdict=\"refuse\"} 1",
                "# EOF",
            ],
        );
    }

    #[test]
    fn ages_are_those_of_the_moment_in_which_they_are_read() {
        let text = after(&[]);
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
        };
        assert!(value("istio_cni_kubeconfig_age_seconds") >= 0.0);
        assert!(value("istio_cni_token_expiry_seconds") <= -10.0);
    }

    #[test]
    fn words_that_nobody_knows_make_no_series_of_their_own() {
        let labels: Vec<_> = (0..100)
            .map(|n| {
                format!(
                    "\"verb\":\"V{n}\",\"decision\":\"d{n}\",\"reason\":\"r{n}\",\"code\":{n},\"uncaptured\":\"f{n}\""
                )
            })
            .collect();
        let text = after(&labels.iter().map(String::as_str).collect::<Vec<_>>());
        has(
            &text,
            &[
                "istio_cni_plugin_decisions_total{verb=\"other\",decision=\"other\",reason=\"other\"} 100",
                "istio_cni_uncaptured_family_total{family=\"other\"} 100",
            ],
        );
    }
}
