//! What the plugin wrote about a pod into its log on the node.

use std::fs;
use std::path::Path;

use agent_api::paths;
use serde_json::Value;

use crate::failure::Failure;

/// Reason of a pod that was redirected.
pub const REDIRECTED: &str = "redirect";

/// Message of a teardown.
const GONE: &str = "sandbox goes";

/// The outcome of one ADD.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why the plugin did what it did, by its name for logs.
    pub reason: String,
    /// Time from start to result, in milliseconds.
    pub elapsed_ms: f64,
}

/// The last outcome of the plugin for `pod` (`namespace/name`), or `None` when it was never asked.
///
/// # Errors
/// When the log cannot be read.
pub fn outcome(run_dir: &Path, pod: &str) -> Result<Option<Outcome>, Failure> {
    Ok(find(&read(run_dir)?, pod))
}

/// The network namespaces that the teardowns of a sandbox were given, empty where there was none.
///
/// # Errors
/// When the log cannot be read.
pub fn teardowns(run_dir: &Path, sandbox: &str) -> Result<Vec<String>, Failure> {
    let text = read(run_dir)?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |line: &Value, key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let of_sandbox = lines.filter(|line| text(line, "msg") == GONE && text(line, "container_id") == sandbox);
    Ok(of_sandbox.map(|line| text(&line, "netns")).collect())
}

fn read(run_dir: &Path) -> Result<String, Failure> {
    let path = paths::plugin_log(run_dir);
    fs::read_to_string(&path).map_err(Failure::system(format!("read {}", path.display())))
}

fn find(log: &str, pod: &str) -> Option<Outcome> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let outcome = |line: Value| {
        (line.get("pod")? == pod).then_some(())?;
        let elapsed_ms = line.get("elapsed_ms")?.as_f64()?;
        // Without a reason it ended in an error, which the message tells.
        let reason = line.get("reason").or(line.get("msg"))?.as_str()?.to_owned();
        Some(Outcome { reason, elapsed_ms })
    };
    lines.filter_map(outcome).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_found_among_other_lines() {
        let log = concat!(
            "{\"level\":\"info\",\"msg\":\"start\",\"pod\":\"shop/web\"}\n",
            "{\"level\":\"info\",\"msg\":\"done\",\"pod\":\"shop/web\",\"reason\":\"redirect\",\"elapsed_ms\":4.5}\n",
            "{\"level\":\"info\",\"msg\":\"done\",\"pod\":\"shop/web-2\",\"reason\":\"no-istio-proxy\",\"elapsed_ms\":2.0}\n",
            "half a li",
        );
        assert_eq!(find(log, "shop/web"), Some(Outcome { reason: REDIRECTED.to_owned(), elapsed_ms: 4.5 }));
        assert_eq!(find(log, "shop/web-2").unwrap().elapsed_ms, 2.0);
        assert_eq!(find(log, "shop/w"), None);
    }
}
