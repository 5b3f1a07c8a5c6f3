//! Rules into the pod's network namespace and how they compare there, and words for what goes wrong there.

use std::path::Path;

use cni::Error;
use cni::error::code;
use iptables_rules::apply::{self as engine, ApplyError};
use iptables_rules::config::Settings;
use iptables_rules::render::compat::Reason;
use mesh::Redirect;
use sys::netns::{Netns, NetnsError};

use crate::codes;
use crate::config::Environment;
use crate::judge::own_netns;
use crate::log::{Level, Logger};

/// Programs `redirect` in the namespace at `netns`.
pub(crate) fn apply(
    redirect: &Redirect,
    netns: &str,
    environment: &Environment,
    log: &mut Logger,
) -> Result<(), Error> {
    let applied = in_sandbox(redirect, netns, environment, engine::apply)?;
    log.label("rules", applied.rules);
    log.label("ipv6", applied.ipv6);
    log.label("changed", applied.changed);
    log.write(Level::Debug, "rules are in place");
    Ok(())
}

/// What in the namespace at `netns` is not as `redirect` asks for, a sentence each.
pub(crate) fn differences(redirect: &Redirect, netns: &str, environment: &Environment) -> Result<Vec<String>, Error> {
    let found = in_sandbox(redirect, netns, environment, engine::check)?;
    Ok(found.iter().map(|(_, difference)| difference.to_string()).collect())
}

/// Does `work` with the settings of `redirect` in the namespace at `netns`, on a thread of its own. The host's namespace
/// is never touched.
fn in_sandbox<T: Send>(
    redirect: &Redirect,
    netns: &str,
    environment: &Environment,
    work: fn(&Settings) -> Result<T, ApplyError>,
) -> Result<T, Error> {
    let mut settings = redirect.settings.clone();
    (settings.owner_groups, settings.loopback_v4) = environment.rule_settings().map_err(|invalid| {
        let message = format!("{invalid}; correct the container runtime's environment");
        Error::new(code::INVALID_ENVIRONMENT, message)
    })?;
    let sandbox = Netns::open(Path::new(netns)).map_err(|error| netns_error(&error))?;
    let own = Netns::current().map_err(|error| netns_error(&error))?;
    if sandbox.id() == own.id() {
        return Err(own_netns(netns));
    }
    sandbox
        .run(|| work(&settings))
        .map_err(|error| netns_error(&error))?
        .map_err(|error| apply_error(error, redirect, netns))
}

fn netns_error(error: &NetnsError) -> Error {
    Error::new(code::INVALID_NETNS, format!("{error}; the rules of the pod cannot be set up"))
}

fn apply_error(error: ApplyError, redirect: &Redirect, netns: &str) -> Error {
    match &error {
        ApplyError::Rule(encode) => {
            let annotation = match &encode.reason {
                Reason::Port(port) => redirect.annotation_of_port(port),
                _ => None,
            };
            match annotation {
                Some(annotation) => Error::new(
                    codes::INVALID_ANNOTATION,
                    format!("annotation {annotation} cannot be carried out: {error}; list the ports one by one"),
                ),
                None => rules_failed(&error, netns),
            }
        }
        _ => rules_failed(&error, netns),
    }
}

fn rules_failed(error: &ApplyError, netns: &str) -> Error {
    Error::new(
        codes::RULES,
        format!("the redirection rules cannot be set up or read in network namespace {netns}: {error}"),
    )
}
