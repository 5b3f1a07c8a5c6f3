//! From a pod's annotations, and its proxy's variables and user, to settings of the rule engine.
//!
//! An annotation that is there but empty is not the same as one that is absent: it overrides the default. Lists become
//! canonical: trimmed, each item once. Whether the kernel can carry a setting out is not judged here; a literal `*`
//! among excluded ports passes, and the rule engine refuses it.

use agent_api::Redirection;
use iptables_rules::config::values::join;
use iptables_rules::config::{Cidr, DEFAULT_PROXY_ID, DEFAULT_PROXY_PORT, Id, Mode, Port, Selection, Settings};
use thiserror::Error;

use crate::decide::parse_bool;
use crate::names::{
    DNS_CAPTURE, DUAL_STACK, EXCLUDE_INBOUND_PORTS, EXCLUDE_INTERFACES, EXCLUDE_OUTBOUND_IP_RANGES,
    EXCLUDE_OUTBOUND_PORTS, INCLUDE_INBOUND_PORTS, INCLUDE_OUTBOUND_IP_RANGES, INCLUDE_OUTBOUND_PORTS,
    INTERCEPTION_MODE, INVALID_DROP, KUBEVIRT_INTERFACES, REROUTE_VIRTUAL_INTERFACES, UNCAPTURED_TRAFFIC,
};
use crate::pod::{Pod, SecurityContext};

/// Health and metrics ports of the proxy, which are never captured.
const PROXY_PORTS: [u16; 3] = [15020, 15021, 15090];
/// Ports excluded when a pod does not say which.
const DEFAULT_EXCLUDE_PORTS: &str = "15020";
/// Longest name of an interface, in bytes.
const MAX_INTERFACE: usize = 15;

/// An annotation that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("annotation {annotation} has the invalid value `{value}`: {reason}")]
pub struct InvalidAnnotation {
    /// Key of the annotation.
    pub annotation: &'static str,
    /// Its value.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
}

impl InvalidAnnotation {
    /// What is wrong with this pod, and what to do about it.
    pub fn about(&self, namespace: &str, name: &str) -> String {
        format!("pod {namespace}/{name}: {self}; correct the annotation")
    }
}

/// A variable of the proxy that was taken for `false`, since it is no boolean.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("variable {variable} of container istio-proxy is `{value}`, which is no boolean; it is taken for false")]
pub struct Warning {
    /// Name of the variable.
    pub variable: &'static str,
    /// Its value; empty also when it comes from a reference.
    pub value: String,
}

/// How a pod's traffic is redirected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// For the rule engine. What a pod cannot set has its default.
    pub settings: Settings,
    /// Nobody said yet whether to refuse a family that is not captured; see [`Redirect::or_refuse`].
    pub refusal_open: bool,
    /// What was odd on the way, for the log.
    pub warnings: Vec<Warning>,
}

impl Redirect {
    /// Reads a pod that is to be redirected.
    ///
    /// # Errors
    /// The first annotation, in Istio's order of reading, that is invalid.
    pub fn from_pod(pod: &Pod) -> Result<Self, InvalidAnnotation> {
        let virtual_key = match pod.annotation(REROUTE_VIRTUAL_INTERFACES) {
            Some(_) => REROUTE_VIRTUAL_INTERFACES,
            None => KUBEVIRT_INTERFACES,
        };
        let text = |annotation: &str, default: &str| pod.annotation(annotation).unwrap_or(default).to_owned();
        let mut warnings = Vec::new();
        let mut flag = |variable: &'static str| {
            let Some(value) = pod.proxy_env(variable) else { return false };
            parse_bool(value).unwrap_or_else(|| {
                warnings.push(Warning { variable, value: value.to_owned() });
                false
            })
        };
        let texts = Redirection {
            target_port: DEFAULT_PROXY_PORT.to_string(),
            redirect_mode: text(INTERCEPTION_MODE, Mode::Redirect.as_str()),
            no_redirect_uid: proxy_id(pod, |context| context.run_as_user).to_string(),
            no_redirect_gid: proxy_id(pod, |context| context.run_as_group).to_string(),
            include_ip_cidrs: text(INCLUDE_OUTBOUND_IP_RANGES, "*"),
            exclude_ip_cidrs: text(EXCLUDE_OUTBOUND_IP_RANGES, ""),
            include_inbound_ports: text(INCLUDE_INBOUND_PORTS, "*"),
            exclude_inbound_ports: text(EXCLUDE_INBOUND_PORTS, DEFAULT_EXCLUDE_PORTS),
            include_outbound_ports: text(INCLUDE_OUTBOUND_PORTS, ""),
            exclude_outbound_ports: text(EXCLUDE_OUTBOUND_PORTS, DEFAULT_EXCLUDE_PORTS),
            exclude_interfaces: text(EXCLUDE_INTERFACES, ""),
            reroute_virtual_interfaces: text(virtual_key, ""),
            dns_redirect: flag(DNS_CAPTURE),
            dual_stack: flag(DUAL_STACK),
            invalid_drop: flag(INVALID_DROP),
            refuse_uncaptured: false,
        };
        let mut settings = settings(&texts, virtual_key)?;
        let refuse = pod.annotation(UNCAPTURED_TRAFFIC);
        let refuse = refuse.map(|value| read(UNCAPTURED_TRAFFIC, value, refuse_uncaptured)).transpose()?;
        settings.refuse_uncaptured = refuse == Some(true);
        settings.inbound_ports_exclude.extend(PROXY_PORTS.map(Port::from));
        settings.inbound_ports_exclude = unique(settings.inbound_ports_exclude);
        Ok(Self { settings, refusal_open: refuse.is_none(), warnings })
    }

    /// Gives a pod that does not say itself what becomes of a family that is not captured the node's setting: `true`
    /// refuses it.
    pub fn or_refuse(&mut self, node: bool) {
        if std::mem::take(&mut self.refusal_open) {
            self.settings.refuse_uncaptured = node;
        }
    }

    /// Reads what the agent says about a pod.
    ///
    /// # Errors
    /// What it says is not valid, under the name of the annotation that it would come from.
    pub fn from_texts(texts: &Redirection) -> Result<Self, InvalidAnnotation> {
        // No annotation sets these, so that nothing else looks at them.
        let numbers = [
            ("target_port", &texts.target_port, Port::new(&texts.target_port).range().is_some()),
            ("no_redirect_uid", &texts.no_redirect_uid, Id::new(&texts.no_redirect_uid).number().is_some()),
            ("no_redirect_gid", &texts.no_redirect_gid, Id::new(&texts.no_redirect_gid).number().is_some()),
        ];
        for (key, value, valid) in numbers {
            read(key, value, |_| valid.then_some(()).ok_or_else(|| "it is not a number".to_owned()))?;
        }
        let settings = settings(texts, REROUTE_VIRTUAL_INTERFACES)?;
        Ok(Self { settings, refusal_open: false, warnings: Vec::new() })
    }

    /// What came from the pod: for the plugin, for logs and comparisons.
    pub fn to_texts(&self) -> Redirection {
        let settings = &self.settings;
        Redirection {
            target_port: settings.proxy_port.to_string(),
            redirect_mode: settings.mode.as_str().to_owned(),
            no_redirect_uid: join(&settings.proxy_uids),
            no_redirect_gid: join(&settings.proxy_gids),
            include_ip_cidrs: settings.outbound_cidrs.to_string(),
            exclude_ip_cidrs: join(&settings.outbound_cidrs_exclude),
            include_inbound_ports: settings.inbound_ports.to_string(),
            exclude_inbound_ports: join(&settings.inbound_ports_exclude),
            include_outbound_ports: join(&settings.outbound_ports),
            exclude_outbound_ports: join(&settings.outbound_ports_exclude),
            exclude_interfaces: settings.exclude_interfaces.join(","),
            reroute_virtual_interfaces: settings.virtual_interfaces.join(","),
            dns_redirect: settings.redirect_dns,
            dual_stack: settings.dual_stack,
            invalid_drop: settings.drop_invalid,
            refuse_uncaptured: settings.refuse_uncaptured,
        }
    }

    /// The annotation that made the rule engine meet `value`, a port it cannot program, if one did.
    pub fn annotation_of_port(&self, value: &str) -> Option<&'static str> {
        let has = |ports: &[Port]| ports.iter().any(|port| port.as_str() == value);
        [
            (EXCLUDE_INBOUND_PORTS, self.settings.inbound_ports_exclude.as_slice()),
            (INCLUDE_OUTBOUND_PORTS, self.settings.outbound_ports.as_slice()),
            (EXCLUDE_OUTBOUND_PORTS, self.settings.outbound_ports_exclude.as_slice()),
        ]
        .into_iter()
        .find_map(|(annotation, ports)| has(ports).then_some(annotation))
    }
}

/// The settings that `texts` mean, in the order in which Istio reads annotations. `virtual_key` is the annotation that
/// rerouted interfaces came from.
fn settings(texts: &Redirection, virtual_key: &'static str) -> Result<Settings, InvalidAnnotation> {
    let mode = read(INTERCEPTION_MODE, &texts.redirect_mode, mode)?;
    let outbound_cidrs = read(INCLUDE_OUTBOUND_IP_RANGES, &texts.include_ip_cidrs, cidr_selection)?;
    let outbound_cidrs_exclude = read(EXCLUDE_OUTBOUND_IP_RANGES, &texts.exclude_ip_cidrs, cidrs)?;
    let inbound_ports_exclude = read(EXCLUDE_INBOUND_PORTS, &texts.exclude_inbound_ports, ports)?;
    let inbound_ports = read(INCLUDE_INBOUND_PORTS, &texts.include_inbound_ports, port_selection)?;
    let outbound_ports_exclude = read(EXCLUDE_OUTBOUND_PORTS, &texts.exclude_outbound_ports, ports)?;
    let outbound_ports = read(INCLUDE_OUTBOUND_PORTS, &texts.include_outbound_ports, ports)?;
    let exclude_interfaces = read(EXCLUDE_INTERFACES, &texts.exclude_interfaces, interfaces)?;
    let virtual_interfaces = read(virtual_key, &texts.reroute_virtual_interfaces, interfaces)?;
    Ok(Settings {
        proxy_port: Port::new(&texts.target_port),
        proxy_uids: vec![Id::new(&texts.no_redirect_uid)],
        proxy_gids: vec![Id::new(&texts.no_redirect_gid)],
        mode,
        inbound_ports,
        inbound_ports_exclude,
        outbound_cidrs,
        outbound_cidrs_exclude,
        outbound_ports,
        outbound_ports_exclude,
        exclude_interfaces,
        virtual_interfaces,
        redirect_dns: texts.dns_redirect,
        // A pod's DNS is captured wholly or not at all: its resolv.conf is not ours to read.
        capture_all_dns: texts.dns_redirect,
        drop_invalid: texts.invalid_drop,
        dual_stack: texts.dual_stack,
        refuse_uncaptured: texts.refuse_uncaptured,
        ..Settings::default()
    })
}

fn read<T>(
    annotation: &'static str,
    value: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, InvalidAnnotation> {
    parse(value).map_err(|reason| InvalidAnnotation { annotation, value: value.to_owned(), reason })
}

fn mode(text: &str) -> Result<Mode, String> {
    [Mode::Redirect, Mode::Tproxy]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| "it must be REDIRECT, TPROXY or NONE".to_owned())
}

fn refuse_uncaptured(text: &str) -> Result<bool, String> {
    match text {
        "refuse" => Ok(true),
        "pass" => Ok(false),
        _ => Err("it must be refuse or pass".to_owned()),
    }
}

fn cidrs(text: &str) -> Result<Vec<Cidr>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let list = text.split(',').map(|item| item.parse::<Cidr>().map_err(|error| error.to_string()));
    list.collect::<Result<_, _>>().map(unique)
}

fn cidr_selection(text: &str) -> Result<Selection<Cidr>, String> {
    Ok(match text {
        "*" => Selection::All,
        "" => Selection::None,
        list => Selection::Only(cidrs(list)?),
    })
}

/// A list of ports; exactly `*` stays as it is.
fn ports(text: &str) -> Result<Vec<Port>, String> {
    let trimmed = text.trim();
    match text {
        "*" => return Ok(vec![Port::new("*")]),
        _ if trimmed.is_empty() => return Ok(Vec::new()),
        _ => {}
    }
    let port = |item: &str| match Port::new(item.trim()).range() {
        Some((port, _)) if !item.contains(':') => Ok(Port::from(port)),
        _ => Err(format!("`{item}` is not a port number from 0 to 65535")),
    };
    trimmed.split(',').map(port).collect::<Result<_, _>>().map(unique)
}

fn port_selection(text: &str) -> Result<Selection<Port>, String> {
    if text == "*" {
        return Ok(Selection::All);
    }
    let list = ports(text)?;
    Ok(if list.is_empty() { Selection::None } else { Selection::Only(list) })
}

fn interfaces(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let interface = |item: &str| {
        let name = item.trim();
        let mut bytes = name.bytes();
        let plain = bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
        if plain && name.len() <= MAX_INTERFACE {
            Ok(name.to_owned())
        } else {
            Err(format!(
                "`{item}` is not an interface: at most {MAX_INTERFACE} letters, digits, `_`, `.` and `-`, a letter first"
            ))
        }
    };
    text.split(',').map(interface).collect::<Result<_, _>>().map(unique)
}

/// Drops repeated items; the first of them stays.
fn unique<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut kept = Vec::with_capacity(items.len());
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// The proxy's user or group: its container's, or else the pod's, since that is then whom it really runs as. 0 and absent
/// both mean the default.
fn proxy_id(pod: &Pod, of: impl Fn(&SecurityContext) -> Option<i64>) -> Id {
    let of_container = pod.proxies().filter_map(|proxy| of(&proxy.security_context)).last();
    let stated = of_container.or_else(|| of(&pod.spec.security_context));
    let id = stated.and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
    Id::from(id.unwrap_or(DEFAULT_PROXY_ID))
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
