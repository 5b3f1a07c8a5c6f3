//! Keeps a fight with another agent civil.
//!
//! Some network agents put their own version of the list back whenever it changes (Cilium's exclusive mode). We must not
//! give up, since pods would bypass the mesh, but answering every change at once costs both sides CPU and log. So the
//! pause before each further write grows to a few seconds, and a quiet time forgets it all. Pure; a pass asks it.

use std::time::{Duration, Instant};

/// Writes in a row that are answered at once: a restart of the network agent makes one or two.
const FREE: u32 = 3;
/// The longest pause; shorter than the 10 s in which a node should be ready once the rival has stopped.
const LONGEST: Duration = Duration::from_secs(9);
/// After this long without a write the fight is over.
const QUIET: Duration = Duration::from_secs(30);

/// Memory of our recent writes to the list.
#[derive(Debug, Default)]
pub struct Rival {
    streak: u32,
    last_write: Option<Instant>,
}

impl Rival {
    /// How long the list must not be written yet; `None` when it may be.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.last_write?);
        if since > QUIET {
            self.streak = 0;
        }
        let doublings = self.streak.checked_sub(FREE)?;
        let pause = Duration::from_secs(1_u64.checked_shl(doublings).unwrap_or(u64::MAX)).min(LONGEST);
        pause.checked_sub(since).filter(|rest| !rest.is_zero())
    }

    /// What to tell about the file `name`; `cilium` says that Cilium has put aside files of others.
    pub fn warning(name: &str, cilium: bool) -> String {
        let advice = if cilium || name.contains("cilium") {
            "Cilium does that in its exclusive mode; set its cni.exclusive=false"
        } else {
            "find it and tell it to leave the file alone, or set ISTIO_OWNED_CNI_CONFIG=true for a file of our own"
        };
        format!("another program keeps reverting {name}: {advice}")
    }

    /// Notes that the list was written.
    pub fn wrote(&mut self, now: Instant) {
        self.streak = self.streak.saturating_add(1);
        self.last_write = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes whenever allowed, for `seconds`, against a rival that reverts at once.
    fn fight(rival: &mut Rival, start: Instant, seconds: u64) -> usize {
        let mut writes = 0;
        for tick in 0..seconds * 20 {
            let now = start + Duration::from_millis(tick * 50);
            if rival.pause(now).is_none() {
                rival.wrote(now);
                writes += 1;
            }
        }
        writes
    }

    #[test]
    fn five_minutes_against_an_exclusive_agent_cost_few_writes() {
        let mut rival = Rival::default();
        let writes = fight(&mut rival, Instant::now(), 300);
        assert!((20..=45).contains(&writes), "{writes}");
    }

    #[test]
    fn a_restart_of_the_network_agent_is_answered_at_once() {
        let (mut rival, start) = (Rival::default(), Instant::now());
        for write in 0..FREE {
            assert_eq!(rival.pause(start), None, "write {write}");
            rival.wrote(start);
        }
        assert!(rival.pause(start).is_some());
    }

    #[test]
    fn when_the_rival_stops_it_is_forgotten() {
        let (mut rival, start) = (Rival::default(), Instant::now());
        fight(&mut rival, start, 120);
        let end = start + Duration::from_secs(120);
        assert!(rival.pause(end).is_none_or(|rest| rest <= LONGEST));
        assert_eq!(rival.pause(end + QUIET + LONGEST), None);
        assert_eq!(rival.streak, 0);
    }
}
