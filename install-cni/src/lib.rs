//! The agent of one node: installs the Istio CNI plugin and keeps it there.
//!
//! Sidecar mode for now. `args` makes a [`config::Config`]; `app` is the main loop; `install` does the work on the
//! node; `health` answers probes; `watch` wakes the loop; `shutdown` ends it.

pub mod app;
pub mod args;
pub mod config;
pub mod health;
pub mod install;
pub mod log;
pub mod shutdown;
pub mod watch;
