//! Whether our DaemonSet still wants this node: the question that is asked when the process ends.
//!
//! One request for the DaemonSet; a second one, for the node, only where the DaemonSet is bound to some nodes by a
//! required affinity. What the answer means is decided in `shutdown`.

use std::collections::BTreeMap;

use agent_api::paths::AGENT_POD_PREFIX;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use kube::{Api, Client, Error};

use crate::cluster;
use crate::config::Config;
use crate::shutdown::{Answer, Question};

/// Reasons of an API server for those of its answers that decide something.
const REASONS: [&str; 3] = ["Unauthorized", "Forbidden", "NotFound"];

/// The question for a pod with these settings.
pub fn question(config: &Config) -> Question {
    let (source, namespace, node) =
        (config.kubeconfig.clone(), config.plugin.pod_namespace.clone(), config.node_name.clone());
    Box::new(|| {
        Box::pin(async move {
            if namespace.is_empty() {
                return Answer::None("POD_NAMESPACE is not set, so our DaemonSet is not known".to_owned());
            }
            match cluster::client(&source) {
                Ok(client) => ask(client, &namespace, &node).await.unwrap_or_else(|error| answer(&error)),
                Err(error) => Answer::None(error.to_string()),
            }
        })
    })
}

async fn ask(client: Client, namespace: &str, node: &str) -> Result<Answer, Error> {
    // The plugin knows our pods by the same name.
    let name = AGENT_POD_PREFIX.trim_end_matches('-');
    let set = Api::<DaemonSet>::namespaced(client.clone(), namespace).get(name).await?;
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Answer::Going);
    }
    let Some(required) = required_affinity(&set) else { return Ok(Answer::Wanted) };
    let node = match Api::<Node>::all(client).get(node).await {
        Ok(node) => node,
        // Nothing is known about the node then, and that is no reason to uninstall.
        Err(error) => {
            return Ok(Answer::None(format!("the node could not be read: {}", cluster::with_sources(&error))));
        }
    };
    Ok(if matches(required, &node) { Answer::Wanted } else { Answer::NotHere })
}

/// Only what an API server says counts, not what stands before it: a load balancer answers with 404 as well.
fn answer(error: &Error) -> Answer {
    match error {
        Error::Api(status) if REASONS.contains(&status.reason.as_str()) => Answer::Status(status.code),
        other => Answer::None(cluster::with_sources(other)),
    }
}

fn required_affinity(set: &DaemonSet) -> Option<&NodeSelector> {
    let affinity = set.spec.template.spec.as_ref()?.affinity.as_ref()?;
    affinity.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
}

/// One of the terms must hold; a term without requirements holds for no node.
fn matches(selector: &NodeSelector, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let fields: BTreeMap<String, String> =
        node.metadata.name.iter().map(|name| ("metadata.name".to_owned(), name.clone())).collect();
    selector.node_selector_terms.iter().any(|term| holds(term, &labels, &fields))
}

fn holds(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, fields: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.iter().flatten().map(|it| (it, labels));
    let mut requirements = expressions.chain(term.match_fields.iter().flatten().map(|it| (it, fields))).peekable();
    requirements.peek().is_some() && requirements.all(|(requirement, values)| is_met(requirement, values))
}

/// An operator that we do not know is taken to be met: in doubt the node stays installed.
fn is_met(requirement: &NodeSelectorRequirement, values: &BTreeMap<String, String>) -> bool {
    let value = values.get(&requirement.key);
    let wanted = requirement.values.as_deref().unwrap_or_default();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let compared = |holds: fn(i64, i64) -> bool| match (number(value), number(wanted.first())) {
        (Some(have), Some(bound)) => holds(have, bound),
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| wanted.contains(value)),
        "NotIn" => value.is_none_or(|value| !wanted.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|have, bound| have > bound),
        "Lt" => compared(|have, bound| have < bound),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wants(terms: serde_json::Value) -> bool {
        let node = json!({"metadata": {"name": "node-1", "labels": {"pool": "a", "disks": "4"}}});
        let selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
        matches(&selector, &serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_required_affinity_is_judged_as_the_scheduler_judges_it() {
        let term =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (requirement, held) in [
            (term("pool", "In", &["b", "a"]), true),
            (term("pool", "In", &["b"]), false),
            (term("pool", "NotIn", &["a"]), false),
            (term("zone", "NotIn", &["a"]), true),
            (term("zone", "Exists", &[]), false),
            (term("zone", "DoesNotExist", &[]), true),
            (term("disks", "Gt", &["3"]), true),
            (term("disks", "Lt", &["4"]), false),
            (term("pool", "Gt", &["1"]), false),
            (term("pool", "Newer", &[]), true),
        ] {
            assert_eq!(wants(json!([{"matchExpressions": [requirement]}])), held, "{requirement}");
        }
        assert!(wants(json!([{"matchFields": [term("metadata.name", "In", &["node-1"])]}])));
        assert!(!wants(json!([{"matchFields": [term("metadata.name", "In", &["node-2"])]}])));
        let (yes, no) = (term("pool", "Exists", &[]), term("zone", "Exists", &[]));
        assert!(!wants(json!([{"matchExpressions": [yes, no]}])), "all of one term");
        assert!(wants(json!([{"matchExpressions": [no]}, {"matchExpressions": [yes]}])), "any of the terms");
        assert!(!wants(json!([{}])) && !wants(json!([])), "an empty term is for no node");
    }
}
