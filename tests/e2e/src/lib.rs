//! The product on real parts, in namespaces of its own: what `make demo` and `make e2e` are made of.
//!
//! The demo plays kubelet and API server itself and tells a story; `make e2e` has a real Kubernetes node instead, below
//! `kubernetes`. Who serves a pod's traffic, what a directory held before, and how a run ends are the same for both.

pub mod agent;
pub mod cluster;
pub mod failure;
pub mod images;
pub mod interrupt;
pub mod kubernetes;
pub mod mesh_pods;
pub mod plugin_log;
pub mod pods;
pub mod report;
pub mod run;
pub mod snapshot;
pub mod story;
pub mod traffic;
