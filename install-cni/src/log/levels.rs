//! Levels of the log's scopes. They may change while the agent runs.
//!
//! `cni-agent` is all that this process logs, and `default` is another name of it; `cni-plugin` is what plugins hand to
//! us, and how much they do. Changed through the admin port (`admin`).

use std::sync::OnceLock;

use tokio::sync::watch::{Receiver, Sender};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::reload::Handle;

/// Scope of everything this process logs.
pub(super) const AGENT: &str = "cni-agent";
/// Scope of what plugins log.
pub(super) const PLUGIN: &str = "cni-plugin";
/// Another name of [`AGENT`].
pub(super) const DEFAULT: &str = "default";

/// The scopes, with what they are.
pub const SCOPES: [(&str, &str); 3] = [
    (DEFAULT, "another name of cni-agent"),
    (AGENT, "what the agent does on this node"),
    (PLUGIN, "what the plugin does with pods, in its own log and in the agent's"),
];

/// The least important entries that are written; of entries, how important they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// What happens.
    #[default]
    Info,
    /// What a person should look at.
    Warn,
    /// What does not work.
    Error,
    /// Nothing here is.
    Fatal,
    /// Nothing at all.
    None,
}

/// The level of every scope.
#[derive(Debug, Default)]
pub struct Levels {
    state: Sender<State>,
    /// What holds the level back in the log that was started, if one was.
    filter: OnceLock<Handle<LevelFilter, Registry>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    agent: Level,
    plugin: Level,
    /// The plugin's was set while the agent ran.
    plugin_changed: bool,
}

impl Level {
    const ALL: [Self; 6] = [Self::Debug, Self::Info, Self::Warn, Self::Error, Self::Fatal, Self::None];

    /// As a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Fatal => "fatal",
            Self::None => "none",
        }
    }

    /// From a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Debug => LevelFilter::DEBUG,
            Self::Info => LevelFilter::INFO,
            Self::Warn => LevelFilter::WARN,
            Self::Error | Self::Fatal => LevelFilter::ERROR,
            Self::None => LevelFilter::OFF,
        }
    }
}

impl Levels {
    /// With these to begin with.
    pub fn new(agent: Level, plugin: Level) -> Self {
        let state = State { agent, plugin, plugin_changed: false };
        Self { state: Sender::new(state), filter: OnceLock::new() }
    }

    /// The level of this process's own scope.
    pub fn agent(&self) -> Level {
        self.state.borrow().agent
    }

    /// The level of the plugin's scope.
    pub fn plugin(&self) -> Level {
        self.state.borrow().plugin
    }

    /// The same, if it was set while the agent ran.
    pub fn changed_plugin(&self) -> Option<Level> {
        let state = *self.state.borrow();
        state.plugin_changed.then_some(state.plugin)
    }

    /// The level of `scope`; `None` when there is no such scope.
    pub fn get(&self, scope: &str) -> Option<Level> {
        match scope {
            DEFAULT | AGENT => Some(self.agent()),
            PLUGIN => Some(self.plugin()),
            _ => None,
        }
    }

    /// Sets it from now on. False when there is no such scope.
    pub fn set(&self, scope: &str, level: Level) -> bool {
        match scope {
            DEFAULT | AGENT => self.state.send_modify(|state| state.agent = level),
            PLUGIN => self.state.send_modify(|state| (state.plugin, state.plugin_changed) = (level, true)),
            _ => return false,
        }
        if let Some(filter) = self.filter.get() {
            // It fails only when there is no log any more.
            let _ = filter.reload(self.agent().filter());
        }
        true
    }

    /// Hears of changes from now on.
    pub fn changes(&self) -> Receiver<impl Sized + use<>> {
        self.state.subscribe()
    }

    /// What lets entries of this process through.
    pub(super) fn layer(&self) -> tracing_subscriber::reload::Layer<LevelFilter, Registry> {
        let (layer, handle) = tracing_subscriber::reload::Layer::new(self.agent().filter());
        // A second log of one process is not started.
        let _ = self.filter.set(handle);
        layer
    }
}
