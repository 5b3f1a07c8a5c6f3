//! `plugin/`: what the plugin decides, maps, answers and hands on.

use cni::{NetConf, PodArgs};
use iptables_rules::config::HostFacts;
use iptables_rules::plan::sidecar;
use iptables_rules::render::iptables::restore;
use istio_cni_plugin::config::Environment;
use istio_cni_plugin::{ABOUT, IstioCni};
use mesh::{Decision, Pod, Redirect, SkipReason, decide, decide_by_name};
use serde_json::{Value, json};

use crate::cases::Case;
use crate::{Outcome, ambient, expect, pending, retry};

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    let data = &case.data;
    match case.kind.as_str() {
        "decide" => decision(data).into(),
        "redirect" => redirect(data).into(),
        "iptables" => tables(data),
        "args" => args(data).into(),
        "protocol" => protocol(data).into(),
        "result" => result(data).into(),
        "selectors" => ambient::selectors(data),
        "event" => ambient::body(data),
        "retry" => retry::run(data).into(),
        "dedup" => dedup(data),
        _ => pending(case),
    }
}

/// The function is seen through the ports excluded from inbound capture, to which those of the proxy are added.
fn dedup(data: &Value) -> Outcome {
    let input = crate::sidecar::lines(&data["input"]);
    if input.iter().any(|port| port.parse::<u16>().is_err()) {
        return Outcome::Pending("plugin/dedup, of what is no port".to_owned());
    }
    let annotation = "traffic.sidecar.istio.io/excludeInboundPorts";
    let pod = json!({"metadata": {"annotations": {annotation: input.join(",")}}});
    let check = || {
        let redirect = mapped(&pod)??;
        let got = redirect.to_texts().exclude_inbound_ports;
        let want = crate::sidecar::lines(&data["expect"]["list"]).join(",") + ",15020,15021,15090";
        expect("list", &want, &got)
    };
    check().into()
}

fn decision(data: &Value) -> Result<(), String> {
    let conf = &data["stdin"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let args = PodArgs::parse(&text(&data["env"]["CNI_ARGS"])).map_err(|error| error.to_string())?;
    let excluded = crate::sidecar::lines(&conf["exclude_namespaces"]);
    let by_name = decide_by_name(&args.name, &args.namespace, &text(&conf["pod_namespace"]), &excluded);
    let skip = |reason: SkipReason| json!({"decision": "skip", "reason": reason.as_str()});
    if let Some(reason) = by_name {
        return expect("decision", &data["expect"], &skip(reason));
    }
    let pod: Pod = serde_json::from_value(data["pod"].clone()).map_err(|error| error.to_string())?;
    if conf["ambient_enabled"] == true && ambient::of_decision(data, &pod)? {
        // What the agent answers, and what then becomes of the pod, is tested with the plugin itself.
        let mut want = data["expect"].clone();
        let told = ["agent_answers", "result"].map(|key| want.as_object_mut().and_then(|want| want.remove(key)));
        expect("an answer of the agent", &true, &told.iter().all(Option::is_some))?;
        let event = ambient::event_of_decision(data, &args.name, &args.namespace)?;
        return expect("decision", &want, &json!({"decision": "ambient-event", "event": event}));
    }
    let got = match decide(&pod) {
        Ok(Decision::Skip(reason)) => skip(reason),
        Ok(Decision::Redirect(redirect)) => json!({"decision": "redirect", "redirect": redirect.to_texts()}),
        Err(invalid) => json!({"decision": "error", "because": "invalid-annotation", "annotation": invalid.annotation}),
    };
    expect("decision", &data["expect"], &got)
}

fn mapped(pod: &Value) -> Result<Result<Redirect, String>, String> {
    let pod: Pod = serde_json::from_value(pod.clone()).map_err(|error| error.to_string())?;
    Ok(Redirect::from_pod(&pod).map_err(|invalid| invalid.annotation.to_owned()))
}

fn redirect(data: &Value) -> Result<(), String> {
    let want = &data["expect"];
    match mapped(&data["pod"])? {
        Ok(redirect) => expect("redirect", want, &json!({"redirect": canonical(&redirect, want)})),
        Err(annotation) => expect("redirect", want, &json!({"error": true, "annotation": annotation})),
    }
}

/// Our lists are trimmed and hold each item once. Where the case has the same list as it was written, that is equal.
fn canonical(redirect: &Redirect, want: &Value) -> Value {
    let mut got = json!(redirect.to_texts()).as_object().cloned().unwrap_or_default();
    for (key, value) in &mut got {
        let written = want["redirect"][key].as_str().unwrap_or_default();
        let mut items: Vec<&str> = Vec::new();
        for item in written.split(',').map(str::trim) {
            if !items.contains(&item) {
                items.push(item);
            }
        }
        if value.as_str() == Some(&items.join(",")) {
            *value = written.into();
        }
    }
    Value::Object(got)
}

/// The settings of a case's pod give the rules that the case's flags give.
pub(crate) fn maps_to(data: &Value) -> Result<(), String> {
    let source = &data["pod"];
    let env = source["proxy_env"].as_object().into_iter().flatten();
    let env: Vec<Value> = env.map(|(name, value)| json!({"name": name, "value": value})).collect();
    let context = json!({"runAsUser": source["proxy_run_as_user"], "runAsGroup": source["proxy_run_as_group"]});
    let pod = json!({
        "metadata": {"annotations": source["annotations"]},
        "spec": {"containers": [{"name": "istio-proxy", "env": env, "securityContext": context}]},
    });
    let redirect = mapped(&pod)?.map_err(|annotation| format!("annotation {annotation} was refused"))?;
    let plan = sidecar(&redirect.settings, &crate::sidecar::facts(data));
    expect("rules of the pod", &crate::sidecar::lines(&data["expected"]["v4"]), &restore(&plan.v4))
}

fn tables(data: &Value) -> Outcome {
    let check = || {
        let redirect = mapped(&data["pod"])?.map_err(|annotation| format!("annotation {annotation} was refused"))?;
        let rules = restore(&sidecar(&redirect.settings, &HostFacts::default()).v4);
        let mut want = Vec::new();
        for (table, lines) in data["expect"]["ipv4_tables"].as_object().into_iter().flatten() {
            want.push(format!("* {table}"));
            want.extend(crate::sidecar::lines(lines));
            want.push("COMMIT".to_owned());
        }
        expect("rules", &want, &rules)
    };
    check().into()
}

fn args(data: &Value) -> Result<(), String> {
    let got = match PodArgs::parse(data["cni_args"].as_str().unwrap_or_default()) {
        Ok(args) => json!({
            "name": args.name, "namespace": args.namespace, "uid": args.uid,
            "infra_container_id": args.infra_container_id,
        }),
        Err(_) => json!({"error": true}),
    };
    expect("arguments", &data["expect"], &got)
}

fn protocol(data: &Value) -> Result<(), String> {
    let env = |name: &str| data["env"][name].as_str().map(str::to_owned);
    let stdin = std::io::Cursor::new(data["stdin"].as_str().unwrap_or_default().as_bytes().to_vec());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let plugin = IstioCni::new(Environment::from_lookup(env));
    let exit = cni::dispatch::run(ABOUT, &env, stdin, &mut stdout, &mut stderr, &plugin);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let want = &data["expect"];
    expect("exit code", &want["exit"], &json!(exit))?;
    if let Some(text) = want["stdout"].as_str() {
        expect("stdout", &text, &stdout.as_ref())?;
    }
    let parsed: Value = serde_json::from_str(&stdout).unwrap_or_default();
    if want["stdout_json"].is_object() {
        expect("stdout", &want["stdout_json"], &parsed)?;
    }
    if want["error_code"].is_number() {
        expect("error code", &want["error_code"], &parsed["code"])?;
    }
    for name in crate::sidecar::lines(&want["message_names"]) {
        let message = parsed["msg"].as_str().unwrap_or_default();
        expect(&format!("`{name}` in the message `{message}`"), &true, &message.contains(&name))?;
    }
    for word in crate::sidecar::lines(&want["stderr_mentions"]) {
        expect(&format!("`{word}` on stderr"), &true, &stderr.contains(&word))?;
    }
    Ok(())
}

fn result(data: &Value) -> Result<(), String> {
    let mut conf = json!({"cniVersion": data["cniVersion"], "name": "net", "type": "istio-cni"});
    if !data["prevResult"].is_null() {
        conf["prevResult"] = data["prevResult"].clone();
    }
    let conf = NetConf::parse(conf.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let got = match conf.unchanged_result() {
        Ok(text) => json!({"stdout_json": serde_json::from_str::<Value>(&text).unwrap_or_default()}),
        Err(error) => json!({"error_code": error.code}),
    };
    expect("result", &data["expect"], &got)
}
