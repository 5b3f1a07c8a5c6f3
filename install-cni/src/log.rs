//! The agent's log: one line per event, as text or as JSON with Istio's keys.
//!
//! Levels come as Istio's list `[scope:]level,…`. All that happens here has the scope `cni-agent`; what is asked for
//! `cni-plugin` goes into the plugin's configuration, and holds for what plugins hand to us ([`plugin`]). A level
//! without scope holds for both unless they are named. They can be changed later ([`levels`]).

pub mod levels;
pub mod plugin;

use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};

use self::levels::{AGENT, DEFAULT, Level, Levels, PLUGIN};

/// How to log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Levels of this process and of the plugin.
    pub levels: Arc<Levels>,
    /// JSON lines.
    pub json: bool,
    /// To stderr instead of stdout.
    pub stderr: bool,
    /// What could not be understood.
    pub problems: Vec<String>,
}

impl LogOptions {
    /// From the flags: a comma list of levels, JSON or not, and targets.
    pub fn new(levels: &str, json: bool, targets: &[String]) -> Self {
        let mut options = Self {
            levels: Arc::default(),
            json,
            stderr: targets.iter().any(|target| target == "stderr"),
            problems: Vec::new(),
        };
        options.take_levels(levels);
        for target in targets.iter().filter(|target| !["stdout", "stderr"].contains(&target.as_str())) {
            options.problems.push(format!("log target {target} is not supported; stdout and stderr are"));
        }
        options
    }

    /// Starts logging. To be called once.
    pub fn start(&self) {
        let writer = if self.stderr { BoxMakeWriter::new(io::stderr) } else { BoxMakeWriter::new(io::stdout) };
        let lines = layer().with_writer(writer).event_format(Line { json: self.json });
        let subscriber = Registry::default().with(self.levels.layer()).with(lines);
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            for problem in &self.problems {
                tracing::error!(cause = problem, "log setting ignored");
            }
        }
    }

    /// Applied from left to right up to the first unknown level, as Istio does.
    fn take_levels(&mut self, levels: &str) {
        let items: Vec<_> = levels.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        let named =
            |scope: &str| items.iter().any(|item| item.strip_prefix(scope).is_some_and(|rest| rest.starts_with(':')));
        let (agent_named, plugin_named) = (named(AGENT), named(PLUGIN));
        let (mut agent, mut plugin) = (Level::default(), Level::default());
        for item in &items {
            let (scope, level) = item.split_once(':').unwrap_or(("", item));
            let Some(level) = Level::parse(level) else {
                self.problems.push(format!("unknown log level {item:?}; it and what follows it is ignored"));
                break;
            };
            let everyone = scope == "all";
            if everyone || scope == AGENT || ["", DEFAULT].contains(&scope) && !agent_named {
                agent = level;
            }
            if everyone || scope == PLUGIN || scope.is_empty() && !plugin_named {
                plugin = level;
            }
        }
        self.levels = Arc::new(Levels::new(agent, plugin));
    }
}

/// One event, one line.
struct Line {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG | tracing::Level::TRACE => "debug",
        };
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        writer.write_str(&line(self.json, [level, &time, AGENT, &fields.message], fields.labels))
    }
}

/// One line with its line break, from level, time, scope and message. In JSON, labels cannot stand for those.
fn line(json: bool, head: [&str; 4], labels: Map<String, Value>) -> String {
    let [level, time, scope, message] = head;
    if json {
        let own = [("level", level), ("time", time), ("scope", scope), ("msg", message)];
        let mut line: Map<_, _> = own.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
        for (key, value) in labels {
            line.entry(key).or_insert(value);
        }
        return format!("{}\n", Value::Object(line));
    }
    let mut line = format!("{}\t{level}\t{scope}\t{}", one_line(time), one_line(message));
    for (key, value) in labels {
        let value = match value {
            Value::String(text) => one_line(&text),
            other => other.to_string(),
        };
        line.extend(["\t", &one_line(&key), "=", &value]);
    }
    line.push('\n');
    line
}

/// File names and error texts come from outside; a line break in one must not look like another event.
fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        line
    })
}

#[derive(Default)]
struct Fields {
    message: String,
    labels: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => {
                self.labels.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.put(field, text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(list: &str) -> (&'static str, &'static str) {
        let levels = LogOptions::new(list, false, &[]).levels;
        (levels.agent().as_str(), levels.plugin().as_str())
    }

    #[test]
    fn levels_go_to_the_scopes_they_are_meant_for() {
        for (list, agent, plugin) in [
            ("", "info", "info"),
            ("debug", "debug", "debug"),
            ("default:info,cni-plugin:debug", "info", "debug"),
            ("cni-agent:warn,debug", "warn", "debug"),
            ("default:error", "error", "info"),
            ("all:none", "none", "none"),
            ("grpc:debug,unknown:warn", "info", "info"),
        ] {
            assert_eq!(levels(list), (agent, plugin), "{list}");
        }
    }

    #[test]
    fn an_unknown_level_stops_the_list_and_is_told() {
        let options = LogOptions::new("warn,default:loud,debug", false, &["/var/log/x".to_owned()]);
        assert_eq!(options.levels.agent(), Level::Warn);
        assert_eq!(options.problems.len(), 2);
    }

    #[derive(Clone, Default)]
    struct Buffer(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written while `work` is done.
    fn written(json: bool, levels: &Levels, work: impl Fn()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let lines = layer().with_writer(move || writer.clone()).event_format(Line { json });
        tracing::subscriber::with_default(Registry::default().with(levels.layer()).with(lines), work);
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn line(json: bool) -> String {
        written(json, &Levels::default(), || tracing::warn!(path = %"a\nb", count = 2, "file \"x\""))
    }

    #[test]
    fn a_level_that_is_changed_holds_at_once() {
        let levels = Levels::default();
        let text = written(false, &levels, || {
            for level in [Level::Info, Level::Debug, Level::Error, Level::None] {
                assert!(levels.set(DEFAULT, level) && !levels.set("grpc", level));
                tracing::debug!("debug at {}", level.as_str());
                tracing::error!("error at {}", level.as_str());
            }
        });
        let said: Vec<_> = text.lines().filter_map(|line| line.rsplit('\t').next()).collect();
        assert_eq!(said, ["error at info", "debug at debug", "error at debug", "error at error"]);
        assert_eq!((levels.get(AGENT), levels.get(PLUGIN)), (Some(Level::None), Some(Level::Info)));
    }

    #[test]
    fn lines_have_istios_keys_and_cannot_be_forged() {
        let json: Value = serde_json::from_str(&line(true)).unwrap();
        assert_eq!(
            (&json["level"], &json["scope"], &json["msg"]),
            (&"warn".into(), &AGENT.into(), &"file \"x\"".into())
        );
        assert_eq!((&json["path"], &json["count"]), (&"a\nb".into(), &2.into()));
        let time = json["time"].as_str().unwrap();
        assert!(time.len() == 27 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
        let text = line(false);
        assert!(text.ends_with("\twarn\tcni-agent\tfile \"x\"\tpath=a\\nb\tcount=2\n"), "{text}");
    }
}
