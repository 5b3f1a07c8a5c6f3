//! From settings to packet rules: `config` → `plan` → `render` → `apply`.
//!
//! Everything but `apply` is pure: it turns values into values and can be tested without privileges. The rule set is
//! the one of Istio's sidecar redirection; what it means is told in `docs/rules.md`.

pub mod config;
pub mod model;
pub mod nft;
pub mod plan;
pub mod render;
pub mod state;

#[cfg(feature = "apply")]
pub mod apply;

#[cfg(feature = "cli")]
pub mod cli;

#[cfg(feature = "cli")]
pub mod validate;
