//! Updates of the agent: one under load, which no pod may notice, and one that gets stuck half way.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_api::paths::{self, PLUGIN_NAME};
use serde_json::Value;

use crate::failure::Failure;
use crate::kubernetes::manifests::{self, APP_NAMESPACE};
use crate::kubernetes::pods;
use crate::kubernetes::presence::{Needed, Presence};
use crate::kubernetes::story::{
    AGENT_NAMESPACE, CNI_BIN, CNI_CONFIG, DAEMON_SET, EXCLUDED_NAMESPACE, PATIENCE, Story, seconds,
};
use crate::plugin_log;

/// One pod in this time: enough to meet every moment of an update, and what two cores can start.
const PACE: Duration = Duration::from_millis(700);
/// The API server asks itself about a token again after ten seconds.
const TOKEN_MEMORY: Duration = Duration::from_secs(11);
/// A change of the template, as any upgrade is one.
const CHANGE: &str = r#"{"spec":{"template":{"metadata":{"annotations":{"e2e/rolled":"yes"}}}}}"#;

/// Updates the DaemonSet under load, and looks at every pod.
///
/// # Errors
/// When a pod waited or started without rules, or something that pods need was away.
pub fn update_under_load(story: &Story<'_>) -> Result<(), Failure> {
    let run_dir = story.run_dir();
    let watch = Presence::watch(vec![
        Needed { what: "plugin", path: story.node.file(CNI_BIN).join(PLUGIN_NAME), text: String::new() },
        Needed {
            what: "list entry",
            path: story.node.file(CNI_CONFIG).join("10-demo.conflist"),
            text: format!("\"{PLUGIN_NAME}\""),
        },
        Needed { what: "kubeconfig", path: paths::kubeconfig(&run_dir), text: String::new() },
    ]);
    let done = AtomicBool::new(false);
    let (names, took) = std::thread::scope(|scope| {
        let load = scope.spawn(|| create_until(story, &done));
        let took = update(story);
        done.store(true, Ordering::SeqCst);
        let names = load.join().unwrap_or_else(|_| Failure::unexpected("the load ended early"));
        Ok::<_, Failure>((names?, took?))
    })?;
    watch.end()?;
    for name in &names {
        story.interrupt.check()?;
        pods::wait_until_ready(&story.node.kubectl, APP_NAMESPACE, name)?;
        look(story, name)?;
    }
    let list: Vec<_> = names.iter().map(String::as_str).collect();
    pods::delete(&story.node.kubectl, APP_NAMESPACE, &list)?;
    story.progress.say(&format!(
        "agent updated in {} while {} pods of the mesh were created: each has its rules at the first try; plugin, list \
         entry and kubeconfig were there all the time",
        seconds(took),
        names.len()
    ));
    Ok(())
}

/// Updates the DaemonSet to an image that cannot be had, so that the old agent goes and no new one comes; and back.
///
/// The kubeconfig that stays behind ends with the old agent's pod, to which its token is bound. So pods that may be of
/// the mesh have to wait, and those of excluded namespaces must not.
///
/// # Errors
/// When a pod of the mesh started without rules, the wait was not explained, or an excluded pod had to wait as well.
pub fn stuck_update(story: &Story<'_>) -> Result<(), Failure> {
    let kubectl = &story.node.kubectl;
    let image = |name: &str| kubectl.run(&["set", "image", DAEMON_SET, name, "--namespace", AGENT_NAMESPACE]).map(drop);
    image("install-cni=local.test/not-there:1")?;
    story.interrupt.wait_for("the old agent's pod gone", PATIENCE, || {
        let pods = kubectl.list(&["pods", "--namespace", AGENT_NAMESPACE]).map_err(|failure| failure.to_string())?;
        let is_ready = |pod: &Value| {
            pod.pointer("/status/containerStatuses/0/ready").is_some_and(|ready| ready.as_bool() == Some(true))
        };
        if pods.iter().any(is_ready) { Err("it is still there".to_owned()) } else { Ok(()) }
    })?;
    // So long the API server remembers that a token was good.
    std::thread::sleep(TOKEN_MEMORY);
    let name = "meets-no-agent";
    kubectl.feed(&["create", "-f", "-"], &manifests::injected(name))?;
    let (_, excluded) = pods::start(story.node, EXCLUDED_NAMESPACE, name, &manifests::plain(EXCLUDED_NAMESPACE, name))?;
    let log = paths::plugin_log(&story.run_dir());
    story.interrupt.wait_for("a line in the plugin's log about the token", PATIENCE, || {
        let text = fs::read_to_string(&log).map_err(|error| error.to_string())?;
        let is_it = |line: &str| line.contains(&format!("{APP_NAMESPACE}/{name}")) && line.contains("401");
        if text.lines().any(is_it) { Ok(()) } else { Err("there is none".to_owned()) }
    })?;
    let before = Instant::now();
    image("install-cni=local.test/istio-cni:1")?;
    pods::wait_until_ready(kubectl, APP_NAMESPACE, name)?;
    let took = before.elapsed();
    story.rolled_out()?;
    pods::delete(kubectl, APP_NAMESPACE, &[name])?;
    pods::delete(kubectl, EXCLUDED_NAMESPACE, &[name])?;
    story.progress.say(&format!(
        "agent gone for good by an update: an excluded pod is Ready after {}, a pod of the mesh waits, and is Ready with \
         its rules {} after the update is taken back",
        seconds(excluded),
        seconds(took)
    ));
    Ok(())
}

fn update(story: &Story<'_>) -> Result<Duration, Failure> {
    // Some pods before, some after.
    std::thread::sleep(PACE * 2);
    let before = Instant::now();
    story.node.kubectl.run(&["patch", DAEMON_SET, "--namespace", AGENT_NAMESPACE, "--patch", CHANGE])?;
    story.rolled_out()?;
    let took = before.elapsed();
    std::thread::sleep(PACE * 2);
    Ok(took)
}

fn create_until(story: &Story<'_>, done: &AtomicBool) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    while !done.load(Ordering::SeqCst) {
        let next = Instant::now() + PACE;
        let name = format!("load-{}", names.len());
        story.node.kubectl.feed(&["create", "-f", "-"], &manifests::injected(&name))?;
        names.push(name);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(names)
}

/// A pod that is Ready was captured, since `istio-validation` let it pass: here is asked whether that was at the first try.
fn look(story: &Story<'_>, name: &str) -> Result<(), Failure> {
    let full_name = format!("{APP_NAMESPACE}/{name}");
    let outcome = plugin_log::outcome(&story.run_dir(), &full_name)?;
    if outcome.as_ref().is_none_or(|outcome| outcome.reason != plugin_log::REDIRECTED) {
        return Failure::unexpected(format!("{full_name}: the plugin's log says {outcome:?}"));
    }
    let events = pods::events(&story.node.kubectl, APP_NAMESPACE, name)?;
    if let Some(failed) = events.iter().find(|event| event.starts_with("FailedCreatePodSandBox")) {
        return Failure::unexpected(format!("{full_name} had to wait: {failed}"));
    }
    let pod = story.node.kubectl.get(&["pod", name, "--namespace", APP_NAMESPACE])?;
    let restarts = pod.pointer("/status/initContainerStatuses/0/restartCount").and_then(Value::as_u64);
    if restarts == Some(0) {
        return Ok(());
    }
    Failure::unexpected(format!("{full_name}: istio-validation was started again, {restarts:?} times"))
}
