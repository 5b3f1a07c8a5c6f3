//! The error object that a failing plugin prints on stdout.

use std::fmt;

use serde_json::{Map, Value};

use crate::version::Version;

/// Codes of the specification, and the first one that plugins may give their own meaning.
pub mod code {
    /// The configuration's version is not spoken, or is too old for the verb.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field of the configuration is not supported.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is not known.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A variable of the environment is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// A file cannot be read or written.
    pub const IO: u32 = 5;
    /// Content cannot be decoded.
    pub const DECODE: u32 = 6;
    /// The configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace is not one to work in. Not in the specification, but in its Go library.
    pub const INVALID_NETNS: u32 = 8;
    /// A passing failure: the runtime should try again later.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: ADD cannot be served.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: ADD cannot be served, and existing sandboxes may be impaired.
    pub const IMPAIRED: u32 = 51;
    /// Plugins' own codes start here.
    pub const FIRST_OWN: u32 = 100;
}

/// A failure, as the runtime gets to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// One of [`code`], or the plugin's own from [`code::FIRST_OWN`].
    pub code: u32,
    /// What failed and what to do, for people.
    pub message: String,
    /// More of it, may be empty.
    pub details: String,
}

impl Error {
    /// A failure without details.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    /// The same failure with details.
    #[must_use]
    pub fn with_details(self, details: impl Into<String>) -> Self {
        Self { details: details.into(), ..self }
    }

    /// The error object, in one line. `version` is the configuration's, or the newest when that is not known.
    pub fn to_json(&self, version: Version) -> String {
        let mut object = Map::new();
        object.insert("cniVersion".to_owned(), version.as_str().into());
        object.insert("code".to_owned(), self.code.into());
        object.insert("msg".to_owned(), self.message.as_str().into());
        if !self.details.is_empty() {
            object.insert("details".to_owned(), self.details.as_str().into());
        }
        Value::Object(object).to_string()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.details.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}; {}", self.message, self.details)
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_object_is_what_runtimes_parse() {
        let error = Error::new(code::IO, "no \"kubeconfig\"\nhere");
        assert_eq!(
            error.to_json(Version::V1_0_0),
            r#"{"cniVersion":"1.0.0","code":5,"msg":"no \"kubeconfig\"\nhere"}"#
        );
        let error = error.with_details("x");
        assert_eq!(serde_json::from_str::<Value>(&error.to_json(Version::LATEST)).unwrap()["details"], "x");
    }
}
