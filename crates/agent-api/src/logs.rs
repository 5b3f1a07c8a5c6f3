//! Log entries of plugins on their way to the agent, on `log.sock`: `POST /log`.
//!
//! Istio's form is a JSON array of strings, each of them one entry as a JSON object; that is what our plugin sends.
//! Taken are also an array of objects, and one object per line.

use serde_json::{Map, Value};

/// Path of the sink.
pub const LOG_PATH: &str = "/log";
/// Message about an ADD of a pod that is none of ours.
pub const LEFT_ALONE: &str = "pod is left alone";
/// Label of entries of a call whose token the API server refused (401).
pub const REFUSED: (&str, &str) = ("credentials", "refused");
/// Largest batch that is taken, in bytes.
pub const MAX_BATCH: usize = 1 << 20;
/// Largest entry that is taken, in bytes.
pub const MAX_ENTRY: usize = 64 << 10;
/// Levels that an entry may have.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// One entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// When it happened, as the plugin wrote it: RFC 3339.
    pub time: String,
    /// What happened, without white space around it.
    pub message: String,
    /// Everything else, in the order it came.
    pub labels: Map<String, Value>,
}

/// A batch as it was understood.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// The entries, in the order they came.
    pub entries: Vec<Entry>,
    /// How many more there were that could not be understood or were too large.
    pub dropped: usize,
}

/// The text of a batch. `lines` are entries as JSON objects.
pub fn render<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    Value::Array(lines.into_iter().map(Value::from).collect()).to_string()
}

/// Reads a batch in any of its forms. One that has none of them counts as one dropped entry.
pub fn parse(body: &[u8]) -> Batch {
    let mut batch = Batch::default();
    match serde_json::from_slice(body) {
        Ok(Value::Array(items)) => items.iter().for_each(|item| match item {
            Value::String(text) => batch.take_text(text.as_bytes()),
            other => batch.take(other),
        }),
        // One object is no batch, as for Istio; with a line break it is a batch of one line.
        Ok(_) if !body.ends_with(b"\n") => batch.dropped += 1,
        _ => body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).for_each(|line| {
            batch.take_text(line);
        }),
    }
    batch
}

impl Batch {
    fn take_text(&mut self, text: &[u8]) {
        if text.len() > MAX_ENTRY {
            self.dropped += 1;
            return;
        }
        match serde_json::from_slice(text) {
            Ok(value) => self.take(&value),
            Err(_) => self.dropped += 1,
        }
    }

    fn take(&mut self, value: &Value) {
        match entry(value) {
            Some(entry) => self.entries.push(entry),
            None => self.dropped += 1,
        }
    }
}

fn entry(value: &Value) -> Option<Entry> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut labels = value.as_object()?.clone();
    labels.retain(|key, _| !matches!(key.as_str(), "level" | "time" | "msg"));
    let level = text("level").filter(|level| LEVELS.contains(&level.as_str()))?;
    let time = text("time").filter(|time| is_timestamp(time))?;
    Some(Entry { level, time, message: text("msg")?.trim().to_owned(), labels })
}

/// Whether a text looks like an RFC 3339 time, such as `2020-01-01T00:00:00.356374Z` or with an offset.
fn is_timestamp(text: &str) -> bool {
    let shape = |part: &str, pattern: &str| {
        part.len() == pattern.len()
            && part.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                wanted => byte == wanted,
            })
    };
    let Some((seconds, rest)) = text.split_at_checked(19) else { return false };
    let fraction = rest.strip_prefix('.').map_or(0, |digits| digits.bytes().take_while(u8::is_ascii_digit).count());
    let offset = if fraction == 0 { Some(rest) } else { rest.get(1 + fraction..) };
    shape(seconds, "0000-00-00T00:00:00")
        && offset.is_some_and(|offset| offset == "Z" || shape(offset, "+00:00") || shape(offset, "-00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"level":"info","time":"2020-01-01T00:00:00.356374Z","msg":" hello\n","pod":"ns/name"}"#;

    fn messages(body: &str) -> (Vec<String>, usize) {
        let batch = parse(body.as_bytes());
        (batch.entries.into_iter().map(|entry| entry.message).collect(), batch.dropped)
    }

    #[test]
    fn all_forms_of_a_batch_are_taken() {
        let hello = vec!["hello".to_owned()];
        assert_eq!(messages(&render([LINE])), (hello.clone(), 0));
        assert_eq!(messages(&format!("[{LINE}]")), (hello.clone(), 0));
        assert_eq!(messages(&format!("{LINE}\n")), (hello.clone(), 0));
        assert_eq!(messages(&format!("{LINE}\n{LINE}")), (vec!["hello".to_owned(); 2], 0));
        assert_eq!(messages("[]"), (Vec::new(), 0));
        assert_eq!(messages(LINE), (Vec::new(), 1));
        assert_eq!(messages("nope"), (Vec::new(), 1));
    }

    #[test]
    fn one_bad_entry_costs_only_itself() {
        let huge = format!(r#"{{"level":"info","time":"2020-01-01T00:00:00Z","msg":"{}"}}"#, "x".repeat(MAX_ENTRY));
        let bad = [
            "{}",
            "7",
            r#"{"level":"fatal","time":"2020-01-01T00:00:00Z","msg":"a"}"#,
            r#"{"level":"info","time":"yesterday","msg":"a"}"#,
            r#"{"level":"info","time":"2020-01-01T00:00:00.Z","msg":"a"}"#,
            r#"{"level":"info","time":"2020-01-01T00:00:00Z"}"#,
            huge.as_str(),
        ];
        let batch = render(bad.into_iter().chain([LINE]));
        assert_eq!(messages(&batch), (vec!["hello".to_owned()], bad.len()));
        let offset = r#"{"level":"warn","time":"2020-01-01T00:00:00+01:00","msg":""}"#;
        assert_eq!(messages(&render([offset])), (vec![String::new()], 0));
    }
}
