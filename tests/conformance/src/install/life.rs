//! What an agent makes of a CNI directory: at the start, at changes, and at its end.
//!
//! Between the steps of a case the agent does one pass. "Valid" means that a pass leaves the directory alone.

use std::fs;
use std::path::Path;

use install_cni::config::Config;
use install_cni::install::edit;
use install_cni::install::uninstall::uninstall;
use install_cni::shutdown::{Answer, Fate};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::agent::{Agent, config, pass};
use super::{content_of, fill};
use crate::{Outcome, expect};

/// A node of a case, and the settings for it.
fn node(data: &Value, files: &Value) -> Result<(TempDir, Config), String> {
    let root = tempfile::tempdir().map_err(|error| error.to_string())?;
    let config = config(&data["config"], root.path())?;
    fill(&config.dirs.cni, files)?;
    Ok((root, config))
}

/// The files of the CNI directory: configurations as what they mean, others as they are.
fn meaning(files: &Value) -> Value {
    let parsed =
        |text: &Value| serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_else(|_| text.clone());
    files
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, text)| (name.clone(), parsed(text)))
        .collect::<Map<_, _>>()
        .into()
}

fn now(config: &Config) -> Result<Value, String> {
    Ok(meaning(&content_of(&config.dirs.cni)?))
}

fn has_element(text: &str) -> bool {
    let ours = |value: Value| edit::is_ours(&value);
    edit::count(text) > 0 || serde_json::from_str(text).is_ok_and(ours)
}

/// Name of the list that a single network's file becomes.
fn converted(name: &str) -> String {
    if name.ends_with(".conf") { format!("{name}list") } else { name.to_owned() }
}

pub(super) fn element(data: &Value) -> Result<(), String> {
    let (_root, config) = node(data, &Value::Null)?;
    let parsed = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
    let want = data["expect"]["content"].as_str().unwrap_or_default();
    expect("content", &parsed(want)?, &parsed(&config.standalone_text())?)?;
    expect("order and form", &want, &config.standalone_text().as_str())
}

pub(super) fn create(data: &Value) -> Result<(), String> {
    let (_root, config) = node(data, &data["dir"])?;
    let mut agent = Agent::new(&config);
    let before = now(&config)?;
    let mut missing = agent.pass();
    if data["delayed"].is_object() {
        expect("the directory while it waits", &before, &now(&config)?)?;
        fill(&config.dirs.cni, &data["delayed"])?;
        missing = agent.pass();
    }
    if data["expect"]["waits_forever"] == true {
        expect("that something is missing", &true, &missing.is_some())?;
        return expect("the directory while it waits", &before, &now(&config)?);
    }
    expect("directory", &meaning(&data["expect"]["dir_after"]), &now(&config)?)?;
    expect("what is missing", &None, &missing)
}

pub(super) fn check(data: &Value) -> Result<(), String> {
    let (_root, mut config) = node(data, &data["dir"])?;
    let remembered = data["remembered"].as_str().unwrap_or_default();
    if !config.chained && !data["dir"].as_object().is_none_or(Map::is_empty) {
        config.conf_name = Some(remembered.to_owned());
    }
    let before = now(&config)?;
    let missing = pass(&config);
    let after = now(&config)?;
    if remembered.is_empty() {
        // The reference writes once in each process. We look whether there is something to write.
        return expect("what is missing", &None, &missing);
    }
    let valid = data["expect"]["valid"] == true;
    expect(
        "that the directory is left alone and nothing else is wrong",
        &valid,
        &(before == after && (valid || missing.is_none())),
    )?;
    match data["expect"]["cni_conf_name_after"].as_str() {
        Some(name) if config.owned.is_none() => {
            let text = fs::read_to_string(config.dirs.cni.join(converted(name))).unwrap_or_default();
            expect("that our plugin is in the new first file", &true, &has_element(&text))
        }
        _ => Ok(()),
    }
}

pub(super) fn watch(data: &Value) -> Outcome {
    if data["config"]["istio_owned_cni_config"] == true {
        // Ours is a copy, and waits for something to copy.
        return Outcome::Different("owned-needs-a-network".to_owned());
    }
    watched(data).into()
}

fn watched(data: &Value) -> Result<(), String> {
    let (_root, config) = node(data, &Value::Null)?;
    let mut agent = Agent::new(&config);
    let mut token = None;
    for (number, step) in data["steps"].as_array().into_iter().flatten().enumerate() {
        for (name, text) in step["write"].as_object().into_iter().flatten() {
            let text = text.as_str().unwrap_or_default();
            let is_token = name.starts_with("token");
            let path = if is_token { config.dirs.service_account.join("token") } else { config.dirs.cni.join(name) };
            token = is_token.then(|| text.to_owned()).or(token);
            fs::write(path, text).map_err(|error| error.to_string())?;
        }
        for name in step["remove"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            fs::remove_file(config.dirs.cni.join(name)).map_err(|error| error.to_string())?;
        }
        if step["watch"].is_string() {
            let before = now(&config)?;
            expect(&format!("what is missing after step {number}"), &None, &agent.pass())?;
            let untouched = before == now(&config)?;
            // A token is no reason to touch the configuration, or to be unready.
            let wakes = step["watch"] != "blocks" && token.is_none();
            expect(&format!("that step {number} leaves the directory alone"), &!wakes, &untouched)?;
            if let Some(token) = token.take() {
                let path = config.dirs.run.join("istio-cni-kubeconfig");
                let kubeconfig = fs::read_to_string(path).map_err(|error| error.to_string())?;
                expect("that the token has arrived", &true, &kubeconfig.contains(&format!("token: {token}")))?;
            }
        }
    }
    Ok(())
}

pub(super) fn cleanup(data: &Value) -> Result<(), String> {
    let (_root, mut config) = node(data, &data["dir"])?;
    if !config.chained {
        config.conf_name = data["remembered"].as_str().map(str::to_owned);
    }
    for path in [config.dirs.run.join("istio-cni-kubeconfig"), config.dirs.binaries_to[0].join("istio-cni")] {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(|error| error.to_string())?;
        fs::write(path, "plugin").map_err(|error| error.to_string())?;
    }
    let errors = uninstall(&config);
    expect("errors", &Vec::<String>::new(), &errors)?;
    gone(data, &config)?;
    expect("directory", &meaning(&data["expect"]["dir_after"]), &now(&config)?)
}

/// Nothing but the CNI configuration is left.
fn gone(data: &Value, config: &Config) -> Result<(), String> {
    let kubeconfig = config.dirs.run.join("istio-cni-kubeconfig").exists();
    expect("kubeconfig", &(data["expect"]["kubeconfig_exists"] == true), &kubeconfig)?;
    let plugin = config.dirs.binaries_to[0].join("istio-cni").exists();
    expect("plugin", &(data["expect"]["binary_after_shutdown"] == true), &plugin)
}

pub(super) fn lifecycle(data: &Value) -> Result<(), String> {
    let (_root, config) = node(data, &data["dir"])?;
    let want = &data["expect"];
    let mut agent = Agent::new(&config);
    if data["delayed"].is_object() {
        expect("that something is missing", &true, &agent.pass().is_some())?;
        fill(&config.dirs.cni, &data["delayed"])?;
    }
    expect("what is missing", &None, &agent.pass())?;
    let file = config.dirs.cni.join(want["file"].as_str().unwrap_or_default());
    let installed = |when: &str| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        expect(when, &meaning(&json!({"f": want["content"]})), &meaning(&json!({"f": text})))
    };
    installed("content")?;
    let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
    match edit::remove(&text) {
        Ok(bare) => fs::write(&file, bare),
        Err(_) => fs::remove_file(&file),
    }
    .map_err(|error| error.to_string())?;
    let plugin = config.dirs.binaries_to[0].join("istio-cni");
    fs::remove_file(&plugin).map_err(|error| error.to_string())?;
    expect("what is missing", &None, &agent.pass())?;
    installed("content after it was taken away")?;
    expect("the plugin after it was taken away", &true, &plugin.exists())?;
    expect("errors", &Vec::<String>::new(), &uninstall(&config))?;
    gone(data, &config)?;
    let after = &want["after_shutdown"];
    let mut expected = data["dir"].clone();
    for (name, text) in data["delayed"].as_object().into_iter().flatten() {
        expected[name] = text.clone();
    }
    if let Some(name) = after["file"].as_str() {
        expected[name] = after["content"].clone();
    }
    expect("directory after the end, without temporary files", &meaning(&given_back(expected, data)), &now(&config)?)
}

/// A list under the wrong name stays under the right one, where the reference has put it.
fn given_back(mut files: Value, data: &Value) -> Value {
    let file = data["expect"]["after_shutdown"]["file"].as_str().unwrap_or_default();
    if let Some(name) = file.strip_suffix("list").filter(|name| name.ends_with(".conf"))
        && let Some(files) = files.as_object_mut()
    {
        files.remove(name);
    }
    files
}

pub(super) fn shutdown(data: &Value) -> Result<(), String> {
    let answer = match &data["daemonset"] {
        Value::Number(status) => Answer::Status(status.as_u64().and_then(|it| u16::try_from(it).ok()).unwrap_or(0)),
        Value::String(word) if word == "deleting" => Answer::Going,
        Value::String(word) if word == "timeout" => Answer::None("it hangs".to_owned()),
        _ if data["required_node_affinity"] == "does not match" => Answer::NotHere,
        _ => Answer::Wanted,
    };
    let goes = data["ambient_disable_safe_upgrade"] == true || matches!(Fate::of(&answer), Fate::Go(_));
    expect("that it is uninstalled", &(data["expect"]["cleanup"] == true), &goes)
}
