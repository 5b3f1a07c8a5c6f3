//! The plugin process's environment. No other module reads it.
//!
//! It is the container runtime's environment: proxies and kubeconfigs in it are not meant for us. Besides the variables
//! of the CNI contract three settings of the rules are taken from it, as Istio does.

use iptables_rules::config::options::{InvalidOption, Options};
use iptables_rules::config::{Cidr, OwnerGroups};

const OWNER_GROUPS: &str = "ISTIO_OUTBOUND_OWNER_GROUPS";
const OWNER_GROUPS_EXCLUDE: &str = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE";
const LOOPBACK_CIDR: &str = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";
const NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// A variable, or `None` when it is not set.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// What the environment says beyond the CNI contract.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_NETNS_OVERRIDE`: pods that are left alone anyway may be in our own network namespace.
    pub netns_override: bool,
    /// The process serves this one call and ends: it may move into the pod's namespace, which spares it a thread.
    pub own_process: bool,
    rules: Options,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Self {
        Self { own_process: true, ..Self::from_lookup(variable) }
    }

    /// Reads an environment by looking variables up.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let mut rules = Options::default();
        for (name, field) in [
            (OWNER_GROUPS, &mut rules.owner_groups),
            (OWNER_GROUPS_EXCLUDE, &mut rules.owner_groups_exclude),
            (LOOPBACK_CIDR, &mut rules.loopback_v4),
        ] {
            if let Some(value) = lookup(name) {
                *field = value;
            }
        }
        let netns_override =
            lookup(NETNS_OVERRIDE).is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
        Self { netns_override, own_process: false, rules }
    }

    /// Whose outbound traffic is captured, and the loopback prefix.
    ///
    /// # Errors
    /// Names the variable that is invalid.
    pub fn rule_settings(&self) -> Result<(OwnerGroups, Cidr), InvalidOption> {
        let settings = self.rules.settings()?;
        Ok((settings.owner_groups, settings.loopback_v4))
    }
}

#[cfg(test)]
mod tests {
    use iptables_rules::config::Id;

    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn owner_groups_come_from_the_runtimes_environment() {
        let groups = |pairs: &[(&str, &str)]| environment(pairs).rule_settings().unwrap().0;
        assert_eq!(groups(&[]), OwnerGroups::AllExcept(Vec::new()));
        assert_eq!(groups(&[(OWNER_GROUPS, "7")]), OwnerGroups::Only(vec![Id::from(7)]));
        assert_eq!(groups(&[(OWNER_GROUPS, "")]), OwnerGroups::Only(Vec::new()));
        assert_eq!(groups(&[(OWNER_GROUPS_EXCLUDE, "7")]), OwnerGroups::AllExcept(vec![Id::from(7)]));
    }

    #[test]
    fn an_invalid_loopback_prefix_is_named() {
        let error = environment(&[(LOOPBACK_CIDR, "10.0.0.0/8")]).rule_settings().unwrap_err();
        assert!(error.to_string().contains(LOOPBACK_CIDR), "{error}");
    }

    #[test]
    fn the_namespace_override_is_1_or_true() {
        for (value, set) in [("1", true), ("TRUE", true), ("true", true), ("0", false), ("yes", false), ("", false)] {
            assert_eq!(environment(&[(NETNS_OVERRIDE, value)]).netns_override, set, "{value}");
        }
    }
}
