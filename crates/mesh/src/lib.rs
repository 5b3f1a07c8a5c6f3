//! What we decide about a pod: is it ours, and what should its traffic do?
//!
//! Pure: from names or a pod as Kubernetes describes it to a decision with its reason, and from annotations to the
//! settings of the rule engine. The plugin, the agent and repair all ask here, so that they cannot disagree. Nothing
//! is read and nothing is done.

pub mod ambient;
pub mod decide;
pub mod names;
pub mod pod;
pub mod redirect;
pub mod selectors;

pub use decide::{Decision, SkipReason, decide, decide_by_name};
pub use pod::{Namespace, Pod};
pub use redirect::{InvalidAnnotation, Redirect, Warning};
pub use selectors::{InvalidSelector, Labels, Selectors};
