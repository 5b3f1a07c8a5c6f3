//! Pods of the cluster: created, awaited, looked at and deleted as a user does it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::Failure;
use crate::kubernetes::kubectl::Kubectl;
use crate::kubernetes::manifests::ACCESS_LOG_VOLUME;
use crate::kubernetes::node::Node;
use crate::pods::RunningPod;

/// Longest wait for a pod to become Ready or to go.
const PATIENCE: &str = "--timeout=60s";

/// Creates a pod, waits until it is Ready, and gives it with the time that took.
///
/// # Errors
/// When it is not Ready in time, with what the kubelet says about it.
pub fn start(node: &Node, namespace: &str, name: &str, manifest: &str) -> Result<(RunningPod, Duration), Failure> {
    let before = Instant::now();
    node.kubectl.feed(&["create", "-f", "-"], manifest)?;
    wait_until_ready(&node.kubectl, namespace, name)?;
    let took = before.elapsed();
    Ok((look(node, namespace, name)?.0, took))
}

/// Waits until a pod is Ready.
///
/// # Errors
/// When it is not in time, with what the kubelet says about it.
pub fn wait_until_ready(kubectl: &Kubectl, namespace: &str, name: &str) -> Result<(), Failure> {
    let pod = format!("pod/{name}");
    let waited = kubectl.run(&["wait", "--for=condition=Ready", PATIENCE, &pod, "--namespace", namespace]);
    waited.map(drop).map_err(|failure| match events(kubectl, namespace, name) {
        Ok(events) => Failure::Unexpected(format!("{failure}; events: {}", events.join("; "))),
        Err(_) => failure,
    })
}

/// A Ready pod as the API server shows it, and where the node has Envoy's access log of it.
///
/// # Errors
/// When there is no such pod, or it has no address.
pub fn look(node: &Node, namespace: &str, name: &str) -> Result<(RunningPod, PathBuf), Failure> {
    let pod = node.kubectl.get(&["pod", name, "--namespace", namespace])?;
    let array = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let addresses: Vec<_> = array("/status/podIPs").iter().filter_map(|entry| text(entry, "ip")).collect();
    if addresses.is_empty() {
        return Failure::unexpected(format!("pod {namespace}/{name} is Ready and has no address"));
    }
    let statuses = [array("/status/initContainerStatuses"), array("/status/containerStatuses")].concat();
    let containers = statuses.iter().filter_map(|status| {
        let id = text(status, "containerID")?;
        Some((text(status, "name")?, id.trim_start_matches("containerd://").to_owned()))
    });
    let containers = containers.collect();
    let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let volumes = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir");
    let log = node.file(&volumes).join(ACCESS_LOG_VOLUME).join("access.log");
    let running = RunningPod {
        name: format!("{namespace}/{name}"),
        // What only those need who start pods by hand.
        sandbox: String::new(),
        sandbox_time: Duration::ZERO,
        logs: PathBuf::new(),
        addresses,
        containers,
    };
    Ok((running, log))
}

/// Deletes a pod in the ordinary way and waits until it is gone: the kubelet has then taken down its network.
///
/// # Errors
/// When it does not go in time.
pub fn delete(kubectl: &Kubectl, namespace: &str, names: &[&str]) -> Result<(), Failure> {
    let arguments = [&["delete", "pod", PATIENCE, "--namespace", namespace], names].concat();
    kubectl.run(&arguments).map(drop)
}

/// What the kubelet and the scheduler said about a pod, as `reason: message`.
///
/// # Errors
/// When they cannot be read.
pub fn events(kubectl: &Kubectl, namespace: &str, name: &str) -> Result<Vec<String>, Failure> {
    let selector = format!("involvedObject.name={name}");
    let events = kubectl.list(&["events", "--namespace", namespace, "--field-selector", &selector])?;
    let field = |event: &Value, key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(events.iter().map(|event| format!("{}: {}", field(event, "reason"), field(event, "message"))).collect())
}
