//! A pod as it comes from the API server, without what nobody here needs.
//!
//! 250 whole pods take 40 MiB, so the rest is dropped while the text is read: managed fields, status, volumes, most
//! annotations, and all of a container but its name, unless it is one of Istio's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use mesh::Pod;
use mesh::names::{INIT_CONTAINER, PROXY_CONTAINER};
use mesh::pod::{Container, Metadata, Spec};
use serde::{Deserialize, Deserializer};

use super::STATIC_UIDS;

/// What all of Istio's annotations have in their keys.
const ISTIO: &str = "istio.io/";

/// A pod for the watch.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ThinPod {
    #[serde(default, deserialize_with = "thin_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "thin_spec")]
    spec: Spec,
}

impl ThinPod {
    /// What decisions need.
    pub fn into_pod(self) -> Pod {
        let metadata = Metadata {
            name: self.metadata.name.unwrap_or_default(),
            namespace: self.metadata.namespace.unwrap_or_default(),
            uid: self.metadata.uid.unwrap_or_default(),
            labels: self.metadata.labels.unwrap_or_default(),
            annotations: self.metadata.annotations.unwrap_or_default(),
        };
        Pod { kind: Self::kind(&()).into_owned(), metadata, spec: self.spec }
    }
}

type Full = k8s_openapi::api::core::v1::Pod;

impl Resource for ThinPod {
    type DynamicType = ();
    type Scope = <Full as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Full::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Full::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Full::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Full::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ThinMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

fn thin_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut thin = Option::<ThinMetadata>::deserialize(deserializer)?.unwrap_or_default();
    if let Some(annotations) = &mut thin.annotations {
        annotations.retain(|key, _| key.contains(ISTIO) || STATIC_UIDS.contains(&key.as_str()));
    }
    Ok(ObjectMeta {
        name: thin.name,
        namespace: thin.namespace,
        uid: thin.uid,
        resource_version: thin.resource_version,
        labels: thin.labels,
        annotations: thin.annotations,
        ..ObjectMeta::default()
    })
}

fn thin_spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spec, D::Error> {
    let mut spec = Option::<Spec>::deserialize(deserializer)?.unwrap_or_default();
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        if ![PROXY_CONTAINER, INIT_CONTAINER].contains(&container.name.as_str()) {
            *container = Container { name: std::mem::take(&mut container.name), ..Container::default() };
        }
    }
    // They stay for as long as the pod does.
    spec.containers.shrink_to_fit();
    spec.init_containers.shrink_to_fit();
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use mesh::{Decision, decide};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_dropped_makes_no_difference_to_the_decision() {
        let full = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
                "labels": {"app": "web"}, "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}],
                "annotations": {"sidecar.istio.io/status": "{}", "kubernetes.io/config.hash": "h",
                    "traffic.sidecar.istio.io/excludeOutboundPorts": "80", "other.example/large": "x"}},
            "spec": {"hostNetwork": false, "volumes": [{"name": "v"}], "initContainers": null,
                "containers": [{"name": "app", "env": [{"name": "A", "value": "1"}], "args": ["x"]},
                    {"name": "istio-proxy", "args": ["proxy", "sidecar"],
                     "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}]}]},
            "status": {"phase": "Running"}});
        let thin: ThinPod = serde_json::from_value(full.clone()).unwrap();
        assert!(thin.meta().managed_fields.is_none() && thin.meta().resource_version.as_deref() == Some("7"));
        let thin = thin.into_pod();
        assert_eq!(thin.annotation("other.example/large"), None);
        assert_eq!(thin.spec.containers[0], Container { name: "app".to_owned(), ..Container::default() });
        let full: Pod = serde_json::from_value(full).unwrap();
        assert_eq!(decide(&thin), decide(&full));
        assert!(matches!(decide(&thin), Ok(Decision::Redirect(redirect)) if redirect.settings.redirect_dns));
        assert_eq!((thin.metadata.uid.as_str(), thin.annotation("kubernetes.io/config.hash")), ("u1", Some("h")));
    }

    #[test]
    fn a_pod_without_anything_is_read() {
        for text in ["{}", r#"{"metadata":null,"spec":null}"#] {
            assert_eq!(serde_json::from_str::<ThinPod>(text).unwrap().into_pod().metadata, Metadata::default());
        }
    }
}
