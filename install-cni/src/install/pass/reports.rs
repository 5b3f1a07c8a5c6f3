//! Says each thing once: a problem when it appears or changes, again after a long time, and when it is solved.
//!
//! Without this, a full disk would fill the log as well. Used by a pass only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After this long an unchanged problem is logged again.
const REMINDER: Duration = Duration::from_secs(300);

/// What was said last about each part of the work.
#[derive(Debug, Default)]
pub(super) struct Reports {
    said: BTreeMap<String, (String, Instant)>,
}

impl Reports {
    /// Something should have worked and did not.
    pub(super) fn failed(&mut self, key: &str, reason: &str) {
        if self.is_news(key, reason) {
            tracing::warn!(cause = reason, "not in order, will be tried again");
        }
    }

    /// Something has to appear first.
    pub(super) fn waiting(&mut self, key: &str, reason: &str) {
        if self.is_news(key, reason) {
            tracing::info!(cause = reason, "waiting");
        }
    }

    /// Something is as it was asked for, and probably not as it was meant.
    pub(super) fn concern(&mut self, key: &str, reason: &str) {
        if self.is_news(key, reason) {
            tracing::warn!(cause = reason, "probably not as it is meant");
        }
    }

    /// A file is not considered.
    pub(super) fn skipped(&mut self, name: &str, reason: &str) {
        if self.is_news(&format!("file {name}"), reason) {
            tracing::warn!(file = name, cause = reason, "not a valid network configuration, left alone");
        }
    }

    /// What `key` stands for is in order.
    pub(super) fn solved(&mut self, key: &str) {
        if self.said.remove(key).is_some() {
            tracing::info!(part = key, "in order now");
        }
    }

    fn is_news(&mut self, key: &str, reason: &str) -> bool {
        let now = Instant::now();
        match self.said.get(key) {
            Some((said, when)) if said == reason && now.duration_since(*when) < REMINDER => false,
            _ => {
                self.said.insert(key.to_owned(), (reason.to_owned(), now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_news_once_until_it_changes_or_is_solved() {
        let mut reports = Reports::default();
        assert!(reports.is_news("list", "disk full"));
        assert!(!reports.is_news("list", "disk full"));
        assert!(reports.is_news("list", "read-only"));
        assert!(reports.is_news("binaries", "read-only"));
        reports.solved("list");
        assert!(reports.is_news("list", "read-only"));
    }
}
