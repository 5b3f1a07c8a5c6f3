//! The event by which a plugin hands an ambient pod to the agent, on `pluginevent.sock`: `POST /cmdadd`.
//!
//! Format and path are Istio's, since either side may be Istio's own during an upgrade. Its agent ignores further keys,
//! so ours has two more, by which an agent knows a pod from an earlier one of the same name.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::ask::Question;

/// Path of the event.
pub const EVENT_PATH: &str = "/cmdadd";

/// An ambient pod whose sandbox is being set up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Event {
    /// Path of the network namespace, as the host sees it.
    pub netns: String,
    /// Name of the pod.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its addresses; `null` when the previous plugin gave none.
    #[serde(rename = "IPs")]
    pub ips: Option<Vec<EventIp>>,
    /// UID of the pod; empty when the runtime did not say.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Id of the sandbox; empty when it is not known.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
}

/// An address of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EventIp {
    /// Index of its interface in the previous result.
    pub interface: Option<i64>,
    /// Address and mask.
    pub address: EventAddress,
    /// Gateway, or empty.
    pub gateway: String,
}

/// Address and mask.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EventAddress {
    /// The address as text.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The 4 or 16 bytes of the mask in base64; `null` when there is none.
    pub mask: Option<String>,
}

/// A previous result whose addresses cannot be handed on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidAddress {
    /// It is not JSON.
    #[error("prevResult is not JSON")]
    NotJson,
    /// Something else stands where an address should.
    #[error("prevResult has the address `{0}`, which is not an IP address with the length of its prefix")]
    Address(String),
}

impl Event {
    /// The event about `sandbox`, whose previous plugin said `prev_result`, a CNI result in any version.
    ///
    /// # Errors
    /// The previous result has an address that is none.
    pub fn new(sandbox: &Question, prev_result: Option<&str>) -> Result<Self, InvalidAddress> {
        Ok(Self {
            netns: sandbox.netns.clone(),
            pod_name: sandbox.pod.clone(),
            pod_namespace: sandbox.namespace.clone(),
            ips: prev_result.map(ips).transpose()?.filter(|ips| !ips.is_empty()),
            pod_uid: sandbox.uid.clone(),
            container_id: sandbox.container_id.clone(),
        })
    }
}

/// The addresses of a CNI result as texts such as `10.0.0.2/24`; none of what is no result.
pub fn addresses(prev_result: &str) -> Vec<String> {
    let result: Value = serde_json::from_str(prev_result).unwrap_or_default();
    entries(&result).into_iter().map(|(_, address)| address.to_owned()).collect()
}

/// The entries of a CNI result that have an address, with it: a list, or before 0.3.0 at most one of each family.
fn entries(result: &Value) -> Vec<(&Value, &str)> {
    let list = result.get("ips").and_then(Value::as_array).into_iter().flatten().map(|ip| (ip, "address"));
    let pair = ["ip4", "ip6"].into_iter().filter_map(|key| result.get(key)).filter(|ip| !ip.is_null());
    list.chain(pair.map(|ip| (ip, "ip"))).map(|(ip, key)| (ip, text(ip, key))).collect()
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn ips(result: &str) -> Result<Vec<EventIp>, InvalidAddress> {
    let result: Value = serde_json::from_str(result).map_err(|_| InvalidAddress::NotJson)?;
    let ip = |(ip, address): (&Value, &str)| {
        let address = EventAddress::parse(address).ok_or_else(|| InvalidAddress::Address(address.to_owned()))?;
        let interface = ip.get("interface").and_then(Value::as_i64);
        Ok(EventIp { interface, address, gateway: text(ip, "gateway").to_owned() })
    };
    entries(&result).into_iter().map(ip).collect()
}

impl EventAddress {
    /// Reads `10.0.0.2/24`, or an address alone.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let ip: IpAddr = address.parse().ok()?;
        let mask = match prefix {
            None => None,
            Some(prefix) => {
                let size = if ip.is_ipv4() { 4 } else { 16 };
                let prefix = prefix.parse::<usize>().ok().filter(|prefix| *prefix <= 8 * size)?;
                Some(base64(&mask(prefix, size)))
            }
        };
        Some(Self { ip: ip.to_string(), mask })
    }
}

/// The `size` bytes of a mask whose first `prefix` bits are set.
fn mask(prefix: usize, size: usize) -> Vec<u8> {
    let byte = |index: usize| !u8::MAX.checked_shr(prefix.saturating_sub(8 * index).min(8) as u32).unwrap_or(0);
    (0..size).map(byte).collect()
}

/// Base64 with padding. Masks are all that is written so here; that needs no library.
fn base64(bytes: &[u8]) -> String {
    let digit = |six_bits: u32| match six_bits as u8 {
        n @ 0..=25 => b'A' + n,
        n @ 26..=51 => b'a' + n - 26,
        n @ 52..=61 => b'0' + n - 52,
        62 => b'+',
        _ => b'/',
    };
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let end = place > group.len();
            text.push(if end { '=' } else { digit(bits >> (18 - 6 * place) & 63).into() });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(address: &str) -> Option<String> {
        EventAddress::parse(address).unwrap().mask
    }

    #[test]
    fn masks_are_base64_of_their_bytes() {
        for (address, mask) in [
            ("10.0.0.2/0", "AAAAAA=="),
            ("10.0.0.2/1", "gAAAAA=="),
            ("10.0.0.2/22", "///8AA=="),
            ("10.0.0.2/24", "////AA=="),
            ("10.0.0.2/32", "/////w=="),
            ("fd00::2/64", "//////////8AAAAAAAAAAA=="),
            ("fd00::2/77", "////////////+AAAAAAAAA=="),
            ("fd00::2/128", "/////////////////////w=="),
        ] {
            assert_eq!(masks(address).as_deref(), Some(mask), "{address}");
        }
        assert_eq!(masks("10.0.0.2"), None);
        assert_eq!(EventAddress::parse("FD00:0::2/64").unwrap().ip, "fd00::2");
    }

    #[test]
    fn every_version_of_a_result_gives_its_addresses() {
        let sandbox = Question { pod: "p".to_owned(), uid: "u".to_owned(), ..Question::default() };
        let ips = |result| Event::new(&sandbox, result).unwrap().ips;
        let new = ips(Some(
            r#"{"ips":[{"address":"10.0.0.2/24","interface":1,"gateway":"10.0.0.1"},
            {"address":"fd00::2/64","interface":null}]}"#,
        ));
        let expected = [("10.0.0.2", Some(1), "10.0.0.1"), ("fd00::2", None, "")];
        let read: Vec<_> = new.unwrap().into_iter().map(|ip| (ip.address.ip, ip.interface, ip.gateway)).collect();
        assert_eq!(read, expected.map(|(ip, interface, gateway)| (ip.to_owned(), interface, gateway.to_owned())));
        let old = ips(Some(r#"{"ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1"},"ip6":null}"#)).unwrap();
        assert_eq!((old.len(), old[0].interface, old[0].gateway.as_str()), (1, None, "10.0.0.1"));
        for none in [None, Some("{}"), Some(r#"{"ips":[]}"#), Some(r#"{"ips":null}"#)] {
            assert_eq!(ips(none), None);
        }
    }

    #[test]
    fn an_address_that_is_none_is_named() {
        for address in ["", "10.0.0.2/33", "10.0.0.2/-1", "fd00::2/129", "10.0.0/8", "host/24", "10.0.0.2/"] {
            let result = format!(r#"{{"ips":[{{"address":"{address}"}}]}}"#);
            let error = Event::new(&Question::default(), Some(&result)).unwrap_err();
            assert_eq!(error, InvalidAddress::Address(address.to_owned()));
        }
        assert_eq!(Event::new(&Question::default(), Some("nope")).unwrap_err(), InvalidAddress::NotJson);
    }
}
