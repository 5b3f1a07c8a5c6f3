//! Is a pod redirected, and if not, why not?
//!
//! [`decide_by_name`] answers from names alone and comes first: what it skips must not depend on credentials, sockets
//! or the API server. [`decide`] answers from the pod. Order matters: the first reason that holds is the one told.

use std::fmt;

use agent_api::paths::AGENT_POD_PREFIX;

use crate::names::{DISABLE_ENVOY, INJECT, INTERCEPTION_MODE, STATUS};
use crate::pod::Pod;
use crate::redirect::{InvalidAnnotation, Redirect};

/// Why a pod is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// It is the agent that the plugin needs for everything else.
    SelfAgentPod,
    /// The sandbox belongs to no pod.
    NotKubernetes,
    /// Its namespace is on the list of excluded ones.
    NamespaceExcluded,
    /// Its init container sets the rules up.
    HasIstioInit,
    /// There is no Envoy in its proxy container.
    DisableEnvoy,
    /// It has no proxy container.
    NoIstioProxy,
    /// Its proxy is not a sidecar but, for example, a gateway.
    ProxyType,
    /// Its label or annotation says that it is not injected.
    InjectDisabled,
    /// The injector left no mark on it.
    NoSidecarStatus,
    /// It asks for no interception.
    InterceptionNone,
}

impl SkipReason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::SelfAgentPod,
        Self::NotKubernetes,
        Self::NamespaceExcluded,
        Self::HasIstioInit,
        Self::DisableEnvoy,
        Self::NoIstioProxy,
        Self::ProxyType,
        Self::InjectDisabled,
        Self::NoSidecarStatus,
        Self::InterceptionNone,
    ];

    /// The reason as one word, for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SelfAgentPod => "self-agent-pod",
            Self::NotKubernetes => "not-kubernetes",
            Self::NamespaceExcluded => "namespace-excluded",
            Self::HasIstioInit => "has-istio-init",
            Self::DisableEnvoy => "disable-envoy",
            Self::NoIstioProxy => "no-istio-proxy",
            Self::ProxyType => "proxy-type",
            Self::InjectDisabled => "inject-disabled",
            Self::NoSidecarStatus => "no-sidecar-status",
            Self::InterceptionNone => "interception-none",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Skip(SkipReason),
    /// Its traffic is redirected.
    Redirect(Box<Redirect>),
}

/// Decides what names alone can decide. `agent_namespace` is where the agent runs; empty when that is not known, and
/// then no pod of a cluster is the agent's. `excluded` holds namespaces, compared exactly.
pub fn decide_by_name(name: &str, namespace: &str, agent_namespace: &str, excluded: &[String]) -> Option<SkipReason> {
    if namespace == agent_namespace && name.starts_with(AGENT_POD_PREFIX) {
        Some(SkipReason::SelfAgentPod)
    } else if name.is_empty() || namespace.is_empty() {
        Some(SkipReason::NotKubernetes)
    } else if excluded.iter().any(|excluded| excluded == namespace) {
        Some(SkipReason::NamespaceExcluded)
    } else {
        None
    }
}

/// Decides about a pod that [`decide_by_name`] did not skip.
///
/// # Errors
/// The pod is to be redirected, but one of its annotations cannot be understood.
pub fn decide(pod: &Pod) -> Result<Decision, InvalidAnnotation> {
    match skip_reason(pod) {
        Some(reason) => Ok(Decision::Skip(reason)),
        None => Ok(Decision::Redirect(Box::new(Redirect::from_pod(pod)?))),
    }
}

fn skip_reason(pod: &Pod) -> Option<SkipReason> {
    if pod.has_istio_init() {
        return Some(SkipReason::HasIstioInit);
    }
    if pod.proxy_env(DISABLE_ENVOY).and_then(parse_bool) == Some(true) {
        return Some(SkipReason::DisableEnvoy);
    }
    if pod.proxies().next().is_none() {
        return Some(SkipReason::NoIstioProxy);
    }
    if proxy_type(pod).is_some_and(|kind| kind != "sidecar") {
        return Some(SkipReason::ProxyType);
    }
    // A label hides the annotation even when it is empty or makes no sense.
    let inject = pod.metadata.labels.get(INJECT).map(String::as_str).or_else(|| pod.annotation(INJECT));
    if inject.and_then(parse_bool) == Some(false) {
        return Some(SkipReason::InjectDisabled);
    }
    if pod.annotation(STATUS).is_none() {
        return Some(SkipReason::NoSidecarStatus);
    }
    (pod.annotation(INTERCEPTION_MODE) == Some("NONE")).then_some(SkipReason::InterceptionNone)
}

/// What the proxy was started as: the word after `proxy` in its arguments.
fn proxy_type(pod: &Pod) -> Option<&str> {
    let kinds = pod.proxies().filter_map(|proxy| match proxy.args.as_slice() {
        [first, kind, ..] if first == "proxy" && !kind.is_empty() => Some(kind.as_str()),
        _ => None,
    });
    kinds.last()
}

/// The spellings that Istio takes for a boolean.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reason(pod: serde_json::Value) -> Option<SkipReason> {
        match decide(&serde_json::from_value(pod).unwrap()).unwrap() {
            Decision::Skip(reason) => Some(reason),
            Decision::Redirect(_) => None,
        }
    }

    fn injected() -> serde_json::Value {
        json!({"metadata": {"annotations": {"sidecar.istio.io/status": ""}, "labels": {}},
               "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]}})
    }

    #[test]
    fn the_agents_own_pod_is_known_by_name_and_namespace() {
        let ask = |name, namespace, agent| decide_by_name(name, namespace, agent, &["kube-system".to_owned()]);
        assert_eq!(ask("istio-cni-node-x1", "istio-system", "istio-system"), Some(SkipReason::SelfAgentPod));
        assert_eq!(ask("istio-cni-node-x1", "kube-system", "kube-system"), Some(SkipReason::SelfAgentPod));
        assert_eq!(ask("istio-cni-node-x1", "shop", "istio-system"), None);
        assert_eq!(ask("istiod-1", "istio-system", "istio-system"), None);
        assert_eq!(ask("istio-cni-node-x1", "", "istio-system"), Some(SkipReason::NotKubernetes));
        assert_eq!(ask("istio-cni-node-x1", "shop", ""), None);
        assert_eq!(ask("web", "kube-system", ""), Some(SkipReason::NamespaceExcluded));
        assert_eq!(ask("web", "kube-system-2", ""), None);
    }

    #[test]
    fn only_pods_with_a_proxy_and_the_injectors_mark_are_redirected() {
        assert_eq!(reason(injected()), None);
        let mut pod = injected();
        pod["metadata"]["annotations"] = json!({});
        assert_eq!(reason(pod), Some(SkipReason::NoSidecarStatus));
        let mut pod = injected();
        pod["spec"]["containers"] = json!([{"name": "app"}, {"name": "other"}, {"name": "third"}]);
        assert_eq!(reason(pod), Some(SkipReason::NoIstioProxy));
        let mut pod = injected();
        pod["spec"] = json!({"containers": [{"name": "app"}], "initContainers": [{"name": "istio-validation"},
            {"name": "istio-proxy", "restartPolicy": "Always"}]});
        assert_eq!(reason(pod), None);
    }

    #[test]
    fn rules_are_not_set_twice_beside_istio_init() {
        for place in ["containers", "initContainers"] {
            let mut pod = injected();
            pod["spec"][place] = json!([{"name": "istio-init"}, {"name": "istio-proxy"}]);
            assert_eq!(reason(pod), Some(SkipReason::HasIstioInit), "{place}");
        }
    }

    #[test]
    fn gateways_keep_their_ports() {
        for (args, expected) in [
            (json!(["proxy", "router"]), Some(SkipReason::ProxyType)),
            (json!(["proxy", "sidecar", "--domain"]), None),
            (json!(["proxy"]), None),
            (json!(["istio", "router"]), None),
            (json!(["proxy", "waypoint"]), Some(SkipReason::ProxyType)),
            (json!(["proxy", ""]), None),
        ] {
            let mut pod = injected();
            pod["spec"]["containers"][1]["args"] = args.clone();
            assert_eq!(reason(pod), expected, "{args}");
        }
    }

    #[test]
    fn the_inject_label_beats_the_annotation() {
        for (label, annotation, expected) in [
            (Some("true"), Some("false"), None),
            (Some("false"), Some("true"), Some(SkipReason::InjectDisabled)),
            (Some(""), Some("false"), None),
            (None, Some("F"), Some(SkipReason::InjectDisabled)),
            (None, Some("no"), None),
        ] {
            let mut pod = injected();
            if let Some(label) = label {
                pod["metadata"]["labels"][INJECT] = label.into();
            }
            if let Some(annotation) = annotation {
                pod["metadata"]["annotations"][INJECT] = annotation.into();
            }
            assert_eq!(reason(pod), expected, "{label:?} {annotation:?}");
        }
    }

    #[test]
    fn a_pod_that_wants_no_interception_starts_without() {
        let mut pod = injected();
        pod["metadata"]["annotations"][INTERCEPTION_MODE] = "NONE".into();
        assert_eq!(reason(pod), Some(SkipReason::InterceptionNone));
    }

    #[test]
    fn proxyless_pods_have_nothing_to_redirect_to() {
        for (value, expected) in [("true", Some(SkipReason::DisableEnvoy)), ("yes", None), ("0", None)] {
            let mut pod = injected();
            pod["spec"]["containers"][1]["env"] = json!([{"name": DISABLE_ENVOY, "value": value}]);
            assert_eq!(reason(pod), expected, "{value}");
        }
        // What comes from a reference is not known here and hides an earlier value.
        let mut pod = injected();
        pod["spec"]["containers"][1]["env"] =
            json!([{"name": DISABLE_ENVOY, "value": "true"}, {"name": DISABLE_ENVOY, "valueFrom": {}}]);
        assert_eq!(reason(pod), None);
    }

    #[test]
    fn of_several_proxies_the_last_that_names_its_kind_counts() {
        let proxies = |first: serde_json::Value, last: serde_json::Value| {
            let mut pod = injected();
            pod["spec"] = json!({"initContainers": [{"name": "istio-proxy", "args": first}],
                "containers": [{"name": "istio-proxy", "args": last}]});
            reason(pod)
        };
        assert_eq!(proxies(json!(["proxy", "router"]), json!(["proxy", "sidecar"])), None);
        assert_eq!(proxies(json!(["proxy", "router"]), json!([])), Some(SkipReason::ProxyType));
        assert_eq!(proxies(json!([]), json!(["proxy", "router"])), Some(SkipReason::ProxyType));
    }

    #[test]
    fn the_first_reason_that_holds_is_told() {
        // From the last row to the first: what is added comes before all that is there.
        let mut pod = json!({"metadata": {"annotations": {"sidecar.istio.io/interceptionMode": "NONE"}},
            "spec": {"containers": [{"name": "istio-proxy"}]}});
        assert_eq!(reason(pod.clone()), Some(SkipReason::NoSidecarStatus));
        pod["metadata"]["labels"] = json!({INJECT: "false"});
        assert_eq!(reason(pod.clone()), Some(SkipReason::InjectDisabled));
        pod["spec"]["containers"][0]["args"] = json!(["proxy", "router"]);
        assert_eq!(reason(pod.clone()), Some(SkipReason::ProxyType));
        pod["spec"]["containers"][0]["env"] = json!([{"name": DISABLE_ENVOY, "value": "1"}]);
        assert_eq!(reason(pod.clone()), Some(SkipReason::DisableEnvoy));
        pod["spec"]["initContainers"] = json!([{"name": "istio-init"}]);
        assert_eq!(reason(pod), Some(SkipReason::HasIstioInit));
    }
}
