//! `ambient/`, and what `plugin/` has about it: which pods are ambient, and the event about one.

use agent_api::{Event, Question};
use mesh::ambient::eligible;
use mesh::{Namespace, Pod, Selectors};
use serde_json::{Map, Value, json};

use crate::cases::Case;
use crate::{Outcome, expect, pending};

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    let data = &case.data;
    match case.kind.as_str() {
        "enablement" => enablement(data).into(),
        _ => pending(case),
    }
}

fn compile(entries: &Value) -> Result<Selectors, String> {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    Selectors::compile(entries).map_err(|error| error.to_string())
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

fn is_eligible(entries: &Value, pod: [&Value; 3], namespace: &Value) -> Result<bool, String> {
    let [labels, annotations, host_network] = pod;
    let pod: Pod = read(&json!({
        "metadata": {"labels": labels, "annotations": annotations}, "spec": {"hostNetwork": host_network},
    }))?;
    let namespace: Namespace = read(&json!({"metadata": {"labels": namespace}}))?;
    Ok(eligible(&compile(entries)?, &pod, &namespace.metadata.labels).is_ok())
}

fn enablement(data: &Value) -> Result<(), String> {
    let (pod, namespace) = (&data["input"]["pod"], &data["input"]["namespace_labels"]);
    let parts = [&pod["labels"], &pod["annotations"], &pod["host_network"]];
    let got = is_eligible(&data["config"]["selectors"], parts, namespace)?;
    expect("match", &data["expected"], &json!({"matches": got}))
}

/// `plugin/selectors`. Those that are YAML are the agent's to read.
#[must_use]
pub fn selectors(data: &Value) -> Outcome {
    if data["yaml"].is_string() {
        return Outcome::Pending("plugin/selectors, YAML".to_owned());
    }
    let parts = [&data["pod_labels"], &data["pod_annotations"], &data["host_network"]];
    let check = || {
        let got = is_eligible(&data["selectors"], parts, &data["namespace_labels"])?;
        expect("eligibility", &data["expect"], &json!({"eligible": got}))
    };
    check().into()
}

/// Whether the pod of a `plugin/decide` case is ambient.
///
/// # Errors
/// Something in the case cannot be read.
pub fn of_decision(data: &Value, pod: &Pod) -> Result<bool, String> {
    let namespace: Namespace = read(&data["namespace"])?;
    Ok(eligible(&compile(&data["stdin"]["enablement_selectors"])?, pod, &namespace.metadata.labels).is_ok())
}

/// The body of the event of a `plugin/decide` case. What the agent answers to it is not asked here.
///
/// # Errors
/// The previous result cannot be read.
pub fn event_of_decision(data: &Value, name: &str, namespace: &str) -> Result<Value, String> {
    let previous = Some(&data["stdin"]["prevResult"]).filter(|result| !result.is_null());
    event(&data["env"]["CNI_NETNS"], &name.into(), &namespace.into(), previous)
}

fn event(netns: &Value, pod: &Value, namespace: &Value, previous: Option<&Value>) -> Result<Value, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sandbox = Question { netns: text(netns), pod: text(pod), namespace: text(namespace), ..Question::default() };
    let previous = previous.map(Value::to_string);
    let event = Event::new(&sandbox, previous.as_deref()).map_err(|error| error.to_string())?;
    let mut body = json!(event);
    // Istio's event has neither, and its agent ignores them.
    for ours in ["PodUID", "ContainerID"] {
        body.as_object_mut().and_then(|body| body.remove(ours)).ok_or_else(|| format!("no {ours}"))?;
    }
    Ok(body)
}

/// `plugin/event`: the body that is sent. How it is sent and what an answer means is tested with the plugin itself.
#[must_use]
pub fn body(data: &Value) -> Outcome {
    let want = &data["expect"]["request"]["body"];
    if want.is_null() {
        return Outcome::Pending("plugin/event, answers".to_owned());
    }
    let described = &data["event"];
    let ips = described["ips"].as_array().map(|ips| ips.iter().map(address).collect::<Vec<Value>>());
    let previous = ips.map(|ips| json!({ "ips": ips }));
    let got = event(&described["netns"], &described["pod_name"], &described["pod_namespace"], previous.as_ref());
    got.and_then(|got| expect("body", want, &got)).into()
}

/// An address of a case as it stands in a result.
fn address(described: &Value) -> Value {
    let text = described["address"].as_str().unwrap_or_default();
    let prefix = described["prefix"].as_u64().map(|prefix| format!("/{prefix}")).unwrap_or_default();
    let mut address = Map::new();
    address.insert("address".to_owned(), format!("{text}{prefix}").into());
    for key in ["interface", "gateway"] {
        address.insert(key.to_owned(), described[key].clone());
    }
    Value::Object(address)
}
