//! Questions to the agent on `agent.sock`, and its answers.
//!
//! Each is `POST` with a JSON body. Keys may be added: both sides ignore those they do not know, and take a default for
//! those that are absent, so that plugin and agent of different versions understand each other. An agent that cannot
//! answer says so ([`Verdict::Unknown`], or any status but 200), and the plugin finds out by itself.

use serde::{Deserialize, Serialize};

/// ADD and CHECK: what becomes of this pod? Body: [`Question`], answer: [`Answer`].
pub const VERDICT_PATH: &str = "/v1/verdict";
/// DEL: this sandbox goes. Body: [`Question`], answer: 200 with nothing.
pub const GONE_PATH: &str = "/v1/gone";
/// GC: these sandboxes are the only ones. Body: [`Attachments`], answer: 200 with nothing.
pub const ATTACHMENTS_PATH: &str = "/v1/attachments";
/// Largest body in either direction, in bytes. Far more than any setting of a pod takes.
pub const MAX_BODY: usize = 1 << 20;

/// A sandbox, as far as the runtime described it. What it did not say is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Question {
    /// `ADD`, `CHECK` or `DEL`.
    pub verb: String,
    /// Name of the pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID, from `K8S_POD_UID`. A static pod has the hash of its manifest here.
    pub uid: String,
    /// Id of the sandbox.
    pub container_id: String,
    /// Path of the network namespace, as the host sees it.
    pub netns: String,
    /// Interface in the sandbox.
    pub ifname: String,
    /// Addresses with their prefix length, from the previous result.
    pub ips: Vec<String>,
}

/// The agent's answer about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why, as one word: with [`Verdict::Skip`] a reason to leave the pod alone, with [`Verdict::Unknown`] what the
    /// agent lacks.
    pub reason: String,
    /// With [`Verdict::Redirect`]: how.
    #[serde(skip_serializing_if = "is_default")]
    pub redirection: Redirection,
    /// With [`Verdict::Refuse`]: what is wrong with the pod and what to do about it.
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
    /// Things that are odd about the pod, a sentence each, for the log.
    #[serde(skip_serializing_if = "is_default")]
    pub warnings: Vec<String>,
    /// With [`Verdict::Skip`]: the agent has written and counted it as the outcome of the call, so that the plugin need
    /// not tell it.
    #[serde(skip_serializing_if = "is_default")]
    pub recorded: bool,
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is left alone.
    Skip,
    /// Its traffic is redirected to its sidecar.
    Redirect,
    /// It is to be redirected, but asks for what cannot be done: it must not start.
    Refuse,
    /// The agent does not know, or says what this version has no word for.
    #[default]
    #[serde(other)]
    Unknown,
}

/// How a pod's traffic is redirected: the values of Istio's annotations, lists as comma texts, under the names that
/// Istio's plugin logs them with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Redirection {
    /// Port of the proxy for outbound connections.
    pub target_port: String,
    /// `REDIRECT` or `TPROXY`.
    pub redirect_mode: String,
    /// User of the proxy.
    pub no_redirect_uid: String,
    /// Group of the proxy.
    pub no_redirect_gid: String,
    /// Outbound destinations to capture.
    pub include_ip_cidrs: String,
    /// Outbound destinations never captured.
    pub exclude_ip_cidrs: String,
    /// Inbound ports to capture.
    pub include_inbound_ports: String,
    /// Inbound ports never captured.
    pub exclude_inbound_ports: String,
    /// Outbound ports captured whatever the destination.
    pub include_outbound_ports: String,
    /// Outbound ports never captured.
    pub exclude_outbound_ports: String,
    /// Interfaces never captured.
    pub exclude_interfaces: String,
    /// Interfaces whose incoming traffic counts as outbound.
    pub reroute_virtual_interfaces: String,
    /// Capture DNS.
    pub dns_redirect: bool,
    /// IPv6 rules even if the first address is an IPv4 one.
    pub dual_stack: bool,
    /// Drop packets that connection tracking calls invalid.
    pub invalid_drop: bool,
    /// Refuse a family of addresses that is not captured.
    #[serde(skip_serializing_if = "is_default")]
    pub refuse_uncaptured: bool,
}

/// The sandboxes of a network that the runtime still has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachments {
    /// Name of the network.
    pub network: String,
    /// All valid attachments.
    pub valid: Vec<Attachment>,
}

/// One attachment, with the keys of the CNI specification.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// Id of the sandbox.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Interface in the sandbox.
    pub ifname: String,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_says_is_understood_as_far_as_it_goes() {
        let newer = r#"{"verdict":"enrolled-elsewhere","reason":"x","more":{"a":[1]}}"#;
        let answer: Answer = serde_json::from_str(newer).unwrap();
        assert_eq!((answer.verdict, answer.reason.as_str()), (Verdict::Unknown, "x"));
        assert_eq!(serde_json::from_str::<Answer>("{}").unwrap(), Answer::default());
        assert_eq!(serde_json::from_str::<Question>(r#"{"pod":"a","node":"n"}"#).unwrap().pod, "a");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let answer = Answer {
            verdict: Verdict::Redirect,
            redirection: Redirection { target_port: "15001".to_owned(), dual_stack: true, ..Redirection::default() },
            ..Answer::default()
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert!(text.starts_with(r#"{"verdict":"redirect""#), "{text}");
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
    }
}
