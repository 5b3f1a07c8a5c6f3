//! Error codes of the plugin, beside those of the specification in [`cni::error::code`].
//!
//! | Code | Meaning | Who can help |
//! | --- | --- | --- |
//! | 1, 4, 6, 7 | call, `CNI_ARGS` or configuration invalid | runtime or CNI list |
//! | 5 | the kubeconfig cannot be read (CHECK: 11) | the agent on this node |
//! | 6 | the kubeconfig cannot be understood (CHECK: 11) | the agent on this node |
//! | 8 | the network namespace is the host's, or cannot be opened | runtime |
//! | 11 | the API server or the agent cannot be reached or fails, or the runtime gave up | passes by itself, or the node's network |
//! | 50 | STATUS: pods could not be looked up | the agent on this node |
//! | 100 … | see below | |

/// A defect of the plugin.
pub const INTERNAL: u32 = 100;
/// The API server refuses the credentials (401) or what we may do with them (403).
pub const CREDENTIALS_REFUSED: u32 = 101;
/// The API server does not know the pod.
pub const POD_NOT_FOUND: u32 = 102;
/// An annotation of the pod cannot be understood or carried out.
pub const INVALID_ANNOTATION: u32 = 103;
/// The rules could not be set up in the pod's network namespace.
pub const RULES: u32 = 104;
/// The agent refuses to enrol a pod of ambient mode.
pub const AGENT: u32 = 105;
/// CHECK: the rules in the pod's network namespace are not those that the pod asks for.
pub const RULES_DIFFER: u32 = 106;
