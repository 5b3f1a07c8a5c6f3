//! The words that pass between the plugin and the agent, on disk or over a socket.
//!
//! Both sides link this crate, so that a file the agent writes and the plugin reads has one definition: the plugin's
//! element of the CNI list, the kubeconfig, and the names of the files in the run directory. No effects here.

pub mod kubeconfig;
pub mod paths;
pub mod plugin_config;

pub use kubeconfig::Kubeconfig;
pub use plugin_config::PluginConfig;
