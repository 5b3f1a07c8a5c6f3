//! What plugins hand to the agent, in the agent's log: their time and level, scope `cni-plugin`, labels sorted.
//!
//! A batch is written at once, so that lines of several plugins and of the agent do not mix. Called by the log sink.

use std::io::{self, Write};
use std::sync::Arc;

use agent_api::logs::Entry;

use super::levels::{Level, Levels, PLUGIN};
use super::{LogOptions, line};

/// Writes entries of plugins where the agent's own go.
#[derive(Debug, Clone, Default)]
pub struct PluginLog {
    json: bool,
    stderr: bool,
    levels: Arc<Levels>,
}

impl LogOptions {
    /// For entries of plugins.
    pub fn plugin_log(&self) -> PluginLog {
        PluginLog { json: self.json, stderr: self.stderr, levels: Arc::clone(&self.levels) }
    }
}

impl PluginLog {
    /// The levels of the whole log.
    pub fn levels(&self) -> &Arc<Levels> {
        &self.levels
    }

    /// Writes a batch.
    pub fn write(&self, entries: Vec<Entry>) {
        let text = self.text(entries);
        // There is no place to tell that the log cannot be written.
        let _ = match self.stderr {
            true => io::stderr().lock().write_all(text.as_bytes()),
            false => io::stdout().lock().write_all(text.as_bytes()),
        };
    }

    fn text(&self, entries: Vec<Entry>) -> String {
        let least = self.levels.plugin();
        let wanted =
            |entry: &Entry| Level::parse(&entry.level).is_some_and(|level| least <= level && level <= Level::Error);
        let lines = entries.into_iter().filter(wanted).map(|entry| {
            let mut labels = entry.labels;
            labels.sort_keys();
            line(self.json, [&entry.level, &entry.time, PLUGIN, &entry.message], labels)
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use agent_api::logs::{parse, render};

    use super::*;

    fn text(options: &LogOptions, lines: &[&str]) -> String {
        options.plugin_log().text(parse(render(lines.iter().copied()).as_bytes()).entries)
    }

    const LINE: &str = r#"{"level":"info","time":"2020-01-01T00:00:00.5Z","msg":"a\nb","scope":"x","pod":"n/p","elapsed_ms":2.5,"c\td":"e\u001bf"}"#;

    #[test]
    fn an_entry_keeps_its_time_and_cannot_pass_for_another_one() {
        let plain = text(&LogOptions::new("", false, &[]), &[LINE, LINE]);
        let line =
            "2020-01-01T00:00:00.5Z\tinfo\tcni-plugin\ta\\nb\tc\\td=e\\u{1b}f\telapsed_ms=2.5\tpod=n/p\tscope=x\n";
        assert_eq!(plain, line.repeat(2));
        let json: serde_json::Value = serde_json::from_str(&text(&LogOptions::new("", true, &[]), &[LINE])).unwrap();
        assert_eq!((&json["scope"], &json["msg"]), (&"cni-plugin".into(), &"a\nb".into()));
    }

    #[test]
    fn the_level_of_the_plugins_scope_is_kept() {
        let debug = LINE.replace("info", "debug");
        let lines = [LINE, debug.as_str()];
        for (levels, count) in [("", 1), ("cni-plugin:debug", 2), ("debug,cni-plugin:warn", 0), ("cni-plugin:none", 0)]
        {
            assert_eq!(text(&LogOptions::new(levels, false, &[]), &lines).lines().count(), count, "{levels}");
        }
    }
}
