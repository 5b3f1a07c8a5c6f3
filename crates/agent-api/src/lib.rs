//! The words that pass between the plugin and the agent, on disk or over a socket.
//!
//! Both sides link this crate, so that a file the agent writes and the plugin reads has one definition: the plugin's
//! element of the CNI list, the kubeconfig, and the names of the files in the run directory. The same holds for what
//! they say to each other over the sockets there, each an HTTP/1.1 request with a JSON body. No effects here.

pub mod ask;
pub mod event;
pub mod kubeconfig;
pub mod logs;
pub mod paths;
pub mod plugin_config;

pub use ask::{Answer, Question, Redirection, Verdict};
pub use event::Event;
pub use kubeconfig::Kubeconfig;
pub use plugin_config::PluginConfig;
