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
use super::directory::{Directory, Text, ending, has_known_ending};
use super::edit::{self, EditError};
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
    /// Stand-alone mode was told to use a file of someone else.
    #[error("{name} exists and is not ours, so it is not overwritten; give another name with CNI_CONF_NAME")]
    Foreign {
        /// Name of the file.
        name: String,
    },
}

/// Steps that put `element` into the file `chosen` as the last plugin and take it out of all others.
///
/// # Errors
/// [`PlanError`] when the chosen file does not allow it.
pub fn chained(directory: &Directory, chosen: &str, element: &Value) -> Result<Vec<Step>, PlanError> {
    let text = match directory.files.get(chosen) {
        Some(Ok(text)) => text,
        Some(Err(reason)) => return Err(PlanError::Unusable { name: chosen.to_owned(), reason: reason.clone() }),
        None => {
            return Err(PlanError::Unusable { name: chosen.to_owned(), reason: "it has gone".to_owned() });
        }
    };
    let edit_error = |source| PlanError::Edit { name: chosen.to_owned(), source };
    let wanted = with_element(&text.text, element, ending(chosen)).map_err(edit_error)?;
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
        steps.push(write(directory, &target, wanted, text.access, cause));
    }
    if target != chosen {
        steps.push(remove(directory, chosen, text, "its list has taken its place"));
    }
    for name in directory.files.keys().filter(|name| **name != chosen && **name != target && has_known_ending(name)) {
        // A file that cannot be edited cannot run our plugin twice either.
        steps.extend(leave(directory, name, "another file is in use now").unwrap_or_default());
    }
    Ok(steps)
}

/// Steps that make `text` the whole content of the file `name`, and take our element out of all lists.
///
/// # Errors
/// [`PlanError`] when the name belongs to someone else's file.
pub fn standalone(directory: &Directory, name: &str, text: &str, mode: u32) -> Result<Vec<Step>, PlanError> {
    let mut steps = Vec::new();
    match directory.files.get(name) {
        None => steps.push(write(directory, name, text.to_owned(), Access::new(mode), "our stand-alone configuration")),
        Some(Err(reason)) => return Err(PlanError::Unusable { name: name.to_owned(), reason: reason.clone() }),
        Some(Ok(there)) => {
            let have = edit::object(&there.text).map(Value::Object).ok().filter(edit::is_ours);
            let Some(have) = have else { return Err(PlanError::Foreign { name: name.to_owned() }) };
            if serde_json::from_str::<Value>(text).ok().as_ref() != Some(&have) {
                steps.push(write(directory, name, text.to_owned(), there.access, "our settings have changed"));
            }
        }
    }
    for other in directory.files.keys().filter(|other| *other != name && has_known_ending(other)) {
        steps.extend(leave(directory, other, "our plugin has a file of its own now").unwrap_or_default());
    }
    Ok(steps)
}

/// Steps that take everything of ours out of the directory, in groups: a step must not be done when one before it in its
/// group failed. `own_file` is the file of stand-alone mode, if it is on. Files that do not allow it are told beside
/// the steps for the others.
pub fn uninstall(directory: &Directory, own_file: Option<&str>) -> (Vec<Vec<Step>>, Vec<PlanError>) {
    let cause = "uninstall";
    let mut steps = Vec::new();
    let mut errors = Vec::new();
    for (name, file) in &directory.files {
        match leave(directory, name, cause) {
            Ok(group) if group.is_empty() => {}
            Ok(group) => steps.push(group),
            Err(source) => errors.push(PlanError::Edit { name: name.clone(), source }),
        }
        if let (true, Ok(text)) = (own_file == Some(name), file) {
            let ours = edit::object(&text.text).map(Value::Object).is_ok_and(|value| edit::is_ours(&value));
            if ours {
                steps.push(vec![remove(directory, name, text, cause)]);
            }
        }
    }
    (steps, errors)
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

/// Steps that take our element out of the file `name`; none if it has none.
fn leave(directory: &Directory, name: &str, cause: &str) -> Result<Vec<Step>, EditError> {
    let Some(text) = directory.text(name).filter(|text| edit::count(&text.text) > 0) else { return Ok(Vec::new()) };
    let Some(origin) = convert::origin(&text.text) else {
        let bare = edit::remove(&text.text)?;
        return Ok(vec![write(directory, name, bare, text.access, cause)]);
    };
    let Origin::Text(original) = &origin else { return Ok(vec![remove(directory, name, text, cause)]) };
    match network_name(name, &origin) {
        Some(network) if network == name => Ok(vec![write(directory, name, original.clone(), text.access, cause)]),
        // First the network, then away with the list: at every moment there is a configuration for the pods.
        Some(network) if !directory.files.contains_key(&network) => Ok(vec![
            write(directory, &network, original.clone(), text.access, cause),
            remove(directory, name, text, cause),
        ]),
        // Its owner has written the network anew; that one is right.
        _ => Ok(vec![remove(directory, name, text, cause)]),
    }
}

fn write(directory: &Directory, name: &str, text: String, access: Access, cause: &str) -> Step {
    let guard = match directory.text(name) {
        Some(there) => Guard::Bytes(there.text.clone().into_bytes()),
        None => Guard::Absent,
    };
    Step::Write { path: directory.path.join(name), bytes: text.into_bytes(), access, guard, cause: cause.to_owned() }
}

fn remove(directory: &Directory, name: &str, text: &Text, cause: &str) -> Step {
    let guard = Guard::Bytes(text.text.clone().into_bytes());
    Step::Remove { path: directory.path.join(name), guard, cause: cause.to_owned() }
}

#[cfg(test)]
mod tests;
