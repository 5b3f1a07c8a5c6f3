//! Does a pod belong to ambient mode, and if not, why not?
//!
//! Asked only where ambient mode is on, for pods that names alone did not decide about. Pods that do not belong to it
//! may still be redirected to a sidecar.

use std::fmt;

use crate::names::STATUS;
use crate::pod::Pod;
use crate::selectors::{Labels, Selectors};

/// Why a pod is not one of ambient mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotAmbient {
    /// It shares the node's network.
    HostNetwork,
    /// It was injected with a sidecar.
    HasSidecar,
    /// No selector selects it in its namespace.
    NotSelected,
}

impl NotAmbient {
    /// The reason as one word, for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostNetwork => "host-network",
            Self::HasSidecar => "has-sidecar",
            Self::NotSelected => "not-selected",
        }
    }
}

impl fmt::Display for NotAmbient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why ambient mode never takes `pod`, whatever its namespace says; `None` when that depends on the labels of both.
pub fn never(pod: &Pod) -> Option<NotAmbient> {
    if pod.spec.host_network {
        Some(NotAmbient::HostNetwork)
    } else if pod.annotation(STATUS).is_some() {
        Some(NotAmbient::HasSidecar)
    } else {
        None
    }
}

/// Whether ambient mode takes `pod`. `namespace` holds the labels of its namespace.
///
/// # Errors
/// The reason why it does not.
pub fn eligible(selectors: &Selectors, pod: &Pod, namespace: &Labels) -> Result<(), NotAmbient> {
    match never(pod) {
        Some(reason) => Err(reason),
        None if selectors.select(&pod.metadata.labels, namespace) => Ok(()),
        None => Err(NotAmbient::NotSelected),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The two entries that Istio's chart installs.
    fn of_the_chart() -> Selectors {
        let mode = "istio.io/dataplane-mode";
        let ambient = json!({"matchLabels": {mode: "ambient"}});
        let not_none = json!({"matchExpressions": [{"key": mode, "operator": "NotIn", "values": ["none"]}]});
        let entries = [json!({"podSelector": ambient}), json!({"podSelector": not_none, "namespaceSelector": ambient})];
        Selectors::compile(&entries).unwrap()
    }

    fn verdict(pod: serde_json::Value, namespace_mode: Option<&str>) -> Result<(), NotAmbient> {
        let mode = |mode: &str| ("istio.io/dataplane-mode".to_owned(), mode.to_owned());
        let namespace = namespace_mode.map(mode).into_iter().collect();
        eligible(&of_the_chart(), &serde_json::from_value(pod).unwrap(), &namespace)
    }

    fn labelled(mode: &str) -> serde_json::Value {
        json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}})
    }

    #[test]
    fn a_label_of_the_pod_or_of_its_namespace_makes_it_ambient_and_the_pod_has_the_last_word() {
        assert_eq!(verdict(labelled("ambient"), None), Ok(()));
        assert_eq!(verdict(json!({}), Some("ambient")), Ok(()));
        assert_eq!(verdict(labelled("none"), Some("ambient")), Err(NotAmbient::NotSelected));
        assert_eq!(verdict(json!({}), None), Err(NotAmbient::NotSelected));
    }

    #[test]
    fn sidecars_and_pods_of_the_nodes_network_are_never_ambient() {
        let mut pod = labelled("ambient");
        pod["metadata"]["annotations"] = json!({"sidecar.istio.io/status": ""});
        assert_eq!(verdict(pod.clone(), Some("ambient")), Err(NotAmbient::HasSidecar));
        pod["spec"] = json!({"hostNetwork": true});
        assert_eq!(verdict(pod, Some("ambient")), Err(NotAmbient::HostNetwork));
    }
}
