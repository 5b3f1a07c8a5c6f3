//! Rules into the pod's network namespace and how they compare there, and words for what goes wrong there.

use cni::Error;
use cni::error::code;
use iptables_rules::apply::{self as engine, ApplyError, Form, Job};
use iptables_rules::model::Family;
use iptables_rules::render::compat::Reason;
use mesh::Redirect;

use crate::codes;
use crate::config::Environment;
use crate::judge::{Call, no_sandbox};
use crate::log::{Level, Logger};

/// Programs `redirect` in the namespace of `call`.
pub(crate) fn apply(
    redirect: &Redirect,
    call: &Call<'_>,
    environment: &Environment,
    log: &mut Logger,
) -> Result<(), Error> {
    let applied = in_sandbox(redirect, call, environment, engine::run)?;
    log.label("rules", applied.rules);
    log.label("ipv6", applied.ipv6);
    log.label("changed", applied.changed);
    // Refused traffic goes nowhere; what passes around the proxy is somebody's hole.
    let passes = applied.uncaptured.filter(|_| !redirect.settings.refuse_uncaptured);
    if let Some(family) = passes {
        log.label("uncaptured", if family == Family::V6 { "IPv6" } else { "IPv4" });
    }
    let level = if passes.is_some() { Level::Warn } else { Level::Info };
    for note in &applied.notes {
        log.write(level, note);
    }
    log.write(Level::Debug, "rules are in place");
    Ok(())
}

/// What in the namespace of `call` is not as `redirect` asks for, a sentence each.
pub(crate) fn differences(
    redirect: &Redirect,
    call: &Call<'_>,
    environment: &Environment,
) -> Result<Vec<String>, Error> {
    in_sandbox(redirect, call, environment, engine::check)
}

/// Does `work` for `redirect` in the namespace of `call`. The host's namespace is never touched.
fn in_sandbox<T: Send>(
    redirect: &Redirect,
    call: &Call<'_>,
    environment: &Environment,
    work: fn(&Job) -> Result<T, ApplyError>,
) -> Result<T, Error> {
    let netns = call.request.netns.as_str();
    let mut settings = redirect.settings.clone();
    (settings.owner_groups, settings.loopback_v4) = environment.rule_settings().map_err(|invalid| {
        let message = format!("{invalid}; correct the container runtime's environment");
        Error::new(code::INVALID_ENVIRONMENT, message)
    })?;
    let sandbox = call.sandbox()?;
    let form = if call.config.native_nftables { Form::Native } else { Form::Compatible };
    let job = Job { settings, form, reconcile: true, ..Job::default() };
    let done = if environment.own_process { sandbox.enter().map(|()| work(&job)) } else { sandbox.run(|| work(&job)) };
    done.map_err(|error| no_sandbox(&error))?.map_err(|error| apply_error(error, redirect, netns))
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
