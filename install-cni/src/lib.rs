//! The agent of one node: installs the Istio CNI plugin and keeps it there.
//!
//! Sidecar mode for now. `args` makes a [`config::Config`]; `app` is the main loop; `install` does the work on the
//! node; `health` answers probes; `watch` wakes the loop; `shutdown` ends it, and asks `daemonset` whether for good.
//!
//! Beside it, and never in its way (`beside`): `pods` knows the pods of the node, `sockets` answers plugins (`answer`)
//! and takes their log, `metrics` counts, `admin` changes log levels, `credential` gets
//! the plugin a token of its own, `pod_events` tells pods about traffic outside the mesh, through `cluster`.

pub mod admin;
pub mod answer;
pub mod app;
pub mod args;
pub mod beside;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod credential;
pub mod daemonset;
pub mod health;
pub mod install;
pub mod log;
pub mod metrics;
pub mod pod_events;
pub mod pods;
pub mod shutdown;
pub mod sockets;
pub mod watch;
