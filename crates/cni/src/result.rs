//! Results: the previous plugin's, handed on.
//!
//! A result in the configuration's version and in normal form is handed on byte for byte. Otherwise it is brought into
//! normal form or converted; keys that are not known here survive both. No result at all gives an empty one.
//!
//! Normal form: no empty `interfaces`, `ips` or `routes`; below 1.0.0 also a `dns` object, and from 0.3.0 on there a
//! `version` in each address.

mod convert;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::version::{Shape, Version};

/// Lists that a result leaves out when they are empty.
const LISTS: [&str; 3] = ["interfaces", "ips", "routes"];

/// A previous result that cannot be handed on.
#[derive(Debug, Error)]
pub enum ResultError {
    /// It is not a JSON object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// A key has the wrong type.
    #[error("`{key}` is not {wanted}")]
    Type {
        /// The key.
        key: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// Its version is not spoken here.
    #[error("its cniVersion `{0}` is not supported")]
    Version(String),
}

/// The result of a plugin that changes nothing, in `version`.
///
/// # Errors
/// See [`ResultError`]. A result without a `cniVersion` is taken for one of `version`.
pub fn unchanged(version: Version, previous: Option<&str>) -> Result<String, ResultError> {
    let Some(text) = previous else {
        let mut empty = Map::new();
        normalise(&mut empty, version)?;
        return Ok(Value::Object(empty).to_string());
    };
    let Ok(Value::Object(mut result)) = serde_json::from_slice(text.as_bytes()) else {
        return Err(ResultError::NotAnObject);
    };
    let from = stated_version(&result)?.unwrap_or(version);
    let before = result.clone();
    if from.shape() != version.shape() {
        result = convert::convert(result, from.shape(), version.shape())?;
    }
    normalise(&mut result, version)?;
    Ok(if result == before { text.to_owned() } else { Value::Object(result).to_string() })
}

/// The version that a result names, in whatever case the key is spelled.
fn stated_version(result: &Map<String, Value>) -> Result<Option<Version>, ResultError> {
    let stated = result.iter().find(|(key, _)| key.eq_ignore_ascii_case("cniVersion")).map(|(_, value)| value);
    match stated {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Version::parse(text).map(Some).ok_or_else(|| ResultError::Version(text.clone())),
        Some(_) => Err(ResultError::Type { key: "cniVersion", wanted: "a string" }),
    }
}

/// Brings a result that has the shape of `version` into normal form.
fn normalise(result: &mut Map<String, Value>, version: Version) -> Result<(), ResultError> {
    let stated = result.get("cniVersion").and_then(Value::as_str);
    if stated != Some(version.as_str()) {
        // Read back, so that the version comes first and in the one spelling that every reader knows.
        result.retain(|key, _| !key.eq_ignore_ascii_case("cniVersion"));
        let rest = std::mem::take(result);
        result.insert("cniVersion".to_owned(), version.as_str().into());
        result.extend(rest);
    }
    for key in LISTS {
        let empty = match result.get(key) {
            None => false,
            Some(Value::Null) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => return Err(ResultError::Type { key, wanted: "a list" }),
        };
        if empty {
            result.shift_remove(key);
        }
    }
    if version.shape() == Shape::List {
        return Ok(());
    }
    if version.shape() == Shape::ListWithVersion {
        for address in convert::objects_mut(result, "ips")? {
            if address.get("version").and_then(Value::as_str).is_none_or(str::is_empty) {
                let family = convert::family(address);
                address.shift_remove("version");
                let rest = std::mem::take(address);
                address.insert("version".to_owned(), family.into());
                address.extend(rest);
            }
        }
    }
    if result.get("dns").is_none_or(Value::is_null) {
        result.insert("dns".to_owned(), Value::Object(Map::new()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed_on(version: Version, text: &str) -> String {
        unchanged(version, Some(text)).unwrap()
    }

    #[test]
    fn a_result_in_the_right_version_keeps_every_byte() {
        let text = "{ \"ips\" : [{\"address\":\"10.0.0.2/24\", \"vendor\": 1.50}],\n \"cniVersion\":\"1.0.0\",\"x\":{}, \"dns\":{} }";
        assert_eq!(handed_on(Version::V1_0_0, text), text);
    }

    #[test]
    fn a_missing_or_oddly_spelled_version_is_put_right() {
        for text in
            [r#"{"ips":[{"address":"10.1.0.5/16"}]}"#, r#"{"cniversion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}"#]
        {
            assert_eq!(handed_on(Version::V1_0_0, text), r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}"#);
        }
    }

    #[test]
    fn no_previous_result_gives_an_empty_one_of_the_version() {
        for (version, text) in [
            (Version::V0_1_0, r#"{"cniVersion":"0.1.0","dns":{}}"#),
            (Version::V0_2_0, r#"{"cniVersion":"0.2.0","dns":{}}"#),
            (Version::V0_4_0, r#"{"cniVersion":"0.4.0","dns":{}}"#),
            (Version::V1_1_0, r#"{"cniVersion":"1.1.0"}"#),
        ] {
            assert_eq!(unchanged(version, None).unwrap(), text);
        }
    }

    #[test]
    fn families_below_1_0_0_are_filled_in() {
        let text = r#"{"cniVersion":"0.3.1","ips":[{"address":"10.1.0.5/16"},{"version":"6","address":"fd00::5/64"}]}"#;
        assert_eq!(
            handed_on(Version::V0_3_1, text),
            concat!(
                r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/16"},"#,
                r#"{"version":"6","address":"fd00::5/64"}],"dns":{}}"#
            )
        );
    }

    #[test]
    fn handing_on_twice_changes_nothing_more() {
        let samples = [
            r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/16","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]}}"#,
            r#"{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"fd00::5/64","interface":0}],"routes":[]}"#,
            r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/16"},{"address":"10.1.0.6/16"}],"routes":[{"dst":"::/0"}],"v":1}"#,
        ];
        for text in samples {
            for version in Version::ALL {
                let once = handed_on(version, text);
                assert_eq!(handed_on(version, &once), once, "{version} {text}");
            }
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in ["[]", "\"x\"", r#"{"cniVersion":"9.0.0"}"#, r#"{"cniVersion":3}"#, r#"{"ips":{}}"#] {
            assert!(unchanged(Version::V1_0_0, Some(text)).is_err(), "{text}");
        }
    }
}
