//! The event by which a plugin hands an ambient pod to the agent, on `pluginevent.sock`: `POST /cmdadd`.
//!
//! Format and path are Istio's, since either side may be Istio's own during an upgrade. Its agent ignores further keys,
//! so ours has two more, by which an agent knows a pod from an earlier one of the same name.

use serde::{Deserialize, Serialize};

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
