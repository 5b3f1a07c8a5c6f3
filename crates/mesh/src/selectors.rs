//! Kubernetes label selectors, as far as the choice of ambient pods needs them.
//!
//! An entry selects a pod when its `podSelector` matches the pod's labels and its `namespaceSelector` those of the pod's
//! namespace; a list selects what one of its entries selects. A selector that is absent or empty matches everything, an
//! empty list nothing. Compiled once, before anything is asked of the API server; what Kubernetes would refuse is refused
//! here.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

/// Labels of a pod or a namespace.
pub type Labels = BTreeMap<String, String>;

/// Longest name in a key, and longest value, in bytes.
const MAX_NAME: usize = 63;
/// Longest prefix of a key, in bytes.
const MAX_PREFIX: usize = 253;

/// An entry that Kubernetes would not take either.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("entry {entry} of the ambient selectors is invalid: {part}: {reason}")]
pub struct InvalidSelector {
    /// Which entry, counted from 1.
    pub entry: usize,
    /// `podSelector` or `namespaceSelector`, or `entry` where it is about the whole of it.
    pub part: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// A list of entries, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selectors {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    pod: Vec<Requirement>,
    namespace: Vec<Requirement>,
}

/// What one label must be. All requirements of a selector must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selectors {
    /// Reads the entries, each `{podSelector, namespaceSelector}`. Unknown keys are ignored, as Istio does.
    ///
    /// # Errors
    /// The first entry that is invalid.
    pub fn compile(entries: &[Value]) -> Result<Self, InvalidSelector> {
        let entry = |(index, value): (usize, &Value)| {
            let invalid = |part, reason| InvalidSelector { entry: index + 1, part, reason };
            let entry = object(value).map_err(|reason| invalid("entry", reason))?;
            let part = |part| selector(entry.get(part)).map_err(|reason| invalid(part, reason));
            Ok(Entry { pod: part("podSelector")?, namespace: part("namespaceSelector")? })
        };
        Ok(Self { entries: entries.iter().enumerate().map(entry).collect::<Result<_, _>>()? })
    }

    /// Whether a pod with these labels, in a namespace with these, is selected.
    pub fn select(&self, pod: &Labels, namespace: &Labels) -> bool {
        let all = |requirements: &[Requirement], labels| requirements.iter().all(|it| it.holds(labels));
        self.entries.iter().any(|entry| all(&entry.pod, pod) && all(&entry.namespace, namespace))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// Reads one selector.
fn selector(value: Option<&Value>) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    let Some(value) = present(value) else { return Ok(requirements) };
    let selector = object(value)?;
    if let Some(labels) = present(selector.get("matchLabels")) {
        for (key, value) in object(labels)? {
            requirements.push(requirement(key, Operator::In, vec![text(Some(value))?])?);
        }
    }
    for expression in list(selector.get("matchExpressions"))? {
        let expression = object(expression)?;
        let operator = operator(&text(expression.get("operator"))?)?;
        let values = list(expression.get("values"))?.iter().map(|value| text(Some(value)));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        requirements.push(requirement(&text(expression.get("key"))?, operator, values)?);
    }
    Ok(requirements)
}

fn requirement(key: &str, operator: Operator, values: Vec<String>) -> Result<Requirement, String> {
    let takes_values = matches!(operator, Operator::In | Operator::NotIn);
    if !is_key(key) {
        return Err(format!("`{key}` is not the key of a label"));
    }
    if takes_values && values.is_empty() {
        return Err(format!("In and NotIn need at least one value, and `{key}` has none"));
    }
    if !takes_values && !values.is_empty() {
        return Err(format!("Exists and DoesNotExist take no values, and `{key}` has some"));
    }
    match values.iter().find(|value| !value.is_empty() && !is_name(value)) {
        Some(value) => Err(format!("`{value}` is not the value of a label")),
        None => Ok(Requirement { key: key.to_owned(), operator, values }),
    }
}

fn operator(word: &str) -> Result<Operator, String> {
    Ok(match word {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return Err(format!("operator `{word}` is none of In, NotIn, Exists and DoesNotExist")),
    })
}

/// A name, or a domain, a slash and a name.
fn is_key(key: &str) -> bool {
    let Some((domain, name)) = key.split_once('/') else { return is_name(key) };
    let is_label = |label: &str| is_name(label) && !label.contains(|c: char| c == '_' || c.is_ascii_uppercase());
    is_name(name) && domain.len() <= MAX_PREFIX && domain.split('.').all(is_label)
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= MAX_NAME
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// `null` is as good as absent.
fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("`{value}` is not an object"))
}

fn list(value: Option<&Value>) -> Result<&[Value], String> {
    match present(value) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(format!("`{other}` is not a list")),
    }
}

fn text(value: Option<&Value>) -> Result<String, String> {
    match present(value) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{other}` is not a text")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn selects(pod_selector: &Value, pod: &[(&str, &str)]) -> bool {
        let selectors = Selectors::compile(&[json!({"podSelector": pod_selector})]).unwrap();
        selectors.select(&labels(pod), &Labels::new())
    }

    fn error(entry: Value) -> String {
        Selectors::compile(&[json!({}), entry]).unwrap_err().to_string()
    }

    #[test]
    fn every_operator_looks_at_presence_and_value() {
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        for (operator, values, absent, equal, other) in [
            ("In", json!(["1", "2"]), false, true, false),
            ("NotIn", json!(["1", "2"]), true, false, true),
            ("Exists", json!(null), false, true, true),
            ("DoesNotExist", json!([]), true, false, false),
        ] {
            let selector = expression(operator, values);
            assert_eq!(selects(&selector, &[("b", "1")]), absent, "{operator}");
            assert_eq!(selects(&selector, &[("a", "1")]), equal, "{operator}");
            assert_eq!(selects(&selector, &[("a", "3")]), other, "{operator}");
        }
    }

    #[test]
    fn labels_and_expressions_of_a_selector_must_all_hold() {
        let selector = json!({"matchLabels": {"a": "1", "b": ""},
            "matchExpressions": [{"key": "c", "operator": "Exists"}]});
        assert!(selects(&selector, &[("a", "1"), ("b", ""), ("c", "x")]));
        assert!(!selects(&selector, &[("a", "1"), ("b", "")]));
        assert!(!selects(&selector, &[("a", "1"), ("c", "x")]));
        assert!(!selects(&selector, &[("a", "1"), ("b", "2"), ("c", "x")]));
    }

    #[test]
    fn both_selectors_of_one_entry_must_match() {
        let entry =
            json!({"podSelector": {"matchLabels": {"a": "1"}}, "namespaceSelector": {"matchLabels": {"n": "1"}}});
        let selectors = Selectors::compile(&[entry, json!({"podSelector": {"matchLabels": {"z": "1"}}})]).unwrap();
        let (pod, namespace) = (labels(&[("a", "1")]), labels(&[("n", "1")]));
        assert!(selectors.select(&pod, &namespace));
        assert!(!selectors.select(&pod, &Labels::new()));
        assert!(!selectors.select(&Labels::new(), &namespace));
        assert!(selectors.select(&labels(&[("z", "1")]), &Labels::new()));
    }

    #[test]
    fn an_empty_selector_matches_everything_and_an_empty_list_nothing() {
        for entry in [
            json!({}),
            json!({"podSelector": null, "namespaceSelector": {}}),
            json!({"podSelector": {
            "matchLabels": null, "matchExpressions": null}}),
        ] {
            assert!(Selectors::compile(&[entry]).unwrap().select(&Labels::new(), &Labels::new()));
        }
        assert!(!Selectors::compile(&[]).unwrap().select(&Labels::new(), &Labels::new()));
    }

    #[test]
    fn what_kubernetes_refuses_is_refused_and_the_entry_is_named() {
        let expression = |part: &str, expression: Value| json!({ part: {"matchExpressions": [expression]} });
        for (entry, words) in [
            (json!("x"), "entry 2 of the ambient selectors is invalid: entry: `\"x\"` is not an object"),
            (json!({"podSelector": []}), "podSelector: `[]` is not an object"),
            (json!({"podSelector": {"matchLabels": {"a": 1}}}), "`1` is not a text"),
            (json!({"podSelector": {"matchLabels": {"a": "b c"}}}), "`b c` is not the value of a label"),
            (json!({"podSelector": {"matchExpressions": {}}}), "`{}` is not a list"),
            (expression("podSelector", json!({"key": "a", "operator": "Near"})), "operator `Near` is none of In"),
            (expression("podSelector", json!({"key": "a"})), "operator `` is none of In"),
            (expression("namespaceSelector", json!({"key": "a", "operator": "In"})), "namespaceSelector: "),
            (expression("podSelector", json!({"key": "a", "operator": "NotIn", "values": []})), "at least one value"),
            (expression("podSelector", json!({"key": "a", "operator": "Exists", "values": ["x"]})), "take no values"),
            (expression("podSelector", json!({"operator": "Exists"})), "`` is not the key of a label"),
        ] {
            let message = error(entry.clone());
            assert!(message.contains("entry 2") && message.contains(words), "{entry}: {message}");
        }
    }

    #[test]
    fn keys_are_names_with_or_without_a_domain() {
        let long = "x".repeat(63);
        for key in ["a", "istio.io/dataplane-mode", "A_b.c-9", &long, &format!("a.b-c.d/{long}")] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "-a", "a-", "a b", "/a", "a/", "a/b/c", "A.io/b", "a..b/c", "ä", &format!("{long}x")] {
            assert!(!is_key(key), "{key}");
        }
    }
}
