//! The plugin's element of a CNI list: written by the agent, read by the plugin on stdin.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::ask::is_default;
use crate::paths::{DEFAULT_RUN_DIR, PLUGIN_NAME};

/// Settings of the plugin. Keys, order and defaults equal Istio's; unknown keys are ignored when reading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginConfig {
    /// `debug`, `info`, `warn`, `error`, `fatal` or `none`; empty means `info`.
    pub plugin_log_level: String,
    /// Directory with kubeconfig, sockets and rolling log, as the host sees it.
    pub cni_agent_run_dir: String,
    /// Turns the ambient branch on.
    pub ambient_enabled: bool,
    /// Which pods belong to ambient mode, as Kubernetes label selectors.
    #[serde(deserialize_with = "null_is_default")]
    pub enablement_selectors: Vec<Value>,
    /// Namespaces whose pods are never touched. Written as `null` when empty, as Istio does.
    #[serde(deserialize_with = "null_is_default", serialize_with = "empty_is_null")]
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the agent, for self detection.
    pub pod_namespace: String,
    /// Native nftables rules instead of the iptables-compatible form.
    pub native_nftables: bool,
    /// Ambient only: fail instead of falling through when a pod's mode cannot be read.
    pub enable_ambient_detection_retry: bool,
    /// The agent's pods are on the node's network, so that they start whatever STATUS says. Ours, and written only when
    /// true.
    #[serde(skip_serializing_if = "is_default")]
    pub agent_host_network: bool,
    /// Refuse a family of addresses that a pod has and that is not captured, unless the pod says otherwise. Not one of
    /// Istio's keys, and written only when it is on.
    #[serde(skip_serializing_if = "is_default")]
    pub refuse_uncaptured: bool,
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            plugin_log_level: String::new(),
            cni_agent_run_dir: DEFAULT_RUN_DIR.to_owned(),
            ambient_enabled: false,
            enablement_selectors: Vec::new(),
            exclude_namespaces: Vec::new(),
            pod_namespace: String::new(),
            native_nftables: false,
            enable_ambient_detection_retry: false,
            agent_host_network: false,
            refuse_uncaptured: false,
        }
    }
}

impl PluginConfig {
    /// The element as a JSON object, keys in Istio's order. `cni_version` is given for a stand-alone file only: inside
    /// a list the list's own version holds.
    ///
    /// # Errors
    /// Only if a value cannot be expressed in JSON, which no field of this type allows.
    pub fn element(&self, cni_version: Option<&str>) -> Result<Map<String, Value>, serde_json::Error> {
        let mut element = Map::new();
        if let Some(version) = cni_version {
            element.insert("cniVersion".to_owned(), version.into());
        }
        element.insert("name".to_owned(), PLUGIN_NAME.into());
        element.insert("type".to_owned(), PLUGIN_NAME.into());
        element.insert("ipam".to_owned(), Value::Object(Map::new()));
        element.insert("dns".to_owned(), Value::Object(Map::new()));
        if let Value::Object(own) = serde_json::to_value(self)? {
            element.extend(own);
        }
        Ok(element)
    }
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

fn empty_is_null<S: serde::Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { serializer.collect_seq(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_has_istios_keys_in_istios_order() {
        let text = serde_json::to_string(&PluginConfig::default().element(Some("0.3.1")).unwrap()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","ipam":{},"dns":{},"plugin_log_level":"","#,
                r#""cni_agent_run_dir":"/var/run/istio-cni","ambient_enabled":false,"enablement_selectors":[],"#,
                r#""exclude_namespaces":null,"pod_namespace":"","native_nftables":false,"enable_ambient_detection_retry":false}"#
            )
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let config = PluginConfig {
            exclude_namespaces: vec!["kube-system".to_owned()],
            refuse_uncaptured: true,
            ..PluginConfig::default()
        };
        let text = serde_json::to_string(&config.element(None).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<PluginConfig>(&text).unwrap(), config);
        let none: PluginConfig = serde_json::from_str(r#"{"exclude_namespaces":null,"kubernetes":{}}"#).unwrap();
        assert_eq!(none, PluginConfig::default());
    }
}
