//! `logs/`: batches of log entries as the agent understands them.

use agent_api::logs::parse;
use serde_json::{Value, json};

use crate::cases::Case;
use crate::{Outcome, expect, pending};

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    match case.kind.as_str() {
        "parse" => entries(&case.data).into(),
        _ => pending(case),
    }
}

fn entries(data: &Value) -> Result<(), String> {
    let batch = parse(data["body"].as_str().unwrap_or_default().as_bytes());
    let entry = |entry: agent_api::logs::Entry| json!({"level": entry.level, "time": entry.time, "msg": entry.message, "labels": entry.labels});
    let got: Vec<Value> = batch.entries.into_iter().map(entry).collect();
    expect("entries", &data["expect"]["emitted"], &got.into())
}
