//! `install/`: which file, what is written into it, what is copied.

mod agent;
mod life;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use install_cni::config::comma_list;
use install_cni::credential::Bearer;
use install_cni::install::choose::{Choice, choose};
use install_cni::install::discover::valid_files;
use install_cni::install::{convert, edit, kubeconfig};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::cases::Case;
use crate::{Outcome, expect, pending};

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    let data = &case.data;
    match case.kind.as_str() {
        "insert" => insert(data).into(),
        "discovery" => discovery(data).into(),
        "choose" => choice(data).into(),
        "kubeconfig" => credentials(data).into(),
        "binaries" => copies(data).into(),
        "exclude-namespaces" => {
            let got = json!({"list": comma_list(data["input"].as_str().unwrap_or_default())});
            expect("list", &data["expect"], &got).into()
        }
        "element" => life::element(data).into(),
        "create" => life::create(data).into(),
        "check" => life::check(data).into(),
        "watch" => life::watch(data),
        "lifecycle" => life::lifecycle(data).into(),
        "cleanup" => life::cleanup(data).into(),
        "shutdown" => life::shutdown(data).into(),
        _ => pending(case),
    }
}

fn insert(data: &Value) -> Result<(), String> {
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    let edited =
        serde_json::from_str::<Value>(text("element")).map_err(|error| error.to_string()).and_then(|element| {
            let existing: Value = serde_json::from_str(text("existing")).unwrap_or_default();
            let single = existing.get("type").is_some();
            let edited = if single {
                convert::convert(text("existing"), &element)
            } else {
                edit::insert(text("existing"), &element)
            };
            edited.map_err(|error| error.to_string())
        });
    match (data["expect"]["content"].as_str(), edited) {
        (None, Err(_)) => Ok(()),
        (None, Ok(text)) => Err(format!("expected an error, got\n{text}")),
        (Some(want), Err(error)) => Err(format!("expected\n{want}\n  got the error: {error}")),
        (Some(want), Ok(got)) => {
            let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
            expect("content", &json(want)?, &json(&got)?)
        }
    }
}

/// A directory with these files.
fn directory(files: &Value) -> Result<TempDir, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    fill(dir.path(), files)?;
    Ok(dir)
}

fn fill(dir: &Path, files: &Value) -> Result<(), String> {
    for (name, content) in files.as_object().into_iter().flatten() {
        fs::write(dir.join(name), content.as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn discovery(data: &Value) -> Result<(), String> {
    let dir = directory(&data["dir"])?;
    let missing = dir.path().join("missing");
    let found = valid_files(if data["dir_exists"] == false { &missing } else { dir.path() });
    let got = match found {
        Ok(files) => json!({"files": files.iter().map(|file| file_name(file)).collect::<Vec<_>>()}),
        Err(_) => json!({"error": true}),
    };
    expect("files", &data["expect"], &got)
}

/// Waiting is looking again: a case that waits first must find nothing before the delayed files are there.
fn choice(data: &Value) -> Result<(), String> {
    let dir = directory(&data["dir"])?;
    let name = data["cni_conf_name"].as_str().filter(|name| !name.is_empty());
    let look = || choose(dir.path(), name, data["chained_cni_plugin"] == true);
    let mut got = Map::new();
    let first = look();
    if data["delayed"].is_object() {
        if matches!(first, Choice::Wait(_)) {
            got.insert("waits_first".to_owned(), true.into());
        }
        fill(dir.path(), &data["delayed"])?;
    }
    match look() {
        Choice::File(file) => got.insert("file".to_owned(), file_name(&file).into()),
        Choice::Wait(_) => got.insert("waits_forever".to_owned(), true.into()),
    };
    expect("choice", &data["expect"], &Value::Object(got))
}

fn credentials(data: &Value) -> Result<(), String> {
    let dir = directory(&data["service_account"])?;
    // A file that is null is not there.
    for (name, content) in data["service_account"].as_object().into_iter().flatten() {
        if content.is_null() {
            fs::remove_file(dir.path().join(name)).map_err(|error| error.to_string())?;
        }
    }
    let mut ca_file = dir.path().join("ca.crt");
    if let Some(own) = data["kube_ca_file"].as_str() {
        ca_file = dir.path().join("own-ca.crt");
        fs::write(&ca_file, own).map_err(|error| error.to_string())?;
    }
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
    let protocol = text("service_protocol");
    let source = kubeconfig::Source {
        host: text("service_host"),
        port: text("service_port"),
        protocol: if protocol.is_empty() { "https".to_owned() } else { protocol },
        ca_file: (data["skip_tls_verify"] != true).then_some(ca_file),
        token_file: dir.path().join("token"),
    };
    match (data["expect"]["content"].as_str(), kubeconfig::wanted(&source, &Bearer::Own)) {
        (Some(want), Ok(got)) => expect("kubeconfig", &want, &got.as_str()),
        (Some(want), Err(error)) => Err(format!("expected\n{want}\n  got the error: {error}")),
        (None, Ok(got)) => Err(format!("expected an error, got\n{got}")),
        (None, Err(error)) => {
            use kubeconfig::KubeconfigError::{Awaited, BadToken, Ca, NoHost, NoPort, Token};
            let because = match error {
                NoHost => "no service host",
                NoPort => "no service port",
                Ca(_) => "no CA file",
                Token(_) | BadToken(_) | Awaited => "no token file",
            };
            expect("cause", &data["expect"]["because"], &json!(because))
        }
    }
}

fn copies(data: &Value) -> Result<(), String> {
    let source = directory(&data["source"])?;
    let mode = |text: &Value| u32::from_str_radix(text.as_str().unwrap_or("0644"), 8).unwrap_or(0o644);
    for (name, octal) in data["source_modes"].as_object().into_iter().flatten() {
        let permissions = fs::Permissions::from_mode(mode(octal));
        fs::set_permissions(source.path().join(name), permissions).map_err(|error| error.to_string())?;
    }
    let targets: Vec<TempDir> =
        data["targets"].as_array().into_iter().flatten().map(directory).collect::<Result<_, _>>()?;
    let paths: Vec<PathBuf> = targets.iter().map(|target| target.path().to_owned()).collect();
    let root = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut config = agent::config(&json!({}), root.path())?;
    (config.dirs.binaries_from, config.dirs.binaries_to) = (source.path().to_owned(), paths.clone());
    agent::pass(&config);
    let copied: Vec<String> = data["source"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let after = paths.iter().map(|path| content_of(path)).collect::<Result<Vec<Value>, String>>()?;
    expect("targets", &data["expect"]["targets_after"], &after.into())?;
    expect("copied", &data["expect"]["copied"], &json!(copied))?;
    for (name, want) in
        data["expect"]["expect_modes"].as_object().or(data["expect_modes"].as_object()).into_iter().flatten()
    {
        let found = fs::metadata(paths[0].join(name)).map_err(|error| error.to_string())?.permissions().mode();
        expect("mode", &mode(want), &(found & 0o7777))?;
    }
    Ok(())
}

fn content_of(dir: &Path) -> Result<Value, String> {
    let mut files = Map::new();
    for entry in fs::read_dir(dir).map_err(|error| error.to_string())?.filter_map(Result::ok) {
        let text = fs::read_to_string(entry.path()).map_err(|error| error.to_string())?;
        files.insert(file_name(&entry.path()), text.into());
    }
    files.sort_keys();
    Ok(Value::Object(files))
}

/// The element that the agent writes is the element that the plugin reads.
#[cfg(test)]
mod tests {
    use agent_api::PluginConfig;

    use super::*;

    #[test]
    fn the_plugin_reads_the_element_that_is_inserted() {
        let config = PluginConfig { pod_namespace: "istio-system".to_owned(), ..PluginConfig::default() };
        let element = Value::Object(config.element(None).unwrap());
        let list = edit::insert(r#"{"name":"n","plugins":[{"type":"bridge"}]}"#, &element).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let read: PluginConfig = serde_json::from_value(list["plugins"][1].clone()).unwrap();
        assert_eq!(read, config);
    }
}
