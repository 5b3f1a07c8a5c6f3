//! Versions of the CNI specification, and the shape of the results that each of them uses.

use std::fmt;

/// A version of the specification that this crate speaks. Ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0, also meant by a configuration without a version.
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0
    V0_4_0,
    /// 1.0.0
    V1_0_0,
    /// 1.1.0
    V1_1_0,
}

/// Versions whose results look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// 0.1.0 and 0.2.0: one address per family, under `ip4` and `ip6`.
    PerFamily,
    /// 0.3.0 to 0.4.0: a list of addresses, each with its `version`.
    ListWithVersion,
    /// From 1.0.0: a list of addresses.
    List,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The newest.
    pub const LATEST: Self = Self::V1_1_0;

    /// Reads the value of a `cniVersion` key. Empty means 0.1.0; `None` is a version that is not spoken here.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::V0_1_0);
        }
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The value of a `cniVersion` key.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// What results of this version look like.
    pub fn shape(self) -> Shape {
        match self {
            Self::V0_1_0 | Self::V0_2_0 => Shape::PerFamily,
            Self::V0_3_0 | Self::V0_3_1 | Self::V0_4_0 => Shape::ListWithVersion,
            Self::V1_0_0 | Self::V1_1_0 => Shape::List,
        }
    }

    /// All versions as a list for people.
    pub fn listed() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_read_back_and_near_misses_are_not() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        assert_eq!(Version::parse(""), Some(Version::V0_1_0));
        for text in ["1.0", "2.0.0", "1.1.0 ", "v1.0.0"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
