//! Tells on a pod, as a Kubernetes event, that some of its traffic is not captured.
//!
//! The plugin finds that out while it sets the pod up, when it cannot tell anybody but us. Once per pod; an API server
//! that does not let us is told of once in the log. Fed by the log sink.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agent_api::logs::Entry;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mesh::Pod;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc::Receiver;

use crate::cluster::{self, ClusterError, with_sources};
use crate::config::Config;
use crate::pods::Pods;

/// Reason of the event.
const REASON: &str = "TrafficNotCaptured";
/// Who reports.
const CONTROLLER: &str = "istio-cni";
/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many pods are remembered before those that have gone are forgotten.
const REMEMBERED: usize = 512;
/// HTTP status of a request that the service account may not make.
const FORBIDDEN: u16 = 403;

/// A plugin found that traffic of a pod is not captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    namespace: String,
    pod: String,
    /// `IPv4` or `IPv6`.
    family: &'static str,
}

#[derive(Debug, Error)]
enum TellError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer from the API server within {} s", PATIENCE.as_secs())]
    Slow,
}

impl Report {
    /// What an entry of a plugin's log reports; most report nothing.
    pub fn of(entry: &Entry) -> Option<Self> {
        let text = |key: &str| entry.labels.get(key).and_then(Value::as_str);
        let family =
            text("uncaptured").and_then(|family| ["IPv4", "IPv6"].into_iter().find(|known| *known == family))?;
        let (namespace, pod) = text("pod")?.split_once('/')?;
        Some(Self { namespace: namespace.to_owned(), pod: pod.to_owned(), family })
    }
}

/// Tells each of `reports` until the task is dropped.
pub async fn tell(config: Arc<Config>, pods: Arc<Pods>, mut reports: Receiver<Report>) {
    let mut told = HashSet::new();
    let mut forbidden = false;
    while let Some(report) = reports.recv().await {
        // Only our own pods, so that nobody can have events made on others.
        let Some(pod) = pods.get(&report.namespace, &report.pod) else {
            tracing::debug!(namespace = report.namespace, pod = report.pod, "no event, since the pod is not known");
            continue;
        };
        if told.contains(&pod.metadata.uid) {
            continue;
        }
        match publish(&config, &pod, report.family).await {
            Ok(()) => {
                if told.len() >= REMEMBERED {
                    told.retain(|uid: &String| pods.has_uid(uid));
                }
                told.insert(pod.metadata.uid.clone());
            }
            Err(TellError::Api(kube::Error::Api(status))) if status.code == FORBIDDEN => {
                if !std::mem::replace(&mut forbidden, true) {
                    tracing::warn!(
                        cause = status.message,
                        "uncaptured traffic cannot be told on the pods: the ClusterRole istio-cni does not allow to create events"
                    );
                }
            }
            Err(error) => {
                let cause = with_sources(&error);
                tracing::warn!(
                    namespace = report.namespace,
                    pod = report.pod,
                    cause,
                    "uncaptured traffic is not told on the pod"
                );
            }
        }
    }
}

async fn publish(config: &Config, pod: &Pod, family: &str) -> Result<(), TellError> {
    let metadata = &pod.metadata;
    let reference = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(metadata.name.clone()),
        namespace: Some(metadata.namespace.clone()),
        uid: Some(metadata.uid.clone()),
        ..ObjectReference::default()
    };
    let note = format!(
        "{family} connections of this pod are not captured by its sidecar, since its first address is of another family \
         and ISTIO_DUAL_STACK is not true for its proxy"
    );
    let event = Event {
        type_: EventType::Warning,
        reason: REASON.to_owned(),
        note: Some(note),
        action: "Redirect".to_owned(),
        secondary: None,
    };
    let instance = Some(config.agent.pod_name.clone()).filter(|name| !name.is_empty());
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance };
    let recorder = Recorder::new(cluster::client(&config.kubeconfig)?, reporter);
    match tokio::time::timeout(PATIENCE, recorder.publish(&event, &reference)).await {
        Ok(published) => Ok(published?),
        Err(_) => Err(TellError::Slow),
    }
}

#[cfg(test)]
mod tests {
    use agent_api::logs::parse;

    use super::*;

    fn report(labels: &str) -> Option<Report> {
        let line = format!("{{\"level\":\"warn\",\"time\":\"2020-01-01T00:00:00Z\",\"msg\":\"\",{labels}}}\n");
        parse(line.as_bytes()).entries.first().and_then(Report::of)
    }

    #[test]
    fn only_entries_about_uncaptured_traffic_of_a_pod_are_reports() {
        let expected = Report { namespace: "shop".to_owned(), pod: "web".to_owned(), family: "IPv6" };
        assert_eq!(report(r#""pod":"shop/web","uncaptured":"IPv6""#), Some(expected));
        for labels in [
            r#""pod":"shop/web""#,
            r#""pod":"shop/web","uncaptured":"all""#,
            r#""pod":"web","uncaptured":"IPv6""#,
            r#""uncaptured":"IPv6""#,
        ] {
            assert_eq!(report(labels), None, "{labels}");
        }
    }
}
