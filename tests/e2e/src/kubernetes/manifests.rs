//! What a user applies: our DaemonSet, and pods.

use serde_json::json;
use testkit::envoy;

/// Namespaces of the agent and of the application.
pub const NAMESPACES: &str = include_str!("../../manifests/namespaces.yaml");
/// Our agent, with its account and rights.
pub const AGENT: &str = include_str!("../../manifests/istio-cni.yaml");
/// Namespace of the application.
pub const APP_NAMESPACE: &str = "shop";
/// Volume of an injected pod with Envoy's access log.
pub const ACCESS_LOG_VOLUME: &str = "access-log";

/// A pod without anything of a mesh.
pub fn plain(namespace: &str, name: &str) -> String {
    filled(include_str!("../../manifests/plain.yaml"), namespace, name)
}

/// A pod as Istio's injector leaves it.
pub fn injected(name: &str) -> String {
    filled(include_str!("../../manifests/injected.yaml"), APP_NAMESPACE, name)
}

/// An injected pod with an annotation that nobody can understand: which one is the caller's choice.
pub fn injected_with(name: &str, annotation: &str, value: &str) -> String {
    let last = "traffic.sidecar.istio.io/excludeOutboundIPRanges: \"\"\n";
    injected(name).replace(last, &format!("{last}    {annotation}: {value:?}\n"))
}

/// Envoy's configuration for all injected pods.
pub fn envoy_config() -> String {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "envoy", "namespace": APP_NAMESPACE},
        "data": {"envoy.json": format!("{:#}\n", envoy::config("/var/log/envoy/access.log"))},
    })
    .to_string()
}

fn filled(manifest: &str, namespace: &str, name: &str) -> String {
    manifest.replace("NAMESPACE", namespace).replace("NAME", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_filled_in() {
        for manifest in [plain("n", "p"), injected("p"), injected_with("p", "a/b", "c")] {
            let without_comments: Vec<_> = manifest.lines().filter(|line| !line.starts_with('#')).collect();
            let rest = without_comments.join("\n").replace("POD_NAMESPACE", "").replace("POD_NAME", "");
            assert!(!rest.contains(" NAME") && !rest.contains("NAMESPACE"), "{rest}");
        }
    }

    #[test]
    fn a_further_annotation_is_in_the_manifest() {
        assert!(injected_with("p", "a/b", "c").contains("\n    a/b: \"c\"\n"));
    }
}
