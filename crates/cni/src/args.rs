//! `CNI_ARGS`: which pod a sandbox belongs to.
//!
//! Runtimes write the pairs in any order and add their own. What has one meaning only is accepted, stray separators
//! included; what could hide the pod's name is an error, since a sandbox without a pod is left alone.

use thiserror::Error;

/// The pod of a sandbox. Fields are empty when the runtime did not give them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodArgs {
    /// `K8S_POD_NAME`
    pub name: String,
    /// `K8S_POD_NAMESPACE`
    pub namespace: String,
    /// `K8S_POD_UID`
    pub uid: String,
    /// `K8S_POD_INFRA_CONTAINER_ID`
    pub infra_container_id: String,
}

/// What makes `CNI_ARGS` unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArgsError {
    /// A key we need, without a value.
    #[error("CNI_ARGS has `{0}` without `=` and a value")]
    NoValue(String),
    /// `IgnoreUnknown` is not a boolean.
    #[error("CNI_ARGS has IgnoreUnknown=`{0}`, which is none of 1, 0, true, false")]
    IgnoreUnknown(String),
    /// A key that is not known, and `IgnoreUnknown` is not set.
    #[error("CNI_ARGS has the unknown key `{0}` and does not set IgnoreUnknown=1")]
    UnknownKey(String),
}

impl PodArgs {
    /// Reads the pairs. Of a repeated key the last one counts; a value may contain `=`.
    ///
    /// # Errors
    /// See [`ArgsError`].
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let mut args = Self::default();
        let mut ignore_unknown = false;
        let mut unknown = None;
        for piece in text.split(';').filter(|piece| !piece.is_empty()) {
            let (key, value) = match piece.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (piece, None),
            };
            let field = match key {
                "K8S_POD_NAME" => &mut args.name,
                "K8S_POD_NAMESPACE" => &mut args.namespace,
                "K8S_POD_UID" => &mut args.uid,
                "K8S_POD_INFRA_CONTAINER_ID" => &mut args.infra_container_id,
                "IgnoreUnknown" => {
                    ignore_unknown = boolean(value.unwrap_or_default())?;
                    continue;
                }
                other => {
                    unknown.get_or_insert(other);
                    continue;
                }
            };
            *field = value.ok_or_else(|| ArgsError::NoValue(key.to_owned()))?.to_owned();
        }
        match unknown {
            Some(key) if !ignore_unknown => Err(ArgsError::UnknownKey(key.to_owned())),
            _ => Ok(args),
        }
    }
}

fn boolean(text: &str) -> Result<bool, ArgsError> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(ArgsError::IgnoreUnknown(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<String, ArgsError> {
        PodArgs::parse(text).map(|args| args.name)
    }

    #[test]
    fn a_stray_separator_does_not_stop_a_pod() {
        for text in ["IgnoreUnknown=1;K8S_POD_NAME=p;", ";K8S_POD_NAME=p", "IgnoreUnknown=1;;K8S_POD_NAME=p;flag"] {
            assert_eq!(name(text), Ok("p".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_value_may_contain_an_equals_sign() {
        let args = PodArgs::parse("TOKEN=a=b;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;IgnoreUnknown=TRUE").unwrap();
        assert_eq!((args.namespace.as_str(), args.name.as_str()), ("n", "p"));
    }

    #[test]
    fn a_pod_name_that_cannot_be_read_is_not_taken_for_no_pod() {
        assert_eq!(name("IgnoreUnknown=1;K8S_POD_NAME"), Err(ArgsError::NoValue("K8S_POD_NAME".to_owned())));
    }

    #[test]
    fn unknown_keys_need_permission_which_may_come_last() {
        assert_eq!(name("FOO=1;K8S_POD_NAME=p;IgnoreUnknown=1"), Ok("p".to_owned()));
        assert_eq!(name("FOO=1;K8S_POD_NAME=p"), Err(ArgsError::UnknownKey("FOO".to_owned())));
        assert_eq!(name("IgnoreUnknown=yes"), Err(ArgsError::IgnoreUnknown("yes".to_owned())));
        assert_eq!(name(""), Ok(String::new()));
    }
}
