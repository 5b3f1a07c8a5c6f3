//! `plugin/retry`: what the plugin does while the API server fails, against a stand-in for it, with short pauses.

use std::time::Duration;

use agent_api::kubeconfig::ServerTrust;
use agent_api::{Kubeconfig, paths};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use istio_cni_plugin::config::Environment;
use istio_cni_plugin::pod_get::Budget;
use istio_cni_plugin::{ABOUT, IstioCni};
use serde_json::{Value, json};
use testkit::agent::{Reply, UnixHttp};
use testkit::api::{ApiServer, Behaviour};

use crate::expect;

const AMBIENT: &str = "istio.io/dataplane-mode";

/// Runs one case.
///
/// # Errors
/// What is not as the case has it.
pub fn run(data: &Value) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let directory = tempfile::tempdir().map_err(|error| failed(&error))?;
    let api = ApiServer::start(([127, 0, 0, 1], 0).into()).map_err(|error| failed(&error))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, namespace) = (text(&data["pod_args"]["name"]), text(&data["pod_args"]["namespace"]));
    let sidecar = data["api"]["pod"] == "sidecar";
    api.set_pod(&namespace, &name, pod(sidecar));
    api.set_namespace(&namespace, json!({AMBIENT: if data["api"]["pod"].is_string() { "ambient" } else { "none" }}));
    let reads = if data["config"]["ambient_enabled"] == true { 2 } else { 1 };
    let status = data["api"]["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(500);
    api.set_behaviour(match data["api"]["fail_first_attempts"].as_u64().and_then(|n| usize::try_from(n).ok()) {
        // A failed read ends an attempt.
        Some(n) => Behaviour::FailFirst { n, status },
        None => Behaviour::Status(status),
    });
    let kubeconfig = Kubeconfig {
        server: api.url(),
        trust: ServerTrust::CaData(STANDARD.encode(api.ca_pem())),
        token: "token".to_owned(),
    };
    std::fs::write(paths::kubeconfig(directory.path()), kubeconfig.render()).map_err(|error| failed(&error))?;
    let agent =
        UnixHttp::start(&paths::event_socket(directory.path()), Reply::empty()).map_err(|error| failed(&error))?;

    let mut conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "istio-cni", "plugin_log_level": "none",
        "cni_agent_run_dir": directory.path(),
        "enablement_selectors": [{"namespaceSelector": {"matchLabels": {AMBIENT: "ambient"}}}]});
    for (key, value) in data["config"].as_object().into_iter().flatten() {
        conf[key] = value.clone();
    }
    let decision = decision(&conf, &namespace, &name, &agent)?;
    let pods = api.requests().iter().filter(|request| request.path.contains("/pods/")).count();
    let mut got = json!({"decision": decision});
    let attempts = |key: &str| data["expect"][key].is_number();
    if attempts("pod_attempts") {
        got["pod_attempts"] = pods.into();
    }
    if attempts("detection_attempts") {
        // The last attempt reads the namespace too.
        expect("requests", &(pods + reads - 1), &api.requests().len())?;
        got["detection_attempts"] = pods.into();
    }
    let mut wanted = data["expect"].clone();
    if let Some(wanted) = wanted.as_object_mut() {
        wanted.remove("reason");
    }
    expect("decision", &wanted, &got)
}

fn pod(sidecar: bool) -> Value {
    if sidecar {
        json!({"metadata": {"annotations": {"sidecar.istio.io/status": "{}"}},
            "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]}})
    } else {
        json!({"spec": {"containers": [{"name": "app"}]}})
    }
}

/// The sandbox has no namespace that could be opened: a pod that is to be redirected is known by that failure.
fn decision(conf: &Value, namespace: &str, name: &str, agent: &UnixHttp) -> Result<&'static str, String> {
    let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};IgnoreUnknown=1");
    let env = |variable: &str| {
        let value = match variable {
            "CNI_COMMAND" => "ADD",
            "CNI_CONTAINERID" => "c1",
            "CNI_NETNS" => "/var/run/netns/none-of-this-name",
            "CNI_IFNAME" => "eth0",
            "CNI_ARGS" => &args,
            _ => return None,
        };
        Some(value.to_owned())
    };
    let pause = Duration::from_millis(2);
    let budget = Budget {
        total: Duration::from_secs(5),
        not_found: Duration::from_secs(5),
        first_pause: pause,
        longest_pause: pause,
        ..Budget::default()
    };
    let plugin = IstioCni::new(Environment::default()).with_budget(budget);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let stdin = std::io::Cursor::new(conf.to_string().into_bytes());
    let exit = cni::dispatch::run(ABOUT, &env, stdin, &mut stdout, &mut stderr, &plugin);
    let answer: Value = serde_json::from_slice(&stdout).map_err(|error| error.to_string())?;
    Ok(match (exit, agent.requests().len(), answer["code"].as_u64()) {
        (0, 0, _) => "skip",
        (0, _, _) => "ambient-event",
        (_, _, Some(8)) => "redirect",
        _ => "error",
    })
}
