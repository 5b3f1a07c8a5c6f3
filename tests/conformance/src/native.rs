//! `sidecar/`: rule sets as the text of an nftables transaction.

use iptables_rules::plan::native::sidecar;
use iptables_rules::render::nft::{cleanup, transaction};
use serde_json::Value;

use crate::sidecar::{facts, lines, settings};

/// Compares the transaction of a case strictly: the text must be equal line by line.
///
/// # Errors
/// What was expected and what came out.
pub fn check(case: &Value) -> Result<(), String> {
    let settings = settings(case)?;
    let text =
        if case["config"]["cleanup-only"] == true { cleanup() } else { transaction(&sidecar(&settings, &facts(case))) };
    let want = lines(&case["expected"]["transaction"]);
    if want == text {
        return Ok(());
    }
    Err(format!("expected\n{}\n  got\n{}", want.join("\n"), text.join("\n")))
}
