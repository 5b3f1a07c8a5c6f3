//! From settings and host facts to rules, in the order in which Istio emits them.
//!
//! Pure and total: every value of the settings gives a plan. Whether the kernel can be given each rule is decided by the
//! encoder in `render`.

pub mod native;
mod refuse;
mod sidecar;

use crate::config::{HostFacts, Settings};
use crate::model::{Family, Rule};

/// A whole rule set. Positional inserts are recorded in call order; nothing is sorted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// IPv4 rules.
    pub v4: Vec<Rule>,
    /// IPv6 rules; when IPv6 is off, none, or those that refuse it.
    pub v6: Vec<Rule>,
}

impl Plan {
    /// The rules of one family.
    pub fn rules(&self, family: Family) -> &[Rule] {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// How DNS is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsCapture {
    /// Not.
    Off,
    /// All of port 53.
    All,
    /// Only the known name servers.
    Servers,
}

impl DnsCapture {
    /// What the settings come to on this host. Wanted but without a single known server means off.
    pub fn of(settings: &Settings, facts: &HostFacts) -> Self {
        if !settings.redirect_dns {
            Self::Off
        } else if settings.capture_all_dns {
            Self::All
        } else if facts.dns_servers_v4.is_empty() && facts.dns_servers_v6.is_empty() {
            Self::Off
        } else {
            Self::Servers
        }
    }
}

/// The sidecar rule set of `settings`.
pub fn sidecar(settings: &Settings, facts: &HostFacts) -> Plan {
    let mut plan = sidecar::plan(settings, facts);
    if settings.refuse_uncaptured && facts.uncaptured == Some(Family::V6) {
        plan.v6 = refuse::rules(settings, facts);
    }
    plan
}
