//! How long a service account token lives, as the token itself says.
//!
//! The signature is not checked: the API server does that, and decides. This is only for telling a person in time that
//! kubelet has brought no successor. Pure; called by a pass.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sys::log::rfc3339_micros;

/// Kubelet renews a token when this part of its life is left, or earlier: one fifth.
const RENEWED_AT: u32 = 5;
/// Where the token does not say when its life began; seconds.
const LIFE: u64 = 3600;

/// The life of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    begins: SystemTime,
    /// Its end.
    pub ends: SystemTime,
}

#[derive(Deserialize)]
struct Claims {
    exp: Option<u64>,
    iat: Option<u64>,
    sub: Option<String>,
}

impl Life {
    /// Reads it. `None` for a token without an end, and for one that is no JWT.
    pub fn of(token: &str) -> Option<Self> {
        let claims = claims(token)?;
        let ends = claims.exp?;
        let time = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        Some(Self { begins: time(claims.iat.unwrap_or_else(|| ends.saturating_sub(LIFE)))?, ends: time(ends)? })
    }

    /// From its beginning to its end.
    pub fn length(&self) -> Duration {
        self.ends.duration_since(self.begins).unwrap_or_default()
    }

    /// What a person should know about it at the time `now`: that it has ended, or that its successor is late.
    pub fn concern(&self, now: SystemTime) -> Option<String> {
        let end = rfc3339_micros(self.ends);
        let Ok(left) = self.ends.duration_since(now) else {
            return Some(format!(
                "the service account token has ended at {end} and kubelet has brought no new one, or the clock is wrong; \
                 pods of the mesh will be refused"
            ));
        };
        // Twice as late as kubelet is at worst.
        (left < self.length() / (RENEWED_AT * 2)).then(|| {
            format!(
                "the service account token ends at {end} and kubelet has brought no new one; without it pods of the mesh \
                 will be refused"
            )
        })
    }
}

/// Whose token it is: `system:serviceaccount:<namespace>:<name>`. `None` when it does not say.
pub fn subject(token: &str) -> Option<String> {
    claims(token)?.sub
}

fn claims(token: &str) -> Option<Claims> {
    let claims = token.split('.').nth(1)?.trim_end_matches('=');
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_that_is_not_renewed_is_told_before_it_is_too_late() {
        let life = Life::of(&token("{\"iat\":1000000,\"exp\":1003600,\"sub\":\"x\"}")).unwrap();
        assert_eq!((life.ends, life.length()), (at(1_003_600), Duration::from_secs(3600)));
        assert_eq!(subject(&token("{\"sub\":\"x\"}")).as_deref(), Some("x"));
        assert_eq!(life.concern(at(1_000_000)), None);
        assert_eq!(life.concern(at(1_002_900)), None, "kubelet may be renewing it");
        assert!(life.concern(at(1_003_300)).unwrap().contains("ends at 1970-01-12T14:46:40"));
        assert!(life.concern(at(1_003_601)).unwrap().contains("has ended"));
        assert_eq!(life.concern(at(1)), None, "a clock that stands still in 1970");
    }

    #[test]
    fn a_token_that_says_nothing_gives_no_alarm() {
        for none in ["", "token-0", "a.b.c", &token("{}"), &token("[]"), &token("{\"exp\":\"soon\"}"), "..", "e30.e30"]
        {
            assert_eq!(Life::of(none), None, "{none}");
        }
        let life = Life::of(&token("{\"exp\":1003600}")).unwrap();
        assert!(life.concern(at(1_003_500)).is_some(), "an hour is assumed");
        assert!(Life::of(&token("{\"exp\":18446744073709551615}")).is_none_or(|life| life.concern(at(1)).is_none()));
    }
}
