//! The CNI plugin `istio-cni`: started by the container runtime once per sandbox, as root, on the host.
//!
//! ADD decides about the pod, sets up redirection in the pod's network namespace when it is in the mesh, and hands the
//! previous plugin's result on. A pod that should be captured does not start uncaptured; a pod that is not ours is not
//! held up by anything of ours. No child process is started and no file of the host but the run directory is used.

mod add;
mod agent;
mod apply;
mod check;
pub mod codes;
pub mod config;
mod enrol;
pub mod http;
mod judge;
pub mod log;
mod notice;
pub mod panic;
pub mod plugin;
pub mod pod_get;
mod status;
pub mod stdin;

pub use plugin::{ABOUT, IstioCni};
