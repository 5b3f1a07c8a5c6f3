//! What every log of the product has in common: weights of entries, and time stamps in UTC.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Weight of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Decisions and their inputs.
    Debug,
    /// What is done, and how it ended.
    Info,
    /// Something to look at that stopped nothing.
    Warn,
    /// Why it is not done.
    Error,
}

impl Level {
    /// Istio's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A point in time, split up.
struct Utc {
    year: i64,
    month: i64,
    day: i64,
    seconds: u64,
    micros: u32,
}

/// `2020-01-01T00:00:00.356374Z`: always six digits of fraction, which readers of these logs rely on.
pub fn rfc3339_micros(time: SystemTime) -> String {
    let Utc { year, month, day, seconds, micros } = utc(time);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// `2020-01-01T00-00-00.356`, for the name of a backup.
pub fn backup_stamp(time: SystemTime) -> String {
    let Utc { year, month, day, seconds, micros } = utc(time);
    let (hour, minute, second, millis) = (seconds / 3600, seconds / 60 % 60, seconds % 60, micros / 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{millis:03}")
}

/// Times before 1970 count as 1970.
fn utc(time: SystemTime) -> Utc {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years start in March here, so that the leap day is the last of a year; 719 468 days lie before 1970.
    let days = i64::try_from(days).unwrap_or(0) + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    Utc { year, month, day, seconds, micros: since.subsec_micros() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_fall_where_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339_micros(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(backup_stamp(UNIX_EPOCH + Duration::from_millis(45_296_007)), "1970-01-01T12-34-56.007");
    }
}
