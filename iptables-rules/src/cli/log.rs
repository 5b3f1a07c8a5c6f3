//! The command's log: text or JSON lines with Istio's keys.
//!
//! Levels come as Istio's list `[scope:]level,…`; everything here is logged in scope `default`. A log that cannot be
//! written does not keep rules from being applied.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::SystemTime;

pub use sys::log::Level;
use sys::log::rfc3339_micros;

/// How to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Entries below it are dropped; `None` drops all.
    threshold: Option<Level>,
    json: bool,
    targets: Vec<String>,
}

impl LogOptions {
    /// From the flags' values.
    ///
    /// # Errors
    /// A sentence about the first level that is none.
    pub fn new(levels: &str, json: bool, targets: Vec<String>) -> Result<Self, String> {
        let mut threshold = Some(Level::Info);
        for (scope, level) in Self::levels(levels)? {
            if ["default", "all"].contains(&scope) {
                threshold = level;
            }
        }
        Ok(Self { threshold, json, targets })
    }

    /// Looks for mistakes in a list of levels.
    ///
    /// # Errors
    /// A sentence about the first level that is none.
    pub fn check_levels(levels: &str) -> Result<(), String> {
        Self::levels(levels).map(|_| ())
    }

    fn levels(levels: &str) -> Result<Vec<(&str, Option<Level>)>, String> {
        let item = |item| {
            let (scope, word) = str::split_once(item, ':').unwrap_or(("default", item));
            let level = match word {
                "debug" => Some(Level::Debug),
                "info" => Some(Level::Info),
                "warn" => Some(Level::Warn),
                "error" => Some(Level::Error),
                "fatal" | "none" => None,
                _ => {
                    let right = "debug, info, warn, error, fatal or none, with `scope:` in front or not";
                    return Err(format!("`{item}` is not a level: {right}"));
                }
            };
            Ok((scope, level))
        };
        levels.split(',').filter(|item| !item.is_empty()).map(item).collect()
    }
}

/// Where entries go.
#[derive(Debug)]
enum Sink {
    Stdout,
    Stderr,
    File(File),
}

/// Writes entries.
#[derive(Debug)]
pub struct Log {
    threshold: Option<Level>,
    json: bool,
    sinks: Vec<Sink>,
}

impl Log {
    /// Opens the targets.
    ///
    /// # Errors
    /// A sentence about the first file that cannot be opened.
    pub fn open(options: &LogOptions) -> Result<Self, String> {
        let sink = |target: &String| match target.as_str() {
            "stdout" => Ok(Sink::Stdout),
            "stderr" => Ok(Sink::Stderr),
            path => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                file.map(Sink::File).map_err(|error| format!("--log_target: {path} cannot be opened: {error}"))
            }
        };
        let sinks = options.targets.iter().map(sink).collect::<Result<_, _>>()?;
        Ok(Self { threshold: options.threshold, json: options.json, sinks })
    }

    /// Whether entries are JSON lines.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether entries of this level are written.
    pub fn wants(&self, level: Level) -> bool {
        self.threshold.is_some_and(|threshold| level >= threshold)
    }

    /// Whether a person at the terminal, or the reader of a container's log, sees an entry of this level.
    pub fn shows(&self, level: Level) -> bool {
        self.wants(level) && self.sinks.iter().any(|sink| matches!(sink, Sink::Stdout | Sink::Stderr))
    }

    /// Writes an entry.
    pub fn write(&self, level: Level, message: &str) {
        if !self.wants(level) {
            return;
        }
        let entry = entry(level, SystemTime::now(), message, self.json);
        for sink in &self.sinks {
            // Whoever closed it does not want to know.
            let _ = match sink {
                Sink::Stdout => io::stdout().write_all(entry.as_bytes()),
                Sink::Stderr => io::stderr().write_all(entry.as_bytes()),
                Sink::File(file) => (&*file).write_all(entry.as_bytes()),
            };
        }
    }

    /// Writes an entry at level info.
    pub fn info(&self, message: &str) {
        self.write(Level::Info, message);
    }

    /// Writes an entry at level warn.
    pub fn warn(&self, message: &str) {
        self.write(Level::Warn, message);
    }
}

fn entry(level: Level, now: SystemTime, message: &str, json: bool) -> String {
    let (level, time) = (level.as_str(), rfc3339_micros(now));
    if json {
        format!("{{\"level\":\"{level}\",\"time\":\"{time}\",\"msg\":\"{}\"}}\n", escaped(message))
    } else {
        format!("{time}\t{level}\t{message}\n")
    }
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(control));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_entry_is_text_or_a_json_line() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_577_836_800_356_374);
        assert_eq!(entry(Level::Info, time, "two\nlines", false), "2020-01-01T00:00:00.356374Z\tinfo\ttwo\nlines\n");
        assert_eq!(
            entry(Level::Warn, time, "a \"b\" \\\n\u{1}", true),
            "{\"level\":\"warn\",\"time\":\"2020-01-01T00:00:00.356374Z\",\"msg\":\"a \\\"b\\\" \\\\\\n\\u0001\"}\n"
        );
    }

    #[test]
    fn the_last_level_for_our_scope_counts() {
        let threshold = |levels: &str| LogOptions::new(levels, false, Vec::new()).map(|options| options.threshold);
        assert_eq!(threshold(""), Ok(Some(Level::Info)));
        assert_eq!(threshold("debug"), Ok(Some(Level::Debug)));
        assert_eq!(threshold("default:debug,ads:error"), Ok(Some(Level::Debug)));
        assert_eq!(threshold("default:debug,all:warn"), Ok(Some(Level::Warn)));
        assert_eq!(threshold("none"), Ok(None));
        for levels in ["verbose", "default:", "a:b:info", "default:INFO"] {
            assert!(threshold(levels).is_err(), "{levels}");
        }
    }

    #[test]
    fn a_target_that_cannot_be_opened_is_named() {
        let options = LogOptions::new("", false, vec!["/does/not/exist/log".to_owned()]).unwrap();
        assert!(Log::open(&options).unwrap_err().contains("--log_target: /does/not/exist/log"));
    }
}
