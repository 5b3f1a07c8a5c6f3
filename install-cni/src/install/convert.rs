//! A configuration of a single network becomes a list with our element, and later the very same file again.
//!
//! The list keeps the network's name and version, since address management keeps its leases by name. The old text stands in
//! it word for word as the first plugin (a runtime overrides name and version inside an element, so they do no harm).
//! Whether a list is a conversion of ours is found by doing it again: no backup file is needed, and a list that
//! somebody changed since is not mistaken for one. No files here; the plan calls it.

use serde_json::Value;

use super::edit::{EditError, List, is_ours, list_element, object, pretty, scan};

/// Name of a list whose network had none.
const DEFAULT_NAME: &str = "k8s-pod-network";
/// Oldest version of a list we write; older ones have no lists.
const OLDEST: (u64, u64, u64) = (0, 3, 1);
/// Newest version of a list we write.
const NEWEST: (u64, u64, u64) = (1, 1, 0);

/// What a conversion was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This text, byte for byte.
    Text(String),
    /// A file that named only our plugin, so that nothing of it should stay.
    OursAlone,
}

/// The list made of the single network `text` and `element`.
///
/// # Errors
/// See [`EditError`]; [`EditError::NotANetwork`] when `text` has no `type`.
pub fn convert(text: &str, element: &Value) -> Result<String, EditError> {
    let network = object(text)?;
    let element = list_element(element)?;
    if !network.contains_key("type") {
        return Err(EditError::NotANetwork);
    }
    let name = network.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME);
    let version = list_version(network.get("cniVersion").and_then(Value::as_str));
    let first = (!is_ours(&Value::Object(network.clone()))).then_some(text);
    let list = render(name, &version, first, &element).ok_or(EditError::Meaning)?;
    // One look at the result by the reader everybody else uses.
    let wanted = usize::from(first.is_some()) + 1;
    if List::parse(&list)?.plugins().len() == wanted { Ok(list) } else { Err(EditError::Meaning) }
}

/// What the list `text` was converted from; `None` when it is no conversion of ours, or was changed since.
pub fn origin(text: &str) -> Option<Origin> {
    let list = List::parse(text).ok()?;
    let element = list.plugins().last().filter(|plugin| is_ours(plugin))?;
    let origin = match list.array.items.as_slice() {
        [first, _] => {
            let comma = scan::after_space(text, first.end);
            Origin::Text(text.get(list.array.open..comma)?.strip_prefix('\n')?.to_owned())
        }
        [_] => Origin::OursAlone,
        _ => return None,
    };
    let again = match &origin {
        Origin::Text(original) => convert(original, element).ok()?,
        Origin::OursAlone => {
            let list = object(text).ok()?;
            render(list.get("name")?.as_str()?, list.get("cniVersion")?.as_str()?, None, element)?
        }
    };
    (again == text).then_some(origin)
}

/// The list `text`, an older conversion of ours, made anew with `element`; `None` when it is not one.
pub fn renew(text: &str, element: &Value) -> Option<Result<String, EditError>> {
    match origin(text)? {
        Origin::Text(original) => Some(convert(&original, element)),
        Origin::OursAlone => {
            let list = object(text).ok()?;
            let (name, version) = (list.get("name")?.as_str()?, list.get("cniVersion")?.as_str()?);
            Some(
                list_element(element)
                    .and_then(|element| render(name, version, None, &element).ok_or(EditError::Meaning)),
            )
        }
    }
}

fn render(name: &str, version: &str, first: Option<&str>, element: &Value) -> Option<String> {
    let first = first.map(|text| format!("{text},\n")).unwrap_or_default();
    Some(format!(
        "{{\n  \"name\": {name},\n  \"cniVersion\": {version},\n  \"plugins\": [\n{first}    {element}\n  ]\n}}\n",
        name = serde_json::to_string(name).ok()?,
        version = serde_json::to_string(version).ok()?,
        element = pretty(element, "\n", "    ", "  ")?,
    ))
}

/// The network's version, moved into the range in which lists exist and we know what they mean.
fn list_version(version: Option<&str>) -> String {
    let number = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
    let parsed = version.and_then(|version| {
        let mut parts = version.splitn(3, '.').map(|part| part.parse::<u64>().ok());
        Some((parts.next()??, parts.next()??, parts.next()??))
    });
    number(parsed.unwrap_or(OLDEST).clamp(OLDEST, NEWEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ours() -> Value {
        json!({"cniVersion": "0.3.1", "name": "istio-cni", "type": "istio-cni", "exclude_namespaces": null})
    }

    fn meaning(text: &str) -> Value {
        serde_json::from_str(&convert(text, &ours()).unwrap()).unwrap()
    }

    #[test]
    fn the_list_keeps_the_name_so_that_leases_are_not_forgotten() {
        let list = meaning("{\"type\": \"bridge\", \"name\": \"my\\\"net\", \"cniVersion\": \"1.0.0\"}");
        assert_eq!(list["name"], "my\"net");
        assert_eq!(list["cniVersion"], "1.0.0");
        assert_eq!(list["plugins"][0]["type"], "bridge");
        assert_eq!(list["plugins"][1], json!({"name": "istio-cni", "type": "istio-cni", "exclude_namespaces": null}));
    }

    #[test]
    fn versions_without_lists_are_raised_and_unknown_ones_lowered() {
        for (have, want) in [
            (None, "0.3.1"),
            (Some(""), "0.3.1"),
            (Some("0.2.0"), "0.3.1"),
            (Some("0.4.0"), "0.4.0"),
            (Some("1.1.0"), "1.1.0"),
            (Some("2.0.0"), "1.1.0"),
            (Some("x"), "0.3.1"),
        ] {
            assert_eq!(list_version(have), want);
        }
        assert_eq!(meaning(r#"{"type":"bridge"}"#)["name"], "k8s-pod-network");
    }

    #[test]
    fn the_original_comes_back_byte_for_byte() {
        for text in
            ["{\"type\":\"bridge\"}", "\n{\n\t\"type\": \"bridge\"\n}\n\n", " {\"type\":\"b\",\"name\":\"\"}\r\n"]
        {
            let list = convert(text, &ours()).unwrap();
            assert_eq!(origin(&list), Some(Origin::Text(text.to_owned())));
            let newer = json!({"type": "istio-cni", "plugin_log_level": "debug"});
            let renewed = renew(&list, &newer).unwrap().unwrap();
            assert_ne!(renewed, list);
            assert_eq!(origin(&renewed), Some(Origin::Text(text.to_owned())));
        }
    }

    #[test]
    fn a_conversion_that_somebody_changed_is_theirs_now() {
        let list = convert("{\"type\":\"bridge\"}", &ours()).unwrap();
        assert_eq!(origin(&list.replace("k8s-pod-network", "other")), None);
        assert_eq!(origin(&list.replace("\n  ]", "\n  ] ")), None);
        assert_eq!(origin(&list.replace("    {", "    {\"type\":\"portmap\"},\n    {")), None);
        assert_eq!(origin("{\"plugins\":[{\"type\":\"bridge\"}]}"), None);
    }

    #[test]
    fn a_file_with_only_our_plugin_leaves_nothing_behind() {
        let list =
            convert("{\"type\":\"istio-cni\",\"name\":\"istio-cni\",\"cniVersion\":\"0.3.1\"}", &ours()).unwrap();
        assert_eq!(List::parse(&list).unwrap().plugins().len(), 1);
        assert_eq!(origin(&list), Some(Origin::OursAlone));
        let renewed = renew(&list, &json!({"type": "istio-cni"})).unwrap().unwrap();
        assert_eq!(origin(&renewed), Some(Origin::OursAlone));
    }
}
