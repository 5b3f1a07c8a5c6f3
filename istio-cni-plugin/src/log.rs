//! The plugin's log: JSON lines on stderr and, once the run directory is known, in a rolling file there; and to the agent,
//! whose log people read, all at once at the end and before each wait.
//!
//! Nothing is ever logged to stdout, which belongs to the runtime, and a token never at all. A log that cannot be
//! written stops no pod.

mod file;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use agent_api::{logs, paths};
use cni::{Request, Verb};
use serde_json::{Map, Value};
use sys::log::rfc3339_micros;

use crate::http::{HttpError, post_and_leave};
use file::LogFile;

pub use sys::log::Level;

/// How long the agent may take to take entries in. They are on the disk as well, and a pod is waiting.
const SEND_PATIENCE: Duration = Duration::from_millis(100);

/// Writes entries with the labels it was given so far.
#[derive(Debug)]
pub struct Logger {
    /// Entries below it are dropped; `None` drops all.
    threshold: Option<Level>,
    labels: Map<String, Value>,
    file: Option<LogFile>,
    /// Socket of the agent that takes entries.
    sink: Option<PathBuf>,
    /// Entries that the agent does not have yet.
    unsent: Vec<String>,
}

impl Logger {
    /// A log at level info on stderr alone.
    pub fn to_stderr() -> Self {
        Self { threshold: Some(Level::Info), labels: Map::new(), file: None, sink: None, unsent: Vec::new() }
    }

    /// The same, with the labels of a call about one sandbox.
    pub fn of(verb: Verb, request: &Request) -> Self {
        let mut log = Self::to_stderr();
        log.label("verb", verb.as_str());
        log.label("container_id", request.container_id.as_str());
        log.label("netns", request.netns.as_str());
        log.label("if", request.ifname.as_str());
        log
    }

    /// Takes the level from the configuration, and adds the file and the agent's socket in `run_dir`, if they are there.
    ///
    /// The words are Istio's, and so is that an unknown one silences the log.
    pub fn configure(&mut self, level: &str, run_dir: &Path) {
        self.threshold = match level {
            "debug" => Some(Level::Debug),
            "" | "info" => Some(Level::Info),
            "warn" => Some(Level::Warn),
            "error" => Some(Level::Error),
            _ => None,
        };
        self.file = Some(LogFile::new(&paths::plugin_log(run_dir)));
        self.sink = Some(paths::log_socket(run_dir));
    }

    /// Adds a label to all further entries.
    pub fn label(&mut self, key: &str, value: impl Into<Value>) {
        self.labels.insert(key.to_owned(), value.into());
    }

    /// Whether an entry of this level is written at all.
    pub fn wants(&self, level: Level) -> bool {
        self.threshold.is_some_and(|threshold| level >= threshold)
    }

    /// Writes an entry.
    pub fn write(&mut self, level: Level, message: &str) {
        let line = self.write_line(level, message);
        self.unsent.extend(line);
    }

    /// Writes an entry that the agent has already.
    pub fn write_here(&mut self, level: Level, message: &str) {
        self.write_line(level, message);
    }

    /// Writes an entry to stderr and into the file, if it is one of the wanted ones.
    fn write_line(&mut self, level: Level, message: &str) -> Option<String> {
        if !self.wants(level) {
            return None;
        }
        let line = entry(level, SystemTime::now(), message, &self.labels);
        // Whoever closed stderr does not want to know.
        let _ = io::stderr().write_all(line.as_bytes());
        match self.file.as_mut().map(|file| file.append(line.as_bytes())) {
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => self.file = None,
            Some(Err(error)) => {
                // Told once: the next entries would fail in the same way.
                let path = self.file.take().map(|file| file.path().display().to_string()).unwrap_or_default();
                self.write(Level::Warn, &format!("log file {path} cannot be written: {error}"));
            }
            Some(Ok(())) | None => {}
        }
        Some(line)
    }

    /// Sends the agent what it does not have yet. No agent, or one that does not take it in time, is nobody's failure.
    pub fn send(&mut self) {
        let Some(sink) = self.sink.as_ref().filter(|_| !self.unsent.is_empty()) else { return };
        let batch = logs::render(self.unsent.iter().map(String::as_str));
        match post_and_leave(sink, logs::LOG_PATH, &batch, Instant::now() + SEND_PATIENCE) {
            Ok(()) => self.unsent.clear(),
            Err(HttpError::Connect { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                // It starts, or an agent without a sink. There may be one after the next wait.
            }
            Err(error) => {
                let path = self.sink.take().map(|path| path.display().to_string()).unwrap_or_default();
                self.write(Level::Warn, &format!("the agent does not take log entries on {path}: {error}"));
            }
        }
    }
}

fn entry(level: Level, now: SystemTime, message: &str, labels: &Map<String, Value>) -> String {
    let mut object = Map::new();
    object.insert("level".to_owned(), level.as_str().into());
    object.insert("time".to_owned(), rfc3339_micros(now).into());
    object.insert("msg".to_owned(), message.into());
    object.extend(labels.iter().map(|(key, value)| (key.clone(), value.clone())));
    format!("{}\n", Value::Object(object))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_entry_is_one_line_with_level_time_message_and_labels() {
        let mut labels = Map::new();
        labels.insert("pod".to_owned(), "shop/web".into());
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_577_836_800_356_374);
        assert_eq!(
            entry(Level::Warn, time, "two\nlines", &labels),
            "{\"level\":\"warn\",\"time\":\"2020-01-01T00:00:00.356374Z\",\"msg\":\"two\\nlines\",\"pod\":\"shop/web\"}\n"
        );
    }

    #[test]
    fn levels_are_istios_words() {
        let wanted = |word: &str| {
            let mut log = Logger::to_stderr();
            log.configure(word, Path::new("/does/not/exist"));
            [Level::Debug, Level::Info, Level::Warn, Level::Error].into_iter().filter(|&level| log.wants(level)).count()
        };
        let words = ["debug", "info", "", "warn", "error", "fatal", "none", "verbose"];
        assert_eq!(words.map(wanted), [4, 3, 3, 2, 1, 0, 0, 0]);
    }
}
