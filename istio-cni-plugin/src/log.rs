//! The plugin's log: JSON lines on stderr and, once the run directory is known, in a rolling file there.
//!
//! Nothing is ever logged to stdout, which belongs to the runtime, and a token never at all. A log that cannot be
//! written stops no pod.

mod file;

use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use agent_api::paths;
use cni::Request;
use serde_json::{Map, Value};
use sys::log::rfc3339_micros;

use file::LogFile;

pub use sys::log::Level;

/// Writes entries with the labels it was given so far.
#[derive(Debug)]
pub struct Logger {
    /// Entries below it are dropped; `None` drops all.
    threshold: Option<Level>,
    labels: Map<String, Value>,
    file: Option<LogFile>,
}

impl Logger {
    /// A log at level info on stderr alone.
    pub fn to_stderr() -> Self {
        Self { threshold: Some(Level::Info), labels: Map::new(), file: None }
    }

    /// The same, with the labels of a call about one sandbox.
    pub fn of(request: &Request) -> Self {
        let mut log = Self::to_stderr();
        log.label("container_id", request.container_id.as_str());
        log.label("netns", request.netns.as_str());
        log.label("if", request.ifname.as_str());
        log
    }

    /// Takes the level from the configuration, and adds the file in `run_dir` if that directory exists.
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
        if run_dir.is_dir() {
            self.file = Some(LogFile::new(&paths::plugin_log(run_dir)));
        }
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
        if !self.wants(level) {
            return;
        }
        let line = entry(level, SystemTime::now(), message, &self.labels);
        // Whoever closed stderr does not want to know.
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.append(line.as_bytes())) {
            // Told once: the next entries would fail in the same way.
            let path = self.file.take().map(|file| file.path().display().to_string()).unwrap_or_default();
            let message = format!("log file {path} cannot be written: {error}");
            let line = entry(Level::Warn, SystemTime::now(), &message, &self.labels);
            let _ = std::io::stderr().write_all(line.as_bytes());
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
