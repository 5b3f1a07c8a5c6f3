//! The CNI contract: what a runtime says to a plugin and what the plugin answers.
//!
//! Versions 0.1.0 to 1.1.0 of the specification: verbs, environment, configuration, results, errors. Nothing here knows
//! what the plugin does; a plugin implements [`Plugin`] and hands itself to [`dispatch::run`] with its environment and
//! streams. No effects besides the streams it is given.

pub mod args;
pub mod config;
pub mod dispatch;
pub mod error;
pub mod result;
pub mod verb;
pub mod version;

pub use args::PodArgs;
pub use config::NetConf;
pub use dispatch::{About, Input, Plugin, Request};
pub use error::Error;
pub use verb::Verb;
pub use version::Version;
