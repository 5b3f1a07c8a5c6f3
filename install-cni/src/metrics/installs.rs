//! How attempts to install ended, in Istio's words. Kept by `health`, which learns of it.

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

    /// Shows the counts in `registry`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("installs", "How attempts to install ended", self.results.clone());
        registry.register("install_ready", "1 while the node is in order", self.ready.clone());
    }

    fn count(&self, result: &'static str) {
        self.results.get_or_create(&Attempt { result }).inc();
    }
}
