//! Puts the rules of some settings into the network namespace of the calling thread.
//!
//! Observe, compare, and change what differs. In nf_tables that is one transaction for both families: there is no moment
//! without capture, on an error nothing has changed, and no program is started. Where only legacy iptables will do, the
//! host's programs carry out the same plan. The plugin calls this on a thread that has entered the pod's namespace, the
//! command in its own.

pub mod addresses;
pub mod backend;
#[cfg(feature = "legacy")]
pub mod exec;
mod legacy;
#[cfg(feature = "native")]
pub mod native;
mod netlink;
mod routes;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use sys::netlink::NetlinkError;
use thiserror::Error;

use crate::apply::addresses::local_addresses;
use crate::apply::backend::{Backend, Programs};
#[cfg(feature = "legacy")]
use crate::apply::exec::ExecError;
pub use crate::apply::netlink::Policy;
use crate::apply::routes::{LocalDelivery, Routing};
use crate::config::detect::{NoLocalAddress, id_of, local_address, name_servers};
use crate::config::{HostFacts, Id, Mark, Mode, OwnerGroups, Selection, Settings};
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
    /// Directories with programs, written like `PATH`, where the host's iptables is needed.
    pub search: Option<OsString>,
    /// Path of the network namespace, where the file stands for the namespace in locks.
    pub netns: Option<PathBuf>,
}

/// What a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// False when everything was there already.
    pub changed: bool,
    /// What differed before, a sentence each.
    pub differences: Vec<String>,
    /// IPv6 rules were wanted.
    pub ipv6: bool,
    /// The family that has addresses but is not captured: it passes around the proxy, unless the settings refuse it.
    pub uncaptured: Option<Family>,
    /// Number of rules wanted, both families together.
    pub rules: usize,
    /// How they were put in place and why so, a sentence for the log.
    pub backend: String,
    /// What else a person may want to know although it worked.
    pub notes: Vec<String>,
}

/// Why nothing was applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// A mark or route table that routing cannot take.
    #[error("{option} `{value}` is not a decimal number from 1 to 4294967295, which TPROXY mode needs for its routes")]
    RouteNumber {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// Rules of ours are there that are not the wanted ones.
    #[error(
        "rules of another configuration are in place and were left as they are; pass --reconcile to replace them: {}",
        sentences(.0).join("; ")
    )]
    RulesDiffer(Differences),
    /// The namespace's addresses cannot be read.
    #[error("the addresses of the network namespace cannot be read: {0}")]
    Addresses(NetlinkError),
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
    /// The host's iptables programs could not do it.
    #[cfg(feature = "legacy")]
    #[error(transparent)]
    Legacy(#[from] ExecError),
    /// The only way is one that this program does not have.
    #[error("the only way to these rules is {0}, which this program does not have")]
    NoWay(&'static str),
    /// An address, policy rule or route could not be read or changed.
    #[error("{what} cannot be read or changed: {source}")]
    Routing {
        /// Which one.
        what: &'static str,
        /// The kernel's answer.
        source: NetlinkError,
    },
}

/// Differences with the family they are in.
pub type Differences = Vec<(Family, Difference)>;

/// Applies the sidecar rules of `settings` in the iptables-compatible form, whatever was there. Applying them again
/// changes nothing.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn apply(settings: &Settings) -> Result<Applied, ApplyError> {
    run(&Job { settings: settings.clone(), reconcile: true, ..Job::default() })
}

/// Does a job in the network namespace of the calling thread.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn run(job: &Job) -> Result<Applied, ApplyError> {
    let facts = host_facts(&job.settings)?;
    let settings = with_numeric_ids(job.settings.clone());
    let delivery = local_delivery(&settings)?;
    let mut applied = match (job.form, job.cleanup_only) {
        (_, true) => remove_rules(job, &settings, &facts)?,
        (Form::Native, false) => native_rules(job, &settings, &facts)?,
        (Form::Compatible, false) => compatible_rules(job, &settings, &facts)?,
    };
    if !job.cleanup_only {
        applied.notes.extend(applied.uncaptured.map(|_| uncaptured_note(job)));
    }
    applied.changed |= if job.cleanup_only {
        change_routing(possible_routing(&settings), Routing::remove)?
    } else {
        change_routing(wanted_routing(facts.ipv6, delivery), Routing::add)?
    };
    Ok(applied)
}

/// What becomes of IPv6 where it is not captured.
fn uncaptured_note(job: &Job) -> String {
    let what = if job.settings.refuse_uncaptured {
        "connections over it are refused where they would be captured"
    } else if job.form == Form::Native {
        // Istio's native rules do not look at the family everywhere.
        "connections over it pass around the proxy or come to it, as it happens"
    } else {
        "connections over it pass around the proxy"
    };
    format!(
        "there are IPv6 addresses, but the proxy is set up for IPv4 only: {what}; enable dual stack to capture them"
    )
}

impl Applied {
    fn new(differences: Vec<String>, facts: &HostFacts, rules: usize, backend: String) -> Self {
        let changed = !differences.is_empty();
        Self { changed, differences, ipv6: facts.ipv6, uncaptured: facts.uncaptured, rules, backend, notes: Vec::new() }
    }
}

fn compatible_rules(job: &Job, settings: &Settings, facts: &HostFacts) -> Result<Applied, ApplyError> {
    let plan = sidecar(settings, facts);
    let choice = backend::decide(job.flavour);
    let policy = Policy { replace: job.reconcile, rewrite: job.force };
    let mut notes = Vec::new();
    let found = match choice.backend {
        Backend::NfTables => netlink::apply(&plan, policy)?,
        Backend::Legacy(programs) => {
            let differences = legacy::apply(job, &plan, &Plan::default(), policy, programs, &mut notes)?;
            netlink::Found { differences, native: false }
        }
    };
    if choice.also_in_other && job.reconcile {
        // Ours are in place; what an earlier run left elsewhere would only be met a second time.
        match choice.backend {
            Backend::NfTables => {
                legacy::apply(job, &Plan::default(), &plan, Policy::RECONCILE, Programs::LegacyOrPlain, &mut notes)?;
            }
            Backend::Legacy(_) => drop(netlink::apply(&Plan::default(), Policy::RECONCILE)?),
        }
        notes.push("rules of ours in the other flavour of iptables were removed".to_owned());
    }
    if found.native && job.reconcile && !remove_native()?.is_empty() {
        notes.push("native nftables rules of an earlier run were removed".to_owned());
    }
    let count = plan.v4.len() + plan.v6.len();
    let mut applied = Applied::new(sentences(&found.differences), facts, count, choice.reason);
    applied.changed |= job.force;
    applied.notes = notes;
    Ok(applied)
}

#[cfg(feature = "native")]
fn native_rules(job: &Job, settings: &Settings, facts: &HostFacts) -> Result<Applied, ApplyError> {
    let outcome = native::apply(settings, facts)?;
    let differences = outcome.differences.iter().map(ToString::to_string).collect();
    let reason = "native nftables, because it was asked for".to_owned();
    let mut applied = Applied::new(differences, facts, outcome.rules, reason);
    if job.reconcile && !netlink::apply(&Plan::default(), Policy::RECONCILE)?.differences.is_empty() {
        applied.notes.push("iptables rules of an earlier run were removed".to_owned());
    }
    Ok(applied)
}

#[cfg(not(feature = "native"))]
fn native_rules(_job: &Job, _settings: &Settings, _facts: &HostFacts) -> Result<Applied, ApplyError> {
    Err(ApplyError::NoWay("native nftables"))
}

/// Removes what the native form holds. Returns what was there.
#[cfg(feature = "native")]
fn remove_native() -> Result<Vec<String>, ApplyError> {
    Ok(native::remove()?.differences.iter().map(ToString::to_string).collect())
}

/// This program never made any.
#[cfg(not(feature = "native"))]
fn remove_native() -> Result<Vec<String>, ApplyError> {
    Ok(Vec::new())
}

/// Removes what is ours in every form, whoever put it there.
fn remove_rules(job: &Job, settings: &Settings, facts: &HostFacts) -> Result<Applied, ApplyError> {
    let mut differences = Vec::new();
    let mut notes = Vec::new();
    let choice = backend::decide(job.flavour);
    let has_legacy = match choice.backend {
        Backend::NfTables => choice.also_in_other,
        Backend::Legacy(_) => true,
    };
    let has_nf_tables = match choice.backend {
        Backend::NfTables => true,
        Backend::Legacy(_) => choice.also_in_other,
    };
    if has_nf_tables {
        differences.extend(sentences(&netlink::apply(&Plan::default(), Policy::RECONCILE)?.differences));
        differences.extend(remove_native()?);
    }
    if has_legacy {
        let programs = match choice.backend {
            Backend::Legacy(programs) => programs,
            Backend::NfTables => Programs::LegacyOrPlain,
        };
        let known = sidecar(settings, facts);
        let found = legacy::apply(job, &Plan::default(), &known, Policy::RECONCILE, programs, &mut notes)?;
        differences.extend(sentences(&found));
    }
    let mut applied = Applied::new(differences, facts, 0, choice.reason);
    applied.notes = notes;
    Ok(applied)
}

fn sentences(differences: &Differences) -> Vec<String> {
    differences.iter().map(|(_, difference)| difference.to_string()).collect()
}

/// Looks whether the calling thread's namespace holds what [`run`] would put there, with the address and routes that the
/// rules rely on, and changes nothing. Returns what is missing, changed or not wanted, a sentence each.
///
/// # Errors
/// See [`ApplyError`].
pub fn check(job: &Job) -> Result<Vec<String>, ApplyError> {
    let facts = host_facts(&job.settings)?;
    let settings = with_numeric_ids(job.settings.clone());
    let mut found = match job.form {
        Form::Compatible => sentences(&netlink::check(&sidecar(&settings, &facts))?),
        Form::Native => native_differences(&settings, &facts)?,
    };
    for what in wanted_routing(facts.ipv6, local_delivery(&settings)?) {
        if !routing(what, Routing::is_there)? {
            found.push(Difference::MissingRouting { what: what.name() }.to_string());
        }
    }
    Ok(found)
}

#[cfg(feature = "native")]
fn native_differences(settings: &Settings, facts: &HostFacts) -> Result<Vec<String>, ApplyError> {
    Ok(native::check(settings, facts)?.iter().map(ToString::to_string).collect())
}

#[cfg(not(feature = "native"))]
fn native_differences(_settings: &Settings, _facts: &HostFacts) -> Result<Vec<String>, ApplyError> {
    Err(ApplyError::NoWay("native nftables"))
}

/// Brings the calling thread's namespace to `plan`. Returns what differed before.
///
/// # Errors
/// See [`ApplyError`]; the rules are then as they were before.
pub fn apply_plan(plan: &Plan) -> Result<Differences, ApplyError> {
    Ok(netlink::apply(plan, Policy::RECONCILE)?.differences)
}

/// The local delivery that TPROXY mode needs; `None` where it needs none.
fn local_delivery(settings: &Settings) -> Result<Option<LocalDelivery>, ApplyError> {
    if settings.mode != Mode::Tproxy || settings.inbound_ports == Selection::None {
        return Ok(None);
    }
    let number = |option, mark: &Mark| {
        let valid = mark.decimal().filter(|number| *number > 0);
        valid.ok_or_else(|| ApplyError::RouteNumber { option, value: mark.to_string() })
    };
    let table = number("--istio-inbound-tproxy-route-table", &settings.tproxy_route_table)?;
    let mark = number("--istio-inbound-tproxy-mark", &settings.tproxy_mark)?;
    Ok(Some(LocalDelivery { mark, table }))
}

/// What of routing the rules rely on.
fn wanted_routing(ipv6: bool, delivery: Option<LocalDelivery>) -> Vec<Routing> {
    let mut wanted = Vec::new();
    wanted.extend(ipv6.then_some(Routing::Passthrough));
    wanted.extend(delivery.map(|delivery| Routing::Delivery(Family::V4, delivery)));
    wanted.extend(delivery.filter(|_| ipv6).map(|delivery| Routing::Delivery(Family::V6, delivery)));
    wanted
}

/// What any mode may have added with these settings.
fn possible_routing(settings: &Settings) -> Vec<Routing> {
    let numbers = settings.tproxy_mark.decimal().zip(settings.tproxy_route_table.decimal());
    let numbers = numbers.filter(|(mark, table)| *mark > 0 && *table > 0);
    wanted_routing(true, numbers.map(|(mark, table)| LocalDelivery { mark, table }))
}

/// Adds or removes all of `list`. Returns whether anything changed.
fn change_routing(list: Vec<Routing>, step: fn(Routing) -> Result<bool, NetlinkError>) -> Result<bool, ApplyError> {
    let mut changed = false;
    for what in list {
        changed |= routing(what, step)?;
    }
    Ok(changed)
}

fn routing(what: Routing, step: fn(Routing) -> Result<bool, NetlinkError>) -> Result<bool, ApplyError> {
    step(what).map_err(|source| ApplyError::Routing { what: what.name(), source })
}

/// Looks at the calling thread's namespace and at resolv.conf, as far as `settings` need it.
///
/// # Errors
/// When the addresses or a needed file cannot be read, or no address counts.
pub fn host_facts(settings: &Settings) -> Result<HostFacts, ApplyError> {
    let addresses = local_addresses().map_err(ApplyError::Addresses)?;
    let local = local_address(&addresses, settings.dual_stack)?;
    let mut facts = HostFacts { ipv6: local.ipv6, uncaptured: local.uncaptured, ..HostFacts::default() };
    if settings.redirect_dns && !settings.capture_all_dns {
        let text = fs::read_to_string(RESOLV_CONF);
        let text = text.map_err(|source| ApplyError::File { path: RESOLV_CONF, source })?;
        (facts.dns_servers_v4, facts.dns_servers_v6) = name_servers(&text);
    }
    Ok(facts)
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
