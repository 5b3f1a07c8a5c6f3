//! When a token is renewed, how long it may be used, and how long to wait after a failure.
//!
//! Everything is reckoned in ages, never in times of day: a clock that is wrong makes no difference. Pure.

use std::time::Duration;

/// A token is renewed at this part of its life at the earliest, so that an API server may be away for a long time.
const RENEWED_AT: f64 = 0.5;
/// By so much of its life later at the latest, so that the agents of a cluster do not all come at once.
const SPREAD: f64 = 0.1;
/// This part of its life before its end a token counts as ended: requests take time, and clocks differ.
const MARGIN: u32 = 20;
/// Until the next try, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The life of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    length: Duration,
    renewed_at: Duration,
}

impl Schedule {
    /// For a token that lives this long. `jitter` is in 0 to 1.
    pub(super) fn new(length: Duration, jitter: f64) -> Self {
        Self { length, renewed_at: length.mul_f64(RENEWED_AT + SPREAD * jitter.clamp(0.0, 1.0)) }
    }

    /// For a token of which only is known that it ends after this time: it is renewed at once.
    pub(super) fn rest(length: Duration) -> Self {
        Self { length, renewed_at: Duration::ZERO }
    }

    /// How long it is until a successor is needed; nothing when it is time.
    pub(super) fn due_in(&self, age: Duration) -> Duration {
        self.renewed_at.saturating_sub(age)
    }

    /// Whether it may still be used.
    pub(super) fn is_usable(&self, age: Duration) -> bool {
        age + self.length / MARGIN < self.length
    }
}

/// How long to wait after this many failures in a row. `jitter` is in 0 to 1.
pub(super) fn pause(failures: u32, jitter: f64) -> Duration {
    let [first, longest] = PAUSES;
    let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(longest).mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_token_is_renewed_around_the_middle_of_its_life_and_used_nearly_to_the_end() {
        for (jitter, minutes) in [(0.0, 30), (0.5, 33), (1.0, 36), (7.0, 36)] {
            let schedule = Schedule::new(HOUR, jitter);
            assert!(schedule.due_in(MINUTE * (minutes - 1)) == MINUTE, "{jitter}");
            assert!(schedule.due_in(MINUTE * (minutes + 1)).is_zero(), "{jitter}");
            assert!(schedule.is_usable(MINUTE * 56) && !schedule.is_usable(MINUTE * 57));
        }
        let rest = Schedule::rest(MINUTE * 10);
        assert!(rest.due_in(Duration::ZERO).is_zero() && rest.is_usable(MINUTE * 9) && !rest.is_usable(MINUTE * 10));
        assert!(!Schedule::new(Duration::ZERO, 0.5).is_usable(Duration::ZERO));
    }

    #[test]
    fn failures_are_followed_by_longer_and_longer_pauses() {
        let seconds = |failures, jitter| pause(failures, jitter).as_secs_f64();
        for (failures, longest) in [(0, 1.0), (1, 1.0), (2, 2.0), (5, 16.0), (7, 60.0), (u32::MAX, 60.0)] {
            assert_eq!((seconds(failures, 0.0), seconds(failures, 1.0)), (longest, longest / 2.0), "{failures}");
        }
    }
}
