//! How attempts to install ended, in Istio's words, and what they had to do. Kept by `health`, which learns of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counts attempts to install.
#[derive(Debug, Default)]
pub struct Installs {
    results: Family<Attempt, Counter>,
    /// 1 while the node is in order.
    ready: Gauge,
    writes: Family<Write, Counter>,
    rivals: Counter,
    reverted: Counter,
    token_ends: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attempt {
    result: &'static str,
}

impl Installs {
    /// After a pass: whether the node is in order now. That it has come to be so is a success.
    pub fn ready(&self, ready: bool) {
        if self.ready.set(ready.into()) == 0 && ready {
            self.count("SUCCESS");
        }
    }

    /// A part of a pass failed: `programs`, `credentials`, or else the list.
    pub fn failed(&self, part: &str) {
        self.count(match part {
            "programs" => "COPY_BINARIES_FAILURE",
            "credentials" => "CREATE_KUBECONFIG_FAILURE",
            _ => "CREATE_CNI_CONFIG_FAILURE",
        });
    }

    /// A file of the node was written or removed. The causes are sentences of our own, about a dozen.
    pub fn wrote(&self, cause: &str) {
        self.writes.get_or_create(&Write { cause: cause.to_owned() }).inc();
    }

    /// Somebody keeps reverting what we write, so that we paused.
    pub fn rival(&self) {
        self.rivals.inc();
    }

    /// Somebody changed the list after it was in order, so that it is not any more.
    pub fn reverted(&self) {
        self.reverted.inc();
    }

    /// When the token in the kubeconfig ends, as it was told last.
    pub fn token_end(&self) -> Option<SystemTime> {
        let seconds = u64::try_from(self.token_ends.get()).ok().filter(|&seconds| seconds != 0)?;
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// The token in the kubeconfig ends then; `None` when it does not say.
    pub fn token_ends(&self, end: Option<SystemTime>) {
        let seconds = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok()).map_or(0, |time| time.as_secs());
        self.token_ends.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Shows the counts in `registry`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("installs", "How attempts to install ended", self.results.clone());
        registry.register("install_ready", "1 while the node is in order", self.ready.clone());
        registry.register("writes", "Files of the node that were written or removed", self.writes.clone());
        registry.register("rival_pauses", "Pauses because somebody reverts what we write", self.rivals.clone());
        let help = "Times that somebody changed the list so that it was not in order any more";
        registry.register("rival_writes", help, self.reverted.clone());
        let help = "When the token in the kubeconfig ends, in Unix seconds; 0 when it does not say";
        registry.register("token_expiry_timestamp_seconds", help, self.token_ends.clone());
    }

    fn count(&self, result: &'static str) {
        self.results.get_or_create(&Attempt { result }).inc();
    }
}
