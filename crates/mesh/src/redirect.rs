//! From a pod's annotations, and its proxy's variables and user, to settings of the rule engine.
//!
//! An annotation that is there but empty is not the same as one that is absent: it overrides the default. Lists become
//! canonical: trimmed, each item once. Whether the kernel can carry a setting out is not judged here; a literal `*`
//! among excluded ports passes, and the rule engine refuses it.

use iptables_rules::config::values::join;
use iptables_rules::config::{Cidr, DEFAULT_PROXY_ID, Id, Mode, Port, Selection, Settings};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::decide::parse_bool;
use crate::names::{
    DNS_CAPTURE, DUAL_STACK, EXCLUDE_INBOUND_PORTS, EXCLUDE_INTERFACES, EXCLUDE_OUTBOUND_IP_RANGES,
    EXCLUDE_OUTBOUND_PORTS, INCLUDE_INBOUND_PORTS, INCLUDE_OUTBOUND_IP_RANGES, INCLUDE_OUTBOUND_PORTS,
    INTERCEPTION_MODE, INVALID_DROP, KUBEVIRT_INTERFACES, REROUTE_VIRTUAL_INTERFACES,
};
use crate::pod::{Container, Pod};

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
    /// What was odd on the way, for the log.
    pub warnings: Vec<Warning>,
}

impl Redirect {
    /// Reads a pod that is to be redirected.
    ///
    /// # Errors
    /// The first annotation, in Istio's order of reading, that is invalid.
    pub fn from_pod(pod: &Pod) -> Result<Self, InvalidAnnotation> {
        let mode = read(pod, INTERCEPTION_MODE, "REDIRECT", mode)?;
        let outbound_cidrs = read(pod, INCLUDE_OUTBOUND_IP_RANGES, "*", cidr_selection)?;
        let outbound_cidrs_exclude = read(pod, EXCLUDE_OUTBOUND_IP_RANGES, "", cidrs)?;
        let mut inbound_ports_exclude = read(pod, EXCLUDE_INBOUND_PORTS, DEFAULT_EXCLUDE_PORTS, ports)?;
        inbound_ports_exclude.extend(PROXY_PORTS.map(Port::from));
        let inbound_ports = read(pod, INCLUDE_INBOUND_PORTS, "*", port_selection)?;
        let outbound_ports_exclude = read(pod, EXCLUDE_OUTBOUND_PORTS, DEFAULT_EXCLUDE_PORTS, ports)?;
        let outbound_ports = read(pod, INCLUDE_OUTBOUND_PORTS, "", ports)?;
        let exclude_interfaces = read(pod, EXCLUDE_INTERFACES, "", interfaces)?;
        let virtual_key = match pod.annotation(REROUTE_VIRTUAL_INTERFACES) {
            Some(_) => REROUTE_VIRTUAL_INTERFACES,
            None => KUBEVIRT_INTERFACES,
        };
        let virtual_interfaces = read(pod, virtual_key, "", interfaces)?;

        let mut warnings = Vec::new();
        let mut flag = |variable: &'static str| {
            let Some(value) = pod.proxy_env(variable) else { return false };
            parse_bool(value).unwrap_or_else(|| {
                warnings.push(Warning { variable, value: value.to_owned() });
                false
            })
        };
        let redirect_dns = flag(DNS_CAPTURE);
        let dual_stack = flag(DUAL_STACK);
        let drop_invalid = flag(INVALID_DROP);
        let settings = Settings {
            proxy_uids: vec![proxy_id(pod, |proxy| proxy.security_context.run_as_user)],
            proxy_gids: vec![proxy_id(pod, |proxy| proxy.security_context.run_as_group)],
            mode,
            inbound_ports,
            inbound_ports_exclude: unique(inbound_ports_exclude),
            outbound_cidrs,
            outbound_cidrs_exclude,
            outbound_ports,
            outbound_ports_exclude,
            exclude_interfaces,
            virtual_interfaces,
            redirect_dns,
            // A pod's DNS is captured wholly or not at all: its resolv.conf is not ours to read.
            capture_all_dns: redirect_dns,
            drop_invalid,
            dual_stack,
            ..Settings::default()
        };
        Ok(Self { settings, warnings })
    }

    /// What came from the pod, lists as comma texts, under the names that Istio's plugin uses: for logs and
    /// comparisons.
    pub fn to_json(&self) -> Map<String, Value> {
        let settings = &self.settings;
        let texts: [(&str, String); 12] = [
            ("target_port", settings.proxy_port.to_string()),
            ("redirect_mode", settings.mode.as_str().to_owned()),
            ("no_redirect_uid", join(&settings.proxy_uids)),
            ("no_redirect_gid", join(&settings.proxy_gids)),
            ("include_ip_cidrs", settings.outbound_cidrs.to_string()),
            ("exclude_ip_cidrs", join(&settings.outbound_cidrs_exclude)),
            ("include_inbound_ports", settings.inbound_ports.to_string()),
            ("exclude_inbound_ports", join(&settings.inbound_ports_exclude)),
            ("include_outbound_ports", join(&settings.outbound_ports)),
            ("exclude_outbound_ports", join(&settings.outbound_ports_exclude)),
            ("exclude_interfaces", settings.exclude_interfaces.join(",")),
            ("reroute_virtual_interfaces", settings.virtual_interfaces.join(",")),
        ];
        let flags = [
            ("dns_redirect", settings.redirect_dns),
            ("dual_stack", settings.dual_stack),
            ("invalid_drop", settings.drop_invalid),
        ];
        let texts = texts.into_iter().map(|(key, text)| (key.to_owned(), Value::from(text)));
        texts.chain(flags.into_iter().map(|(key, flag)| (key.to_owned(), Value::from(flag)))).collect()
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

/// Reads one annotation, or the default when it is absent.
fn read<T>(
    pod: &Pod,
    annotation: &'static str,
    default: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, InvalidAnnotation> {
    let value = pod.annotation(annotation).unwrap_or(default);
    parse(value).map_err(|reason| InvalidAnnotation { annotation, value: value.to_owned(), reason })
}

fn mode(text: &str) -> Result<Mode, String> {
    [Mode::Redirect, Mode::Tproxy]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| "it must be REDIRECT, TPROXY or NONE".to_owned())
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

/// The proxy's user or group. 0 and absent both mean the default.
fn proxy_id(pod: &Pod, of: impl Fn(&Container) -> Option<i64>) -> Id {
    let stated = pod.proxies().filter_map(of).last();
    let id = stated.and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
    Id::from(id.unwrap_or(DEFAULT_PROXY_ID))
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
