//! What the agent answers when a plugin asks about a pod. Pure: what is known about the pod comes in.
//!
//! It is the decision that the plugin would make from the same pod. The agent adds nothing to it, and says so when it
//! cannot know.

use agent_api::{Answer, PluginConfig, Question, Verdict};
use mesh::{Decision, decide, decide_by_name};

use crate::pods::Found;

/// Not all pods of the node are known.
const NOT_READY: &str = "not-ready";
/// There is no such pod on this node.
const NO_SUCH_POD: &str = "no-such-pod";
/// There is a pod of this name, but it is not the one that was asked for.
const OTHER_POD: &str = "other-pod";

/// The answer that needs no pod, if there is one.
pub fn answer_by_name(question: &Question, config: &PluginConfig) -> Option<Answer> {
    let (pod, namespace) = (&question.pod, &question.namespace);
    let reason = decide_by_name(pod, namespace, &config.pod_namespace, &config.exclude_namespaces)?;
    Some(skip(reason.as_str()))
}

/// The answer about a pod that [`answer_by_name`] has none for.
pub fn answer(question: &Question, found: &Found, config: &PluginConfig) -> Answer {
    let pod = match found {
        Found::Pod(pod) => pod,
        Found::NotReady => return unknown(NOT_READY),
        Found::Absent => return unknown(NO_SUCH_POD),
        Found::Other => return unknown(OTHER_POD),
    };
    match decide(pod) {
        Ok(Decision::Skip(reason)) => skip(reason.as_str()),
        Ok(Decision::Redirect(mut redirect)) => {
            redirect.or_refuse(config.refuse_uncaptured);
            Answer {
                verdict: Verdict::Redirect,
                reason: "redirect".to_owned(),
                redirection: redirect.to_texts(),
                warnings: redirect.warnings.iter().map(ToString::to_string).collect(),
                ..Answer::default()
            }
        }
        Err(invalid) => Answer {
            verdict: Verdict::Refuse,
            reason: "invalid-annotation".to_owned(),
            message: invalid.about(&question.namespace, &question.pod),
            ..Answer::default()
        },
    }
}

fn skip(reason: &str) -> Answer {
    Answer { verdict: Verdict::Skip, reason: reason.to_owned(), ..Answer::default() }
}

fn unknown(reason: &str) -> Answer {
    Answer { verdict: Verdict::Unknown, reason: reason.to_owned(), ..Answer::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mesh::Redirect;
    use serde_json::json;

    use super::*;

    fn about(annotations: serde_json::Value) -> Answer {
        about_with(annotations, &PluginConfig::default())
    }

    fn about_with(annotations: serde_json::Value, config: &PluginConfig) -> Answer {
        let pod = json!({"metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "istio-proxy", "env": [{"name": "INVALID_DROP", "value": "perhaps"}]}]}});
        let pod = serde_json::from_value(pod).unwrap();
        let question = Question { pod: "web".to_owned(), namespace: "shop".to_owned(), ..Question::default() };
        answer(&question, &Found::Pod(Arc::new(pod)), config)
    }

    #[test]
    fn names_are_answered_without_a_pod() {
        let config = PluginConfig {
            pod_namespace: "istio-system".to_owned(),
            exclude_namespaces: vec!["kube-system".to_owned()],
            ..PluginConfig::default()
        };
        for (namespace, pod, reason) in [
            ("istio-system", "istio-cni-node-x", Some("self-agent-pod")),
            ("kube-system", "dns", Some("namespace-excluded")),
            ("", "", Some("not-kubernetes")),
            ("shop", "web", None),
        ] {
            let question = Question { pod: pod.to_owned(), namespace: namespace.to_owned(), ..Question::default() };
            let answer = answer_by_name(&question, &config);
            assert_eq!(answer.as_ref().map(|answer| answer.reason.as_str()), reason);
            assert!(answer.is_none_or(|answer| answer.verdict == Verdict::Skip));
        }
    }

    #[test]
    fn a_pod_of_the_mesh_is_redirected_as_its_annotations_say() {
        let answer = about(json!({"sidecar.istio.io/status": "",
            "traffic.sidecar.istio.io/excludeOutboundPorts": " 80, 81"}));
        assert_eq!((answer.verdict, answer.redirection.exclude_outbound_ports.as_str()), (Verdict::Redirect, "80,81"));
        assert!(answer.warnings[0].contains("INVALID_DROP"), "{:?}", answer.warnings);
        assert!(Redirect::from_texts(&answer.redirection).is_ok(), "the plugin can read it");
        assert_eq!(about(json!({})).reason, "no-sidecar-status");
    }

    #[test]
    fn a_pod_that_asks_for_what_cannot_be_done_must_not_start() {
        let answer = about(json!({"sidecar.istio.io/status": "", "sidecar.istio.io/interceptionMode": "SOME"}));
        assert_eq!(answer.verdict, Verdict::Refuse);
        let start = "pod shop/web: annotation sidecar.istio.io/interceptionMode has the invalid value `SOME`: ";
        assert!(
            answer.message.starts_with(start) && answer.message.ends_with("; correct the annotation"),
            "{}",
            answer.message
        );
    }

    #[test]
    fn the_nodes_setting_about_what_is_not_captured_is_part_of_the_answer() {
        let config = PluginConfig { refuse_uncaptured: true, ..PluginConfig::default() };
        let refuses = |annotations| about_with(annotations, &config).redirection.refuse_uncaptured;
        assert!(refuses(json!({"sidecar.istio.io/status": ""})));
        assert!(!refuses(json!({"sidecar.istio.io/status": "", "cni.istio.io/uncaptured-traffic": "pass"})));
        assert!(!about(json!({"sidecar.istio.io/status": ""})).redirection.refuse_uncaptured);
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        for (found, reason) in
            [(Found::NotReady, "not-ready"), (Found::Absent, "no-such-pod"), (Found::Other, "other-pod")]
        {
            let answer = answer(&Question::default(), &found, &PluginConfig::default());
            assert_eq!((answer.verdict, answer.reason.as_str()), (Verdict::Unknown, reason));
        }
    }
}
