//! `AMBIENT_ENABLEMENT_SELECTOR`: a YAML list of Kubernetes label selectors, for the plugin's configuration.
//!
//! Unknown keys are dropped, as Istio does; everything else must have the right shape. Whether Kubernetes would take
//! the selectors is a question of ambient mode.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    pod_selector: Selector,
    #[serde(default)]
    namespace_selector: Selector,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Expression {
    key: String,
    operator: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

/// The entries as they stand in the plugin's configuration; none for an empty text.
///
/// # Errors
/// What is wrong and in which line.
pub fn parse(yaml: &str) -> Result<Vec<Value>, String> {
    if yaml.trim().is_empty() {
        return Ok(Vec::new());
    }
    let entries: Option<Vec<Entry>> = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    let values = entries.unwrap_or_default().into_iter().map(serde_json::to_value);
    values.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_charts_default_becomes_two_entries() {
        let yaml = "- podSelector:\n    matchLabels:\n      istio.io/dataplane-mode: ambient\n- podSelector:\n    matchExpressions:\n    - { key: istio.io/dataplane-mode, operator: NotIn, values: [none] }\n  namespaceSelector:\n    matchLabels: {istio.io/dataplane-mode: ambient}\n";
        let mode = json!({"matchLabels": {"istio.io/dataplane-mode": "ambient"}});
        let not_none = json!({"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]});
        assert_eq!(
            parse(yaml).unwrap(),
            [
                json!({"podSelector": mode, "namespaceSelector": {}}),
                json!({"podSelector": {"matchExpressions": [not_none]}, "namespaceSelector": mode}),
            ]
        );
    }

    #[test]
    fn nothing_is_an_empty_list_and_json_is_yaml() {
        for yaml in ["", " \n", "[]", "# only a comment\n", "null"] {
            assert_eq!(parse(yaml), Ok(vec![]), "{yaml:?}");
        }
        assert_eq!(parse("[{\"surplus\": 1}]").unwrap(), [json!({"podSelector": {}, "namespaceSelector": {}})]);
    }

    #[test]
    fn what_is_no_list_of_selectors_is_refused_with_a_place() {
        for yaml in [
            "podSelector: {}",
            "- podSelector: [a]",
            "- podSelector: {matchLabels: x}",
            "- [",
            "x",
            "- {podSelector: {matchExpressions: [{key: a}]}}",
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains("line"), "{yaml}: {error}");
        }
    }
}
