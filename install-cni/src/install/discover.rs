//! Which files of the CNI directory count: the same ones, in the same order, as for container runtimes.
//!
//! Byte order of the names; broken files are skipped, never touched. `.json` counts as well, because runtimes read it:
//! an agent that does not would edit a file behind the one in use. Called by the choice and by a pass, for its log.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use super::directory::{Directory, DirectoryError, OwnFiles, ending, has_known_ending};

/// Why no file counts.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// The directory is missing or cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// No configuration at all.
    #[error("{0} holds no network configuration yet")]
    NoNetworks(PathBuf),
    /// Configurations, but none a runtime would use.
    #[error("{path} holds no valid network configuration yet; skipped: {skipped}")]
    NoneValid {
        /// The directory.
        path: PathBuf,
        /// Each file with its reason.
        skipped: String,
    },
}

/// A file a runtime would skip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub name: String,
    /// Why it does not count.
    pub reason: String,
    /// Whether it is not even complete JSON, so that somebody may be about to write it.
    pub incomplete: bool,
}

/// Valid and skipped files of a directory, each in order.
#[derive(Debug, Default)]
pub struct Found {
    /// Names of the files that count.
    pub valid: Vec<String>,
    /// The others with one of the known endings.
    pub skipped: Vec<Skipped>,
}

/// Sorts the files of `directory`, without `own` ones.
pub fn find(directory: &Directory, own: &OwnFiles) -> Found {
    let mut found = Found::default();
    for (name, file) in directory.files.iter().filter(|(name, _)| has_known_ending(name) && !own.contains(*name)) {
        let parsed = match file {
            Ok(text) => {
                serde_json::from_str::<Value>(&text.text).map_err(|error| format!("not complete JSON: {error}"))
            }
            Err(reason) => Err(reason.clone()),
        };
        let incomplete = parsed.is_err() && file.is_ok();
        match parsed.and_then(|value| valid(directory, name, &value)) {
            Ok(()) => found.valid.push(name.clone()),
            Err(reason) => found.skipped.push(Skipped { name: name.clone(), reason, incomplete }),
        }
    }
    found
}

/// Paths of the valid files in `path`, in order; never empty.
///
/// # Errors
/// [`DiscoverError`] when there is none, with the reason.
pub fn valid_files(path: &Path) -> Result<Vec<PathBuf>, DiscoverError> {
    let directory = Directory::observe(path, &[])?;
    let found = find(&directory, &OwnFiles::new());
    if found.valid.is_empty() {
        Err(none_valid(&directory, &found))
    } else {
        Ok(found.valid.iter().map(|name| path.join(name)).collect())
    }
}

/// The error for a directory without a valid file.
pub(crate) fn none_valid(directory: &Directory, found: &Found) -> DiscoverError {
    if found.skipped.is_empty() {
        return DiscoverError::NoNetworks(directory.path.clone());
    }
    let skipped: Vec<_> = found.skipped.iter().map(|file| format!("{} ({})", file.name, file.reason)).collect();
    DiscoverError::NoneValid { path: directory.path.clone(), skipped: skipped.join(", ") }
}

fn valid(directory: &Directory, name: &str, value: &Value) -> Result<(), String> {
    let object = value.as_object().ok_or("it is not a JSON object")?;
    if ending(name) == Some("conflist") { valid_list(directory, object) } else { valid_network(object) }
}

fn valid_list(directory: &Directory, list: &Map<String, Value>) -> Result<(), String> {
    let name = list.get("name").ok_or("it has no `name`")?.as_str().ok_or("its `name` is not a string")?;
    if list.get("cniVersion").is_some_and(|version| !version.is_string()) {
        return Err("its `cniVersion` is not a string".to_owned());
    }
    if let Some(versions) = list.get("cniVersions") {
        let versions = versions.as_array().ok_or("its `cniVersions` is not a list")?;
        if !versions.iter().all(|version| version.as_str().is_some_and(is_version)) {
            return Err("its `cniVersions` holds something else than versions".to_owned());
        }
    }
    flag(list, "disableCheck")?;
    flag(list, "disableGC")?;
    let inline_only = flag(list, "loadOnlyInlinedPlugins")?;
    let mut plugins = match list.get("plugins") {
        None => 0,
        Some(Value::Array(plugins)) if !plugins.is_empty() => {
            plugins.iter().try_for_each(valid_plugin)?;
            plugins.len()
        }
        Some(_) => return Err("its `plugins` is not a list with at least one plugin".to_owned()),
    };
    if !inline_only {
        for drop_in in directory.drop_ins.get(name).into_iter().flatten() {
            let text = drop_in.as_ref().map_err(|reason| format!("a file in {name}/: {reason}"))?;
            let plugin = serde_json::from_str(&text.text).map_err(|error| format!("a file in {name}/: {error}"))?;
            valid_plugin(&plugin).map_err(|reason| format!("a file in {name}/: {reason}"))?;
            plugins += 1;
        }
    }
    if plugins == 0 { Err("it has no plugins".to_owned()) } else { Ok(()) }
}

fn valid_plugin(plugin: &Value) -> Result<(), String> {
    let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind.is_empty() { Err("a plugin without `type`".to_owned()) } else { Ok(()) }
}

fn valid_network(network: &Map<String, Value>) -> Result<(), String> {
    if network.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
        let list = network.contains_key("plugins");
        return Err(
            if list { "it is a list, but its name does not end in .conflist" } else { "it has no `type`" }.to_owned()
        );
    }
    for key in ["name", "cniVersion"] {
        if network.get(key).is_some_and(|value| !value.is_string() && !value.is_null()) {
            return Err(format!("its `{key}` is not a string"));
        }
    }
    Ok(())
}

/// A boolean, or one of the two words as a string; absent is false.
fn flag(list: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match list.get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(format!("its `{key}` is not a boolean")),
    }
}

fn is_version(version: &str) -> bool {
    let parts: Vec<_> = version.split('.').collect();
    parts.len() <= 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(name: &str, text: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
        let found = find(&Directory::observe(dir.path(), &[]).unwrap(), &OwnFiles::new());
        assert_eq!(found.valid.len() + found.skipped.len(), 1);
        found.skipped.first().map(|skipped| skipped.reason.clone())
    }

    #[test]
    fn lists_are_judged_as_runtimes_judge_them() {
        for valid in [
            r#"{"name":"n","plugins":[{"type":"a"}]}"#,
            r#"{"name":"","plugins":[{"type":"a"}],"cniVersion":"whatever"}"#,
            r#"{"name":"n","plugins":[{"type":"a"}],"cniVersions":["0.4.0","1.0.0"],"disableCheck":"TRUE","disableGC":false}"#,
        ] {
            assert_eq!(reason("a.conflist", valid), None, "{valid}");
        }
        for (text, why) in [
            ("", "JSON"),
            ("[]", "object"),
            (r#"{"plugins":[{"type":"a"}]}"#, "no `name`"),
            (r#"{"name":1,"plugins":[{"type":"a"}]}"#, "`name` is not"),
            (r#"{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}"#, "cniVersion"),
            (r#"{"name":"n","cniVersions":["x"],"plugins":[{"type":"a"}]}"#, "cniVersions"),
            (r#"{"name":"n","disableGC":1,"plugins":[{"type":"a"}]}"#, "disableGC"),
            (r#"{"name":"n","plugins":[]}"#, "plugins"),
            (r#"{"name":"n","plugins":null}"#, "plugins"),
            (r#"{"name":"n","plugins":[{"type":""}]}"#, "without `type`"),
            (r#"{"name":"n","pugins":[{"type":"a"}]}"#, "no plugins"),
        ] {
            let reason = reason("a.conflist", text).unwrap_or_default();
            assert!(reason.contains(why), "{text}: {reason}");
        }
    }

    #[test]
    fn a_json_file_counts_because_runtimes_read_it() {
        assert_eq!(reason("a.json", r#"{"type":"bridge","name":null}"#), None);
        assert_eq!(reason("a.conf", r#"{"type":"bridge"}"#), None);
        assert!(reason("a.conf", r#"{"name":"n","plugins":[{"type":"a"}]}"#).unwrap().contains("conflist"));
        assert!(reason("a.json", r#"{"type":"a","name":[]}"#).unwrap().contains("name"));
    }

    #[test]
    fn a_list_may_live_from_its_drop_in_directory() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.conflist", r#"{"name":"n"}"#);
        assert!(valid_files(dir.path()).is_err());
        std::fs::create_dir(dir.path().join("n")).unwrap();
        write("n/x.conf", r#"{"type":"bridge"}"#);
        assert_eq!(valid_files(dir.path()).unwrap(), [dir.path().join("a.conflist")]);
        write("n/y.conf", "{");
        assert!(valid_files(dir.path()).unwrap_err().to_string().contains("a file in n/"));
        write("a.conflist", r#"{"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}"#);
        assert_eq!(valid_files(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn missing_and_empty_directories_are_told_apart_from_broken_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(valid_files(&dir.path().join("none")), Err(DiscoverError::Directory(_))));
        std::fs::create_dir(dir.path().join("x.conflist")).unwrap();
        std::fs::write(dir.path().join("a.conf.bak"), "{}").unwrap();
        assert!(matches!(valid_files(dir.path()), Err(DiscoverError::NoNetworks(_))));
        std::fs::write(dir.path().join("a.conf"), [0xff, 0xfe]).unwrap();
        assert!(valid_files(dir.path()).unwrap_err().to_string().contains("a.conf (it is not UTF-8 text)"));
    }
}
