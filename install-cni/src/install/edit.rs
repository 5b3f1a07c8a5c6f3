//! Changes a CNI list as text: our element goes in or out, and every other byte stays where it is.
//!
//! Other agents compare and checksum these files, and big numbers or the order of keys do not survive a parse and print.
//! So the text is parsed to know what it means and scanned to know where it is, and what comes out is parsed again and
//! must mean what was wanted. No files here. Called by the plan, by the conversion of single networks, and by tests.

pub(crate) mod scan;

use std::ops::Range;

use agent_api::paths::PLUGIN_NAME;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

/// Key of the list of plugins.
const PLUGINS: &str = "plugins";
/// Indentation where the text does not show another.
const INDENT: &str = "  ";

/// Why a text cannot be edited. The text is left as it is.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EditError {
    /// Not JSON, for example half written.
    #[error("it is not complete JSON ({0})")]
    NotJson(String),
    /// JSON, but not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// `plugins` is missing, or something else than a list of objects.
    #[error("its `plugins` is not a list of objects")]
    NoPlugins,
    /// A single network, which has to be converted first.
    #[error("it describes a single network (`type`) and not a list of plugins")]
    SingleNetwork,
    /// Nothing to convert.
    #[error("it has no `type` and so is not a single network")]
    NotANetwork,
    /// The element to insert is not an object.
    #[error("the element to insert is not a JSON object")]
    Element,
    /// What came out does not mean what was wanted; a bug of ours that must not reach a node.
    #[error("the edited text would not mean what it should, so it is not written; please report this file")]
    Meaning,
}

/// `text` with `element` as the last plugin of its list and no other element of ours. A `cniVersion` in `element` is
/// dropped, because the list's own version holds. Returned unchanged when it is right already.
///
/// # Errors
/// See [`EditError`].
pub fn insert(text: &str, element: &Value) -> Result<String, EditError> {
    let element = list_element(element)?;
    let list = List::parse(text)?;
    let last_is_right = list.plugins().last() == Some(&element);
    if last_is_right && list.own().count() == 1 {
        return Ok(text.to_owned());
    }
    let bare = remove(text)?;
    let bare_list = List::parse(&bare)?;
    let edited = bare_list.with_appended(&element).ok_or(EditError::Meaning)?;
    bare_list.check(&edited, bare_list.plugins().iter().chain([&element]))?;
    Ok(edited)
}

/// `text` without any element of ours: what [`insert`] made of a text becomes that text again, byte for byte. Returned
/// unchanged when there is none.
///
/// # Errors
/// See [`EditError`].
pub fn remove(text: &str) -> Result<String, EditError> {
    let original = List::parse(text)?;
    let mut edited = text.to_owned();
    loop {
        let list = List::parse(&edited)?;
        let Some(position) = list.own().next() else { break };
        let range = list.removal(position).ok_or(EditError::Meaning)?;
        edited.replace_range(range, "");
    }
    original.check(&edited, original.plugins().iter().filter(|plugin| !is_ours(plugin)))?;
    Ok(edited)
}

/// How many elements of ours the list `text` has; 0 for anything that is not a list.
pub fn count(text: &str) -> usize {
    List::parse(text).map_or(0, |list| list.own().count())
}

/// The types of the plugins that are not ours, in order, of a list or a single network; `None` when it is neither, or
/// has none.
pub fn kinds(text: &str) -> Option<Vec<String>> {
    let kind = |plugin: &Value| plugin.get("type").and_then(Value::as_str).map(str::to_owned);
    let kinds: Vec<String> = match List::parse(text) {
        Ok(list) => list.plugins().iter().filter(|plugin| !is_ours(plugin)).filter_map(kind).collect(),
        Err(EditError::SingleNetwork) => kind(&Value::Object(object(text).ok()?)).into_iter().collect(),
        Err(_) => return None,
    };
    (!kinds.is_empty()).then_some(kinds)
}

/// Whether an element, or a single network, is ours.
pub fn is_ours(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some(PLUGIN_NAME)
}

/// The object `text` consists of.
///
/// # Errors
/// [`EditError::NotJson`] and [`EditError::NotAnObject`].
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, EditError> {
    match serde_json::from_str(text).map_err(|error| EditError::NotJson(error.to_string()))? {
        Value::Object(object) => Ok(object),
        _ => Err(EditError::NotAnObject),
    }
}

/// `element` as it stands inside a list.
pub(crate) fn list_element(element: &Value) -> Result<Value, EditError> {
    let mut element = element.as_object().ok_or(EditError::Element)?.clone();
    // Keeps the order of the others.
    element.shift_remove("cniVersion");
    Ok(Value::Object(element))
}

/// `value` over several lines: the first one bare, the others indented by `base` plus `unit` per level.
pub(crate) fn pretty(value: &Value, newline: &str, base: &str, unit: &str) -> Option<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(unit.as_bytes()))).ok()?;
    // Line breaks inside strings are escaped, so each one found here is the formatter's.
    Some(String::from_utf8(bytes).ok()?.replace('\n', &format!("{newline}{base}")))
}

/// A list with its meaning and the places of its items.
pub(crate) struct List<'a> {
    text: &'a str,
    object: Map<String, Value>,
    pub(crate) array: scan::Array,
}

impl<'a> List<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, EditError> {
        let object = object(text)?;
        match object.get(PLUGINS) {
            Some(Value::Array(plugins)) if plugins.iter().all(Value::is_object) => {}
            None if object.contains_key("type") => return Err(EditError::SingleNetwork),
            _ => return Err(EditError::NoPlugins),
        }
        let array = scan::array_at(text, PLUGINS).ok_or(EditError::Meaning)?;
        let list = Self { text, object, array };
        if list.array.items.len() == list.plugins().len() { Ok(list) } else { Err(EditError::Meaning) }
    }

    pub(crate) fn plugins(&self) -> &[Value] {
        self.object.get(PLUGINS).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = usize> {
        self.plugins().iter().enumerate().filter(|(_, plugin)| is_ours(plugin)).map(|(position, _)| position)
    }

    /// What has to go so that the item at `position` is gone, with the comma that binds it.
    fn removal(&self, position: usize) -> Option<Range<usize>> {
        let item = self.array.items.get(position)?.clone();
        match position.checked_sub(1).and_then(|before| self.array.items.get(before)) {
            Some(before) => Some(before.end..item.end),
            None => match self.array.items.get(1) {
                Some(after) => Some(item.start..after.start),
                None => Some(item),
            },
        }
    }

    /// The text with `element` behind the last item, spaced and indented as that one.
    fn with_appended(&self, element: &Value) -> Option<String> {
        let items = &self.array.items;
        let Some(last) = items.last() else {
            let mut edited = self.text.to_owned();
            // Directly behind the bracket, so that taking it out gives back the white space as it was.
            edited.insert_str(self.array.open, &serde_json::to_string(element).ok()?);
            return Some(edited);
        };
        let before = items.len().checked_sub(2).and_then(|position| items.get(position));
        let gap = self.text.get(before.map_or(self.array.open, |item| item.end)..last.start)?;
        let gap = gap.rsplit_once(',').map_or(gap, |(_, behind_the_comma)| behind_the_comma);
        let element = match gap.rfind('\n') {
            Some(position) => {
                let base = gap.get(position + 1..)?;
                let newline = if gap.contains("\r\n") { "\r\n" } else { "\n" };
                pretty(element, newline, base, unit_of(base))?
            }
            None => serde_json::to_string(element).ok()?,
        };
        let mut edited = self.text.to_owned();
        edited.insert_str(last.end, &format!(",{gap}{element}"));
        Some(edited)
    }

    /// `edited` must be this object with `plugins` instead of its own.
    fn check<'b>(&self, edited: &str, plugins: impl Iterator<Item = &'b Value>) -> Result<(), EditError> {
        let mut wanted = self.object.clone();
        wanted.insert(PLUGINS.to_owned(), Value::Array(plugins.cloned().collect()));
        if object(edited)? == wanted { Ok(()) } else { Err(EditError::Meaning) }
    }
}

/// Indentation of one level, given that of an item two levels deep.
fn unit_of(base: &str) -> &str {
    match base.split_at_checked(base.len() / 2) {
        Some((half, other)) if half == other && !half.is_empty() => half,
        _ if base.starts_with('\t') => "\t",
        _ => INDENT,
    }
}

#[cfg(test)]
mod tests;
