//! A real one-node Kubernetes with our agent as a DaemonSet: what `make e2e` runs on and what it claims.
//!
//! `node` starts the components, `kubectl` speaks with them, `manifests` are what a user applies. Which program is
//! built from what is in `cluster/build.sh`, what runs how in `cluster/node.sh`.

pub mod kubectl;
pub mod machine;
pub mod manifests;
pub mod node;
pub mod pki;
pub mod pods;
pub mod presence;
pub mod rollout;
pub mod story;
