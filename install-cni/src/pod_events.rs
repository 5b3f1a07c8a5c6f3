//! Tells on a pod, as a Kubernetes event, that its traffic is not captured although one would expect it.
//!
//! There are several reasons. Some the plugin finds while it sets a pod up, when it cannot tell anybody but us: the log
//! sink hands those on. Others show in the pods themselves, whenever one comes or changes. Each is told once per pod;
//! an API server that does not let us is told of once in the log.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agent_api::logs::Entry;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mesh::{Decision, Pod, SkipReason, decide, decide_by_name};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

use crate::cluster::{self, ClusterError, with_sources};
use crate::config::Config;
use crate::pods::Pods;

/// Who reports.
const CONTROLLER: &str = "istio-cni";
/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Until the next look at the pods after one that could not be told.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// HTTP status of a request that the service account may not make.
const FORBIDDEN: u16 = 403;

/// Why traffic of a pod is not captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its proxy is set up for the other family of addresses: `IPv4` or `IPv6` is not captured.
    Family(&'static str),
    /// The injector was at it, but its namespace is one that this node excludes.
    NamespaceExcluded,
}

/// A plugin found that traffic of a pod is not captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    namespace: String,
    pod: String,
    reason: Reason,
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

/// Tells events, each once per pod.
#[derive(Debug)]
pub struct Teller {
    config: Arc<Config>,
    pods: Arc<Pods>,
    /// By UID.
    told: HashSet<(String, Reason)>,
    /// Pods by UID that are in the log.
    logged: HashSet<String>,
    forbidden: bool,
}

impl Reason {
    fn event(self, pod: &Pod) -> Event {
        let (reason, note) = match self {
            Self::Family(family) => (
                "TrafficNotCaptured",
                format!(
                    "{family} connections of this pod are not captured by its sidecar, since its first address is of another \
                     family and ISTIO_DUAL_STACK is not true for its proxy"
                ),
            ),
            Self::NamespaceExcluded => (
                "NamespaceExcluded",
                format!(
                    "this pod has a sidecar, but the CNI plugin leaves all pods of namespace {} alone (EXCLUDE_NAMESPACES of \
                     istio-cni-node), so its traffic is not captured and istio-validation fails; take the namespace off \
                     that list, or switch injection off for it",
                    pod.metadata.namespace
                ),
            ),
        };
        let action = "Redirect".to_owned();
        Event { type_: EventType::Warning, reason: reason.to_owned(), note: Some(note), action, secondary: None }
    }
}

impl Report {
    /// What an entry of a plugin's log reports; most report nothing.
    pub fn of(entry: &Entry) -> Option<Self> {
        let text = |key: &str| entry.labels.get(key).and_then(Value::as_str);
        let family =
            text("uncaptured").and_then(|family| ["IPv4", "IPv6"].into_iter().find(|known| *known == family))?;
        let (namespace, pod) = text("pod")?.split_once('/')?;
        Some(Self { namespace: namespace.to_owned(), pod: pod.to_owned(), reason: Reason::Family(family) })
    }
}

impl Teller {
    /// For these pods. Nothing was told before.
    pub fn new(config: Arc<Config>, pods: Arc<Pods>) -> Self {
        Self { config, pods, told: HashSet::new(), logged: HashSet::new(), forbidden: false }
    }

    /// Tells each of `reports`, and what the pods show, until the task is dropped.
    pub async fn run(mut self, mut reports: Receiver<Report>) {
        let mut changes = self.pods.changes();
        let mut again = None;
        loop {
            let look = async {
                match again {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => changes.next().await,
                }
            };
            tokio::select! {
                Some(report) = reports.recv() => self.report(&report).await,
                () = look => again = (!self.look().await).then(|| Instant::now() + TRY_AGAIN),
            }
        }
    }

    async fn report(&mut self, Report { namespace, pod: name, reason }: &Report) {
        // Only our own pods, so that nobody can have events made on others.
        match self.pods.get(namespace, name) {
            Some(pod) => {
                self.tell(&pod, *reason).await;
            }
            None => tracing::debug!(namespace, pod = name, "no event, since the pod is not known"),
        }
    }

    /// Looks through the pods. False when something could not be told.
    async fn look(&mut self) -> bool {
        self.told.retain(|(uid, _)| self.pods.has_uid(uid));
        self.logged.retain(|uid| self.pods.has_uid(uid));
        for pod in self.pods.filter(|pod| is_excluded_by_mistake(&self.config, pod)) {
            if self.logged.insert(pod.metadata.uid.clone()) {
                tracing::warn!(
                    namespace = pod.metadata.namespace,
                    pod = pod.metadata.name,
                    "the pod has a sidecar, but its namespace is excluded on this node (EXCLUDE_NAMESPACES), so its traffic is not captured"
                );
            }
            if !self.tell(&pod, Reason::NamespaceExcluded).await {
                return false;
            }
        }
        true
    }

    /// True when it has been told, now or before.
    async fn tell(&mut self, pod: &Pod, reason: Reason) -> bool {
        let key = (pod.metadata.uid.clone(), reason);
        if self.told.contains(&key) {
            return true;
        }
        match publish(&self.config, pod, &reason.event(pod)).await {
            Ok(()) => {
                self.told.insert(key);
                return true;
            }
            Err(TellError::Api(kube::Error::Api(status))) if status.code == FORBIDDEN => {
                if !std::mem::replace(&mut self.forbidden, true) {
                    tracing::warn!(
                        cause = status.message,
                        "traffic that is not captured cannot be told on the pods: the ClusterRole istio-cni does not allow to create events"
                    );
                }
            }
            Err(error) => {
                let (namespace, pod, cause) = (&pod.metadata.namespace, &pod.metadata.name, with_sources(&error));
                tracing::warn!(namespace, pod, cause, "traffic that is not captured is not told on the pod yet");
            }
        }
        false
    }
}

/// Whether it would be captured in another namespace.
fn is_excluded_by_mistake(config: &Config, pod: &Pod) -> bool {
    let (plugin, metadata) = (&config.plugin, &pod.metadata);
    let by_name =
        decide_by_name(&metadata.name, &metadata.namespace, &plugin.pod_namespace, &plugin.exclude_namespaces);
    by_name == Some(SkipReason::NamespaceExcluded) && !matches!(decide(pod), Ok(Decision::Skip(_)))
}

async fn publish(config: &Config, pod: &Pod, event: &Event) -> Result<(), TellError> {
    let metadata = &pod.metadata;
    let reference = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(metadata.name.clone()),
        namespace: Some(metadata.namespace.clone()),
        uid: Some(metadata.uid.clone()),
        ..ObjectReference::default()
    };
    let instance = Some(config.agent.pod_name.clone()).filter(|name| !name.is_empty());
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance };
    let recorder = Recorder::new(cluster::client(&config.kubeconfig)?, reporter);
    match tokio::time::timeout(PATIENCE, recorder.publish(event, &reference)).await {
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
        let expected = Report { namespace: "shop".to_owned(), pod: "web".to_owned(), reason: Reason::Family("IPv6") };
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
