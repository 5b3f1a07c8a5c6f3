//! What plugins hand to the agent, in the agent's log: their time and level, scope `cni-plugin`, labels sorted.
//!
//! A batch is written at once, so that lines of several plugins and of the agent do not mix. Called by the log sink.

use std::io::{self, Write};

use agent_api::logs::Entry;

use super::{LogOptions, PLUGIN_SCOPE, line};

/// Levels from the least important one.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Writes entries of plugins where the agent's own go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLog {
    json: bool,
    stderr: bool,
    /// Place in [`LEVELS`] of the least level that is written; beyond them for none.
    least: usize,
}

impl Default for PluginLog {
    fn default() -> Self {
        LogOptions::new("", false, &[]).plugin_log()
    }
}

impl LogOptions {
    /// For entries of plugins.
    pub fn plugin_log(&self) -> PluginLog {
        let least = match self.plugin_level.as_str() {
            "fatal" | "none" => LEVELS.len(),
            level => LEVELS.iter().position(|known| *known == level).unwrap_or(1),
        };
        PluginLog { json: self.json, stderr: self.stderr, least }
    }
}

impl PluginLog {
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
        let wanted = |entry: &Entry| LEVELS.iter().skip(self.least).any(|level| *level == entry.level);
        let lines = entries.into_iter().filter(wanted).map(|entry| {
            let mut labels = entry.labels;
            labels.sort_keys();
            line(self.json, [&entry.level, &entry.time, PLUGIN_SCOPE, &entry.message], labels)
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
