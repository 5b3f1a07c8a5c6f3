//! Puts the rules of some settings into the network namespace of the calling thread.
//!
//! Observe, compare, and change what differs in one nf_tables transaction for both families: there is no moment without
//! capture, and on an error nothing has changed. No program is started. The plugin calls this on a thread that has
//! entered the pod's namespace, the command in its own.

mod netlink;
mod routes;

use std::fs;
use std::io;
use std::path::PathBuf;

use sys::addresses::local_addresses;
use sys::netlink::NetlinkError;
use thiserror::Error;

use crate::config::detect::{NoLocalAddress, id_of, local_address, name_servers};
use crate::config::{HostFacts, Id, Mode, OwnerGroups, Settings};
use crate::model::Family;
use crate::plan::{Plan, sidecar};
use crate::render::compat::EncodeError;
use crate::state::Difference;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Form in which the kernel holds the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Tables and chains of iptables, so that its tools show them.
    #[default]
    Compatible,
    /// Tables of our own in family `inet`.
    Native,
}

/// Flavour of iptables, where one is forced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The old kernel interface, by the host's programs.
    Legacy,
    /// nf_tables.
    Nft,
}

/// What to do with the rules of some settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// Which rules.
    pub settings: Settings,
    /// In which form.
    pub form: Form,
    /// The flavour that someone insists on.
    pub flavour: Option<Flavour>,
    /// Replace rules of ours that differ. Without it they are an error, as for Istio.
    pub reconcile: bool,
    /// Remove the rules and put none in place.
    pub cleanup_only: bool,
    /// Write the rules even when they are there.
    pub force: bool,
    /// The program works from the host's file system inside a pod's namespace: helper programs get a sandbox.
    pub on_host: bool,
    /// Path of the network namespace, where the file stands for the namespace in locks.
    pub netns: Option<PathBuf>,
}

/// What a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// False when everything was there already.
    pub changed: bool,
    /// What differed before, with its family.
    pub differences: Vec<(Family, Difference)>,
    /// IPv6 rules were wanted.
    pub ipv6: bool,
    /// Number of rules wanted, both families together.
    pub rules: usize,
    /// How they were put in place and why so, for the log: `nf_tables, iptables-compatible: …`.
    pub backend: String,
}

/// Why nothing was applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// A mode that this version does not have.
    #[error("interception mode TPROXY is not supported by this version yet: use REDIRECT")]
    TproxyUnsupported,
    /// The namespace's addresses cannot be read.
    #[error("the addresses of the network namespace cannot be read: {0}")]
    Addresses(io::Error),
    /// The namespace has no usable address.
    #[error(transparent)]
    NoLocalAddress(#[from] NoLocalAddress),
    /// A file that the settings need cannot be read.
    #[error("{path} cannot be read: {source}")]
    File {
        /// The file.
        path: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A rule cannot be given to the kernel.
    #[error(transparent)]
    Rule(#[from] EncodeError),
    /// The kernel did not answer, or has no nf_tables.
    #[error("nf_tables: {source}{hint}")]
    Kernel {
        /// Its answer.
        source: NetlinkError,
        /// What usually helps.
        hint: &'static str,
    },
    /// The kernel refused the transaction.
    #[error("the kernel refused {what}: {source}{hint}")]
    Refused {
        /// The rule or command.
        what: String,
        /// Its answer.
        source: NetlinkError,
        /// What usually helps.
        hint: &'static str,
    },
    /// Others kept changing the rules.
    #[error("the rules of the network namespace kept changing while ours were being applied; try again")]
    Busy,
    /// The passthrough address could not be added.
    #[error("address ::6/128 cannot be added to lo: {0}")]
    Passthrough(NetlinkError),
}

/// Applies the sidecar rules of `settings`. Applying them again changes nothing.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn apply(settings: &Settings) -> Result<Applied, ApplyError> {
    if settings.mode == Mode::Tproxy {
        return Err(ApplyError::TproxyUnsupported);
    }
    let facts = host_facts(settings)?;
    let settings = with_numeric_ids(settings.clone());
    let plan = sidecar(&settings, &facts);
    let differences = apply_plan(&plan)?;
    let added = if facts.ipv6 { routes::add_passthrough().map_err(ApplyError::Passthrough)? } else { false };
    Ok(Applied { changed: added || !differences.is_empty(), differences, ipv6: facts.ipv6, rules: rule_count(&plan), backend: String::new() })
}

/// Brings the calling thread's namespace to `plan`. Returns what differed before, with its family.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn apply_plan(plan: &Plan) -> Result<Vec<(Family, Difference)>, ApplyError> {
    netlink::apply(plan)
}

/// Looks at the calling thread's namespace and at resolv.conf, as far as `settings` need it.
///
/// # Errors
/// When the addresses or a needed file cannot be read, or no address counts.
pub fn host_facts(settings: &Settings) -> Result<HostFacts, ApplyError> {
    let addresses = local_addresses().map_err(ApplyError::Addresses)?;
    let local = local_address(&addresses, settings.dual_stack)?;
    let mut facts = HostFacts { ipv6: local.ipv6, ..HostFacts::default() };
    if settings.redirect_dns && !settings.capture_all_dns {
        let text = fs::read_to_string(RESOLV_CONF);
        let text = text.map_err(|source| ApplyError::File { path: RESOLV_CONF, source })?;
        (facts.dns_servers_v4, facts.dns_servers_v6) = name_servers(&text);
    }
    Ok(facts)
}

fn rule_count(plan: &Plan) -> usize {
    plan.v4.len() + plan.v6.len()
}

/// Users and groups by number. A name that is not in the files stays a name; the encoder then says so.
fn with_numeric_ids(mut settings: Settings) -> Settings {
    resolve(&mut settings.proxy_uids, PASSWD);
    resolve(&mut settings.proxy_gids, GROUP);
    match &mut settings.owner_groups {
        OwnerGroups::AllExcept(groups) | OwnerGroups::Only(groups) => resolve(groups, GROUP),
    }
    settings
}

fn resolve(ids: &mut [Id], file: &str) {
    if ids.iter().all(|id| id.number().is_some()) {
        return;
    }
    // The files are read directly: a static binary must not load the host's name service modules.
    let text = fs::read_to_string(file).unwrap_or_default();
    for id in ids.iter_mut().filter(|id| id.number().is_none()) {
        if let Some(number) = id_of(id.as_str(), &text) {
            *id = id.clone().resolved(number);
        }
    }
}
