//! The verbs of `CNI_COMMAND`: since which version each exists and which variables it cannot do without.

use std::fmt;

use crate::version::Version;

/// Environment variable with the verb.
pub const COMMAND: &str = "CNI_COMMAND";
/// Environment variable with the sandbox's id.
pub const CONTAINERID: &str = "CNI_CONTAINERID";
/// Environment variable with the path of the network namespace.
pub const NETNS: &str = "CNI_NETNS";
/// Environment variable with the name of the interface in the sandbox.
pub const IFNAME: &str = "CNI_IFNAME";
/// Environment variable with `K=V;K=V` pairs.
pub const ARGS: &str = "CNI_ARGS";

/// What the runtime wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A sandbox was made.
    Add,
    /// A sandbox goes.
    Del,
    /// Is what ADD made still there?
    Check,
    /// Drop what belongs to no sandbox.
    Gc,
    /// Could ADD be served?
    Status,
    /// Which versions are spoken?
    Version,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    /// Reads the value of `CNI_COMMAND`, which is upper case only.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == text)
    }

    /// The value of `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// The oldest version of a configuration that may use the verb.
    pub fn since(self) -> Version {
        match self {
            Self::Add | Self::Del | Self::Version => Version::V0_1_0,
            Self::Check => Version::V0_4_0,
            Self::Gc | Self::Status => Version::V1_1_0,
        }
    }

    /// Variables that must be there and not empty. `CNI_PATH` is not among them: nothing here starts other plugins.
    pub fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &[CONTAINERID, NETNS, IFNAME],
            Self::Del => &[CONTAINERID, IFNAME],
            Self::Gc | Self::Status | Self::Version => &[],
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether `id` may be a container id or a network name: an alphanumeric character, then more of them, `_`, `.`, `-`.
pub fn is_identifier(id: &str) -> bool {
    let mut bytes = id.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// Why `name` cannot be an interface, or `None` when it can.
pub fn interface_fault(name: &str) -> Option<&'static str> {
    if name.len() > 15 {
        Some("it is longer than 15 bytes")
    } else if name == "." || name == ".." {
        Some("it is a directory reference")
    } else if name.chars().any(|c| c == '/' || c == ':' || c.is_whitespace()) {
        Some("it contains `/`, `:` or white space")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_with_a_letter_or_digit() {
        for good in ["c1", "testContainerID", "0a_b.c-d"] {
            assert!(is_identifier(good), "{good}");
        }
        for bad in ["", "-x", "_a", ".a", "a/b", "a b", "ä"] {
            assert!(!is_identifier(bad), "{bad}");
        }
    }

    #[test]
    fn interface_names_fit_the_kernel() {
        assert_eq!(interface_fault("abcdefghijklmno"), None);
        for bad in ["abcdefghijklmnop", ".", "..", "a/b", "a:b", "a b", "a\tb"] {
            assert!(interface_fault(bad).is_some(), "{bad}");
        }
    }
}
