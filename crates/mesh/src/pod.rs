//! As much of a pod as decisions need, read straight from Kubernetes' JSON.
//!
//! Kubernetes leaves out what is empty and some writers put `null` there: both read as empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::ambient;
use crate::names::{INIT_CONTAINER, PROXY_CONTAINER};

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// `Pod`, if it is one.
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// Name, namespace and what is attached to them.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// What it consists of.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: Spec,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// `Namespace`, if it is one.
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// Its name and labels.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
}

/// Who a pod or namespace is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Name, unique at any one time.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Namespace; a namespace has none.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// Unique for all time.
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// Labels.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
}

/// What a pod consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// It shares the node's network.
    #[serde(deserialize_with = "null_is_default")]
    pub host_network: bool,
    /// Containers that run together.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Containers that run before; native sidecars are among them.
    #[serde(deserialize_with = "null_is_default")]
    pub init_containers: Vec<Container>,
    /// Whom containers run as that do not say it themselves.
    #[serde(deserialize_with = "null_is_default")]
    pub security_context: SecurityContext,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Name, unique in the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Arguments.
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    /// Environment.
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<EnvVar>,
    /// Whom it runs as.
    #[serde(deserialize_with = "null_is_default")]
    pub security_context: SecurityContext,
}

/// A variable. Its value is empty when it comes from a reference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct EnvVar {
    /// Name.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Literal value.
    #[serde(deserialize_with = "null_is_default")]
    pub value: String,
}

/// Whom the containers of a pod, or one of them, run as.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    /// User id.
    pub run_as_user: Option<i64>,
    /// Group id.
    pub run_as_group: Option<i64>,
}

impl Pod {
    /// Init containers, then containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().chain(&self.spec.containers)
    }

    /// The containers named `istio-proxy`: none or one in any pod that Kubernetes accepted.
    pub fn proxies(&self) -> impl Iterator<Item = &Container> {
        self.all_containers().filter(|container| container.name == PROXY_CONTAINER)
    }

    /// Whether it brings the init container that sets rules up by itself.
    pub fn has_istio_init(&self) -> bool {
        self.all_containers().any(|container| container.name == INIT_CONTAINER)
    }

    /// Value of a variable of the proxy; the last one counts.
    pub fn proxy_env(&self, name: &str) -> Option<&str> {
        self.proxies().flat_map(|proxy| &proxy.env).filter(|var| var.name == name).last().map(|var| var.value.as_str())
    }

    /// Value of an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.get(name).map(String::as_str)
    }

    /// Whether ambient mode never takes it, whatever its namespace says: it shares the node's network or was
    /// injected with a sidecar.
    pub fn never_ambient(&self) -> bool {
        ambient::never(self).is_some()
    }
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_reads_as_absent_everywhere() {
        let absent: Pod = serde_json::from_str("{}").unwrap();
        for text in [
            r#"{"kind":null,"metadata":null,"spec":null}"#,
            r#"{"metadata":{"name":null,"namespace":null,"uid":null,"labels":null,"annotations":null},
                "spec":{"hostNetwork":null,"containers":null,"initContainers":null,"securityContext":null}}"#,
        ] {
            assert_eq!(serde_json::from_str::<Pod>(text).unwrap(), absent, "{text}");
        }
        let text = r#"{"spec":{"containers":[{"name":"a","args":null,"env":null,
            "securityContext":{"runAsUser":null,"runAsGroup":null}}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        assert_eq!(pod.spec.containers, [Container { name: "a".to_owned(), ..Container::default() }]);
    }

    #[test]
    fn a_variable_from_a_reference_reads_as_empty_and_the_last_value_counts() {
        let text = r#"{"spec":{"initContainers":[{"name":"istio-proxy","env":[
            {"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}},
            {"name":"A","value":"2"}]}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        assert_eq!((pod.proxy_env("A"), pod.proxy_env("B"), pod.proxy_env("C")), (Some("2"), Some(""), None));
    }
}
