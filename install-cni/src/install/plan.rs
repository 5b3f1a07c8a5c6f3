//! What has to happen in the CNI directory: to be installed in one file and in no other, or to be gone from all.
//!
//! Pure: from a picture of the directory to a list of steps. The state of the directory is all that counts, not what
//! an earlier pass or process did, so a crash at any point is repaired by the next pass. A file we cannot understand
//! is never written. Called by a pass and by uninstall.

use serde_json::Value;
use sys::file::Access;
use thiserror::Error;

use super::choose::{list_name, network_name};
use super::convert::{self, Origin};
use super::directory::{Directory, OwnFiles, Text, ending, has_known_ending};
use super::edit::{self, EditError};
use super::journal::Put;
use super::steps::{Guard, Step};

/// Why a file of the directory cannot be worked on. Nothing is changed then.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum PlanError {
    /// It could not be read.
    #[error("{name}: {reason}")]
    Unusable {
        /// Name of the file.
        name: String,
        /// Why.
        reason: String,
    },
    /// Its content does not allow it.
    #[error("{name} is left alone: {source}")]
    Edit {
        /// Name of the file.
        name: String,
        /// Why.
        source: EditError,
    },
    /// A file that should be wholly ours is somebody else's.
    #[error("{name} exists and is not ours, so it is not overwritten; give another name with {setting}")]
    Foreign {
        /// Name of the file.
        name: String,
        /// The setting that gives the name.
        setting: &'static str,
    },
}

/// Steps that put `element` into the file `chosen` as the last plugin and take it out of all others.
///
/// # Errors
/// [`PlanError`] when the chosen file does not allow it.
pub fn chained(directory: &Directory, chosen: &str, element: &Value, own: &OwnFiles) -> Result<Vec<Step>, PlanError> {
    let text = usable(directory, chosen)?;
    let wanted = wanted_list(chosen, text, element)?;
    let target = match ending(chosen) {
        Some("conf" | "json") => list_name(directory, chosen, &wanted),
        _ => chosen.to_owned(),
    };
    let mut steps = Vec::new();
    let there = directory.text(&target);
    if there.is_none_or(|there| there.text != wanted) {
        let cause = if target == chosen {
            "our plugin belongs at the end of the list"
        } else {
            "a list is needed for our plugin"
        };
        steps.push(write(directory, &target, wanted, text.access, Put::Element, cause));
    }
    if target != chosen {
        steps.push(remove(directory, chosen, text, "its list has taken its place"));
    }
    steps.extend(leave_all_but(directory, &[chosen, &target], own, "another file is in use now"));
    Ok(steps)
}

/// Steps that make the file `name` a copy of `primary` with `element` as its last plugin, and take `element` out of all
/// others.
///
/// # Errors
/// [`PlanError`] when the primary does not allow it, or the name belongs to someone else's file.
pub fn owned(
    directory: &Directory,
    (name, mode): (&str, u32),
    primary: &str,
    element: &Value,
    own: &OwnFiles,
) -> Result<Vec<Step>, PlanError> {
    let wanted = wanted_list(primary, usable(directory, primary)?, element)?;
    let mut steps = Vec::new();
    let (access, cause) = match directory.files.get(name) {
        None => (Access::new(mode), "our copy of the network's configuration"),
        Some(Ok(there)) if there.text == wanted => (there.access, ""),
        Some(Ok(there)) if runs_ours(there) || own.contains(name) || is_copy(directory, name) => {
            (there.access, "our copy follows the network's configuration")
        }
        Some(Ok(_)) => {
            let setting = "ISTIO_OWNED_CNI_CONFIG_FILENAME";
            return Err(PlanError::Foreign { name: name.to_owned(), setting });
        }
        Some(Err(reason)) => return Err(PlanError::Unusable { name: name.to_owned(), reason: reason.clone() }),
    };
    if !cause.is_empty() {
        steps.push(write(directory, name, wanted, access, Put::OwnFile, cause));
    }
    steps.extend(leave_all_but(directory, &[name], own, "our plugin has a file of its own now"));
    Ok(steps)
}

/// Steps that make `text` the whole content of the file `name`, and take our element out of all lists.
///
/// # Errors
/// [`PlanError`] when the name belongs to someone else's file.
pub fn standalone(
    directory: &Directory,
    (name, mode): (&str, u32),
    text: &str,
    own: &OwnFiles,
) -> Result<Vec<Step>, PlanError> {
    let mut steps = Vec::new();
    let mut put = |access, cause| {
        steps.push(write(directory, name, text.to_owned(), access, Put::OwnFile, cause));
    };
    match directory.files.get(name) {
        None => put(Access::new(mode), "our stand-alone configuration"),
        Some(Err(reason)) => return Err(PlanError::Unusable { name: name.to_owned(), reason: reason.clone() }),
        Some(Ok(there)) => {
            let have = edit::object(&there.text).map(Value::Object).ok().filter(edit::is_ours);
            let Some(have) = have else {
                return Err(PlanError::Foreign { name: name.to_owned(), setting: "CNI_CONF_NAME" });
            };
            if serde_json::from_str::<Value>(text).ok().as_ref() != Some(&have) {
                put(there.access, "our settings have changed");
            }
        }
    }
    steps.extend(leave_all_but(directory, &[name], own, "our plugin has a file of its own now"));
    Ok(steps)
}

/// Steps that take away our own files: there is nothing to copy any more.
pub fn drop_own(directory: &Directory, own: &OwnFiles, cause: &str) -> Vec<Step> {
    own.iter()
        .filter(|name| is_own(directory, name))
        .filter_map(|name| Some(remove(directory, name, directory.text(name)?, cause)))
        .collect()
}

/// Steps that take everything of ours out of the directory, in groups: a step must not be done when one before it in its
/// group failed. Files that do not allow it are told beside the steps for the others.
pub fn uninstall(directory: &Directory, own: &OwnFiles) -> (Vec<Vec<Step>>, Vec<PlanError>) {
    let mut steps = Vec::new();
    let mut errors = Vec::new();
    for name in directory.files.keys() {
        match leave(directory, name, own, "uninstall") {
            Ok(group) if group.is_empty() => {}
            Ok(group) => steps.push(group),
            Err(source) => errors.push(PlanError::Edit { name: name.clone(), source }),
        }
    }
    (steps, errors)
}

/// Names of files that run our plugin.
pub fn in_use<'a>(directory: &'a Directory, own: &'a OwnFiles) -> impl Iterator<Item = &'a str> {
    let names = directory.files.keys().filter(move |name| {
        let has_element = directory.text(name).is_some_and(|text| edit::count(&text.text) > 0);
        has_element || (own.contains(*name) && is_own(directory, name))
    });
    names.map(String::as_str)
}

/// Whether the file `name` says the same as another one, our plugin aside.
pub fn is_copy(directory: &Directory, name: &str) -> bool {
    let kinds = |name: &str| edit::kinds(&directory.text(name)?.text);
    let Some(of_this) = kinds(name) else { return false };
    directory.files.keys().filter(|other| *other != name).any(|other| kinds(other).as_ref() == Some(&of_this))
}

/// Whether the file holds our element, or is it.
fn runs_ours(text: &Text) -> bool {
    edit::count(&text.text) > 0 || serde_json::from_str(&text.text).is_ok_and(|value| edit::is_ours(&value))
}

/// Whether a file of which we know that we have put it there still is ours.
pub fn is_own(directory: &Directory, name: &str) -> bool {
    directory.text(name).is_some_and(|text| runs_ours(text) || is_copy(directory, name))
}

fn usable<'a>(directory: &'a Directory, name: &str) -> Result<&'a Text, PlanError> {
    let unusable = |reason: &str| PlanError::Unusable { name: name.to_owned(), reason: reason.to_owned() };
    directory.files.get(name).ok_or_else(|| unusable("it has gone"))?.as_ref().map_err(|reason| unusable(reason))
}

fn wanted_list(name: &str, text: &Text, element: &Value) -> Result<String, PlanError> {
    let failed = |source| PlanError::Edit { name: name.to_owned(), source };
    with_element(&text.text, element, ending(name)).map_err(failed)
}

/// The whole content of a list with our element, from a list or, if the ending allows it, from a single network.
fn with_element(text: &str, element: &Value, ending: Option<&str>) -> Result<String, EditError> {
    if let Some(renewed) = convert::renew(text, element) {
        return renewed;
    }
    match edit::insert(text, element) {
        // A runtime reads only lists from such a name; making one of it would put a broken file into use.
        Err(EditError::SingleNetwork) if ending != Some("conflist") => convert::convert(text, element),
        // A single network that also has `plugins` would turn into another network.
        Ok(_) if ending != Some("conflist") && edit::object(text)?.contains_key("type") => Err(EditError::NoPlugins),
        other => other,
    }
}

/// Steps that take our element out of all files but these.
fn leave_all_but(directory: &Directory, but: &[&str], own: &OwnFiles, cause: &str) -> Vec<Step> {
    let names = directory.files.keys().filter(|name| !but.contains(&name.as_str()) && has_known_ending(name));
    // A file that cannot be edited cannot run our plugin twice either.
    names.flat_map(|name| leave(directory, name, own, cause).unwrap_or_default()).collect()
}

/// Steps that take our element out of the file `name`; none if it has none.
fn leave(directory: &Directory, name: &str, own: &OwnFiles, cause: &str) -> Result<Vec<Step>, EditError> {
    let Some(text) = directory.text(name) else { return Ok(Vec::new()) };
    if own.contains(name) && is_own(directory, name) {
        return Ok(vec![remove(directory, name, text, cause)]);
    }
    if edit::count(&text.text) == 0 {
        return Ok(Vec::new());
    }
    let restore =
        |name: &str, text: &Text, content: String| write(directory, name, content, text.access, Put::Nothing, cause);
    let Some(origin) = convert::origin(&text.text) else {
        let bare = edit::remove(&text.text)?;
        return Ok(vec![restore(name, text, bare)]);
    };
    let Origin::Text(original) = &origin else { return Ok(vec![remove(directory, name, text, cause)]) };
    match network_name(name, &origin) {
        Some(network) if network == name => Ok(vec![restore(name, text, original.clone())]),
        // First the network, then away with the list: at every moment there is a configuration for the pods.
        Some(network) if !directory.files.contains_key(&network) => {
            Ok(vec![restore(&network, text, original.clone()), remove(directory, name, text, cause)])
        }
        // Its owner has written the network anew; that one is right.
        _ => Ok(vec![remove(directory, name, text, cause)]),
    }
}

fn write(directory: &Directory, name: &str, text: String, access: Access, put: Put, cause: &str) -> Step {
    let guard = match directory.text(name) {
        Some(there) => Guard::Bytes(there.text.clone().into_bytes()),
        None => Guard::Absent,
    };
    Step::write(&directory.path.join(name), text.into_bytes(), access, put, cause).guarded(guard)
}

fn remove(directory: &Directory, name: &str, text: &Text, cause: &str) -> Step {
    Step::remove(&directory.path.join(name), cause).guarded(Guard::Bytes(text.text.clone().into_bytes()))
}

#[cfg(test)]
mod tests;
