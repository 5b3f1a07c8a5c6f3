//! What is looked up when metrics are read, since it changes by itself: ages, what is left, and what is in order.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::health::Health;

/// Looks it up.
#[derive(Debug)]
pub(super) struct Now {
    pub(super) health: Arc<Health>,
    pub(super) kubeconfig: PathBuf,
}

impl Now {
    /// How long ago the kubeconfig was written; `None` when there is none, or its time is in the future.
    fn kubeconfig_age(&self) -> Option<Duration> {
        self.kubeconfig.metadata().ok()?.modified().ok()?.elapsed().ok()
    }

    /// Seconds until the token ends, less than nothing once it has; `None` when it does not say.
    fn token_left(&self) -> Option<f64> {
        let end = self.health.installs().token_end()?;
        Some(match end.duration_since(SystemTime::now()) {
            Ok(left) => left.as_secs_f64(),
            Err(error) => -error.duration().as_secs_f64(),
        })
    }
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| match value {
            Some(value) => {
                ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
            }
            None => Ok(()),
        };
        let age = self.kubeconfig_age().map(|age| age.as_secs_f64());
        gauge("kubeconfig_age_seconds", "How long ago the kubeconfig was written", age)?;
        gauge("token_expiry_seconds", "Until the token in the kubeconfig ends", self.token_left())?;
        let mut parts =
            encoder.encode_descriptor("ready_part", "1 while this part is in order", None, MetricType::Gauge)?;
        for (part, in_order) in self.health.parts() {
            ConstGauge::new(i64::from(in_order)).encode(parts.encode_family(&[("part", part)])?)?;
        }
        Ok(())
    }
}
