//! The plugin's own configuration object, as it comes on stdin.
//!
//! Checked here is what the specification says about every configuration: that it is one JSON object with a valid name
//! and a version we speak. The plugin's own keys stay JSON until the plugin decodes them, so that a DEL cannot fail
//! over them; `prevResult` stays text, so that it can be handed on untouched.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{Error, code};
use crate::result;
use crate::verb::is_identifier;
use crate::version::Version;

/// A configuration object whose name and version are known to be good.
#[derive(Debug, Clone)]
pub struct NetConf {
    version: Version,
    name: String,
    keys: Map<String, Value>,
    prev_result: Option<Box<RawValue>>,
}

impl NetConf {
    /// Reads the object. Of a repeated key the last one counts.
    ///
    /// # Errors
    /// [`code::DECODE`] when it is not one JSON object or a key has the wrong type, [`code::INVALID_CONFIG`] when the
    /// name is missing or invalid, [`code::INCOMPATIBLE_VERSION`] when the version is not spoken here.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let broken = |error: serde_json::Error| {
            Error::new(code::DECODE, format!("the network configuration on stdin is not a JSON object: {error}"))
        };
        // `null` is valid JSON for "nothing", which then lacks a name.
        let raw: Option<std::collections::BTreeMap<String, Box<RawValue>>> =
            serde_json::from_slice(bytes).map_err(broken)?;
        let mut raw = raw.unwrap_or_default();
        let prev_result = raw.remove("prevResult").filter(|text| text.get() != "null");
        let keys = raw
            .iter()
            .map(|(key, text)| Ok((key.clone(), serde_json::from_slice(text.get().as_bytes()).map_err(broken)?)))
            .collect::<Result<Map<_, _>, Error>>()?;

        let name = string(&keys, "name")?;
        if name.is_empty() {
            return Err(Error::new(code::INVALID_CONFIG, "the network configuration has no `name`"));
        }
        if !is_identifier(&name) {
            let message = format!("the network configuration has the invalid name `{name}`");
            return Err(Error::new(code::INVALID_CONFIG, message)
                .with_details("it must start with a letter or digit, then letters, digits, `_`, `.` and `-`"));
        }
        let wanted = string(&keys, "cniVersion")?;
        let version = Version::parse(&wanted).ok_or_else(|| {
            Error::new(
                code::INCOMPATIBLE_VERSION,
                format!("CNI version `{wanted}` of network `{name}` is not supported"),
            )
            .with_details(format!("supported versions are {}", Version::listed()))
        })?;
        Ok(Self { version, name, keys, prev_result })
    }

    /// The version to speak.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All keys but `prevResult`.
    pub fn keys(&self) -> &Map<String, Value> {
        &self.keys
    }

    /// Text of the previous plugin's result, if there is one.
    pub fn prev_result(&self) -> Option<&str> {
        self.prev_result.as_deref().map(RawValue::get)
    }

    /// The plugin's own keys as its own type.
    ///
    /// # Errors
    /// [`code::INVALID_CONFIG`] when a key has the wrong type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let text = Value::Object(self.keys.clone()).to_string();
        serde_json::from_slice(text.as_bytes()).map_err(|error| {
            Error::new(
                code::INVALID_CONFIG,
                format!("the configuration of network `{}` is invalid: {error}", self.name),
            )
        })
    }

    /// What a plugin prints that changed nothing: the previous result in this configuration's version, or an empty one.
    ///
    /// # Errors
    /// [`code::INVALID_CONFIG`] when `prevResult` cannot be understood.
    pub fn unchanged_result(&self) -> Result<String, Error> {
        result::unchanged(self.version, self.prev_result()).map_err(|error| {
            Error::new(code::INVALID_CONFIG, format!("prevResult of network `{}` is invalid: {error}", self.name))
        })
    }
}

fn string(keys: &Map<String, Value>, key: &str) -> Result<String, Error> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => {
            Err(Error::new(code::DECODE, format!("`{key}` in the network configuration on stdin is not a string")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> u32 {
        NetConf::parse(text.as_bytes()).unwrap_err().code
    }

    #[test]
    fn what_is_not_one_object_cannot_be_decoded() {
        for text in
            ["", "nope", "[]", "\"a\"", r#"{"cniVersion":"1.0.0","name":"n"} x"#, r#"{"cniVersion":1,"name":"n"}"#]
        {
            assert_eq!(code_of(text), code::DECODE, "{text}");
        }
    }

    #[test]
    fn a_configuration_has_a_name_of_plain_characters() {
        for text in ["null", "{}", r#"{"name":""}"#, r#"{"name":"a b"}"#, r#"{"name":"-a"}"#] {
            assert_eq!(code_of(text), code::INVALID_CONFIG, "{text}");
        }
    }

    #[test]
    fn versions_we_do_not_speak_are_refused_with_the_list_of_those_we_do() {
        let error = NetConf::parse(br#"{"name":"n","cniVersion":"2.0.0"}"#).unwrap_err();
        assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
        assert!(error.message.contains("2.0.0") && error.details.contains("1.1.0"), "{error:?}");
    }

    #[test]
    fn of_a_repeated_key_the_last_one_counts() {
        let conf = NetConf::parse(br#"{"name":"a","name":"b","x":1,"x":2}"#).unwrap();
        assert_eq!((conf.name(), conf.keys().get("x")), ("b", Some(&Value::from(2))));
        assert_eq!(conf.version(), Version::V0_1_0);
    }
}
