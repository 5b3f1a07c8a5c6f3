//! Whose token the plugin gets: the agent's own, or one of a separate service account that may do less.
//!
//! The agent's token lies on every node, so it is better if it cannot do much. With `--plugin-service-account` the plugin
//! gets a token that the agent asks the API server for, tries out, and renews in time ([`schedule`], [`request`]). While
//! there is none, the plugin gets the agent's own, so that no pod is refused. Passes read this and write the kubeconfig.

mod request;
mod schedule;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_api::{Kubeconfig, paths};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::watch::{Receiver, Sender};

use self::schedule::{Schedule, pause};
use crate::cluster::with_sources;
use crate::config::Config;
use crate::health::Health;
use crate::install::token::{Life, subject};

/// Between two looks at a token's age.
const LOOK: Duration = Duration::from_secs(30);
/// Between two tokens that end at once.
const SHORTEST: Duration = Duration::from_millis(100);
/// From this age on a token is the one that plugins use.
const SETTLED: Duration = Duration::from_secs(2);
/// What the probe calls this.
const CONCERN: &str = "plugin's token";

/// A secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

/// What goes into the kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bearer {
    /// The agent's own token, from its file.
    Own,
    /// Not decided yet: a token of the other account has just been asked for.
    Awaited,
    /// This token of the other account.
    Other(Token),
}

/// The decision, as it is now.
#[derive(Debug)]
pub struct Credential {
    bearer: Sender<Bearer>,
    /// How often a plugin said that its token was refused.
    refusals: Sender<u64>,
}

/// A token that was got.
struct Held {
    token: Token,
    schedule: Schedule,
    /// By two clocks: one stands still while a machine does, the other one may be set.
    since: (Instant, SystemTime),
}

impl Token {
    /// To be shown to nobody.
    pub fn new(text: String) -> Self {
        Self(text.into())
    }

    /// The secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Default for Credential {
    /// The agent's own token.
    fn default() -> Self {
        Self { bearer: Sender::new(Bearer::Own), refusals: Sender::new(0) }
    }
}

impl Credential {
    /// At the start.
    pub fn new(config: &Config) -> Self {
        let bearer = match &config.agent.plugin_service_account {
            None => Bearer::Own,
            Some(account) => adopted(config, account).map_or(Bearer::Awaited, |held| Bearer::Other(held.token)),
        };
        Self { bearer: Sender::new(bearer), refusals: Sender::new(0) }
    }

    /// What goes into the kubeconfig now.
    pub fn bearer(&self) -> Bearer {
        self.bearer.borrow().clone()
    }

    /// Hears of changes from now on.
    pub fn changes(&self) -> Receiver<Bearer> {
        self.bearer.subscribe()
    }

    /// A plugin's token was refused. Passes look whether the right one is in place, and one of another account is renewed.
    pub fn refused(&self) {
        self.refusals.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Hears of refusals from now on.
    pub fn refusals(&self) -> Receiver<u64> {
        self.refusals.subscribe()
    }

    /// Keeps a token of `account` until the task is dropped.
    pub async fn keep(&self, config: &Config, account: &str, health: &Health) {
        let mut held = adopted(config, account);
        let mut failures = 0_u32;
        let mut refusals = self.refusals();
        let mut refused = false;
        loop {
            if refused || held.as_ref().is_none_or(|held| held.due_in().is_zero()) {
                match request::token(config, account).await {
                    Ok((token, length)) => {
                        tracing::debug!(account, seconds = length.as_secs(), "the plugin's token is new");
                        let since = (Instant::now(), SystemTime::now());
                        held = Some(Held { token, schedule: Schedule::new(length, jitter()), since });
                        failures = 0;
                        health.concern(CONCERN, None);
                    }
                    Err(error) => {
                        failures = failures.saturating_add(1);
                        let cause = with_sources(&error);
                        tracing::debug!(account, cause, failures, "no new token for the plugin");
                        if failures == 1 {
                            tracing::warn!(account, cause, "no new token for the plugin, it is tried again and again");
                        }
                        health.concern(CONCERN, Some(&cause));
                    }
                }
            }
            held = held.filter(|held| held.schedule.is_usable(held.age()));
            self.decide(held.as_ref(), account);
            let calm = held.as_ref().map_or(LOOK, |held| held.due_in().clamp(SHORTEST, LOOK));
            let wait = if failures > 0 { pause(failures, jitter()) } else { calm };
            refused = tokio::select! {
                () = tokio::time::sleep(wait) => false,
                // What is refused right after a renewal is most likely the token before it.
                Ok(()) = refusals.changed() => held.as_ref().is_none_or(|held| held.age() > SETTLED),
            };
        }
    }

    fn decide(&self, held: Option<&Held>, account: &str) {
        let bearer = held.map_or(Bearer::Own, |held| Bearer::Other(held.token.clone()));
        let before = self.bearer();
        if before == bearer {
            return;
        }
        match (&before, &bearer) {
            (_, Bearer::Own) => {
                tracing::warn!(account, "the plugin gets the agent's own token, since there is none of its account");
            }
            (Bearer::Other(_), _) => {}
            _ => tracing::info!(account, "the plugin gets a token of its own account"),
        }
        self.bearer.send_replace(bearer);
    }
}

impl Held {
    fn due_in(&self) -> Duration {
        self.schedule.due_in(self.age())
    }

    fn age(&self) -> Duration {
        let (instant, time) = self.since;
        instant.elapsed().max(time.elapsed().unwrap_or_default())
    }
}

/// What a predecessor left in the kubeconfig, if it is a token of `account` that has not ended.
fn adopted(config: &Config, account: &str) -> Option<Held> {
    let text = std::fs::read_to_string(paths::kubeconfig(&config.dirs.run)).ok()?;
    let token = Kubeconfig::parse(&text).ok()?.token;
    let life = Life::of(&token)?;
    let name = format!("system:serviceaccount:{}:{account}", config.plugin.pod_namespace);
    let now = SystemTime::now();
    let schedule = Schedule::rest(life.ends.duration_since(now).ok()?);
    (subject(&token)? == name).then(|| Held { token: Token::new(token), schedule, since: (Instant::now(), now) })
}

/// Something in 0 to 1.
fn jitter() -> f64 {
    let mut byte = [0; 1];
    match SystemRandom::new().fill(&mut byte) {
        Ok(()) => f64::from(u8::from_be_bytes(byte)) / f64::from(u8::MAX),
        Err(_) => 0.5,
    }
}
