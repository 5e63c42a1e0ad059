//! A model that cannot answer now: how long to wait before it is asked again, and when to give up. Pure.
//!
//! The loop gives up after a number of consecutive refusals by a provider, or after a time without an answer. A wait
//! that a provider asked for does not count as time without an answer; the time in which an open circuit refuses does.
//! Other refusals by the orchestrator itself, such as a full queue, count towards neither limit.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use protocol::{CallId, RateLimitOrigin};

/// Maximum number of refusals by a provider in a row; the last one fails.
const MAX_PROVIDER_REFUSALS: u32 = 10;

/// The first wait when the provider gives no Retry-After.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Maximum wait without Retry-After.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Maximum wait that a provider's Retry-After is granted.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// A refusal of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimitRefusal {
    /// Who refused.
    pub(crate) origin: RateLimitOrigin,
    /// How long to wait, where that is known.
    pub(crate) retry_after: Option<Duration>,
    /// How long the call took.
    pub(crate) took: Duration,
}

/// The refusals of one model call so far.
#[derive(Debug)]
pub(crate) struct Outage {
    patience: Duration,
    longest_wait: Option<Duration>,
    refusals: u32,
    /// Refusals without a provider being asked.
    local_refusals: u32,
    /// Calls that failed, the waits after them without a Retry-After, and those for an open circuit.
    without_answer: Duration,
}

/// Why the model is not asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GiveUp {
    /// This many refusals in a row.
    #[error("refused by the model provider {0} times in a row")]
    Refused(u32),
    /// No answer for this long.
    #[error("no answer from the model for {} s", .0.as_secs())]
    Unanswered(Duration),
    /// The provider asks for a longer wait than there is time for.
    #[error("the model provider can be asked again in {} min", .0.as_secs().div_ceil(60))]
    AskedToWait(Duration),
}

impl Outage {
    pub(crate) const fn new(patience: Duration, longest_wait: Option<Duration>) -> Self {
        Self { patience, longest_wait, refusals: 0, local_refusals: 0, without_answer: Duration::ZERO }
    }

    /// How often the provider failed and when it is given up, in words; `None` after refusals by the orchestrator alone.
    pub(crate) fn progress(&self) -> Option<String> {
        let (failed, patience) = (self.refusals, self.patience.as_secs());
        let times = if failed == 1 { "once" } else { &format!("{failed} times") };
        (failed > 0).then(|| {
            format!("it failed {times}, and is given up after {MAX_PROVIDER_REFUSALS} times or {patience} s without an answer; ")
        })
    }

    /// How long to wait after this refusal. The id spreads waits: it differs between jobs, which is all that is needed,
    /// and takes no source of randomness here.
    pub(crate) fn wait_after(&mut self, refusal: &RateLimitRefusal, call_id: &CallId) -> Result<Duration, GiveUp> {
        let asked_for = refusal.retry_after.map(|wait| wait.min(MAX_RETRY_AFTER));
        match refusal.origin {
            RateLimitOrigin::Local => Ok(self.local_wait(asked_for, call_id)),
            RateLimitOrigin::Circuit => {
                let wait = self.local_wait(asked_for, call_id);
                self.spend_patience(refusal.took, wait)
            }
            RateLimitOrigin::Provider => {
                if let Some(asked) =
                    refusal.retry_after.filter(|asked| self.longest_wait.is_some_and(|max| *asked > max))
                {
                    return Err(GiveUp::AskedToWait(asked));
                }
                self.refusals += 1;
                if self.refusals >= MAX_PROVIDER_REFUSALS {
                    return Err(GiveUp::Refused(self.refusals));
                }
                let backoff = backoff(self.refusals, call_id);
                match asked_for {
                    // Some ask for milliseconds, again and again.
                    Some(wait) => Ok(wait.max(backoff)),
                    None => self.spend_patience(refusal.took, backoff),
                }
            }
        }
    }

    fn local_wait(&mut self, asked_for: Option<Duration>, call_id: &CallId) -> Duration {
        self.local_refusals = self.local_refusals.saturating_add(1);
        asked_for.unwrap_or_else(|| backoff(self.local_refusals, call_id))
    }

    /// Counts a call and the wait after it as time without an answer. The last time the model is asked is when the
    /// patience ends.
    fn spend_patience(&mut self, took: Duration, wait: Duration) -> Result<Duration, GiveUp> {
        self.without_answer += took;
        let left = self.patience.saturating_sub(self.without_answer);
        if left.is_zero() {
            return Err(GiveUp::Unanswered(self.without_answer));
        }
        let wait = wait.min(left);
        self.without_answer += wait;
        Ok(wait)
    }
}

/// Exponential backoff, with jitter between half and all of the step.
fn backoff(tried: u32, call_id: &CallId) -> Duration {
    let full = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(tried.saturating_sub(1))).min(MAX_WAIT);
    let mut hasher = DefaultHasher::new();
    (call_id, tried).hash(&mut hasher);
    let thousandths = u32::try_from(hasher.finish() % 500).unwrap_or(0);
    full / 2 + full * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn refusal(origin: RateLimitOrigin, retry_after: Option<u64>, took: u64) -> RateLimitRefusal {
        RateLimitRefusal { origin, retry_after: retry_after.map(seconds), took: seconds(took) }
    }

    fn id() -> CallId {
        CallId("c".to_owned())
    }

    #[test]
    fn other_refusals_of_the_orchestrator_count_towards_nothing() {
        let mut outage = Outage::new(seconds(1), None);
        for _ in 0..1_000 {
            assert_eq!(outage.wait_after(&refusal(RateLimitOrigin::Local, Some(30), 60), &id()), Ok(seconds(30)));
        }
        assert_eq!(outage.wait_after(&refusal(RateLimitOrigin::Provider, Some(7), 0), &id()), Ok(seconds(7)));
    }

    #[test]
    fn the_time_of_an_open_circuit_spends_patience() {
        let mut outage = Outage::new(seconds(20), None);
        let refused = refusal(RateLimitOrigin::Circuit, Some(15), 0);
        assert_eq!(outage.wait_after(&refused, &id()), Ok(seconds(15)));
        assert_eq!(outage.wait_after(&refused, &id()), Ok(seconds(5)), "what is left");
        assert_eq!(outage.wait_after(&refused, &id()), Err(GiveUp::Unanswered(seconds(20))));
        assert_eq!(outage.progress(), None, "no provider was asked");
    }

    #[test]
    fn a_wait_for_which_there_is_no_time_is_not_begun() {
        let mut outage = Outage::new(seconds(300), Some(seconds(900)));
        let mut wait = |asked| outage.wait_after(&refusal(RateLimitOrigin::Provider, Some(asked), 0), &id());
        assert_eq!(wait(900), Ok(seconds(900)));
        let given_up = wait(3_541).unwrap_err();
        assert_eq!(given_up.to_string(), "the model provider can be asked again in 60 min");
    }

    #[test]
    fn waits_that_were_asked_for_do_not_spend_patience() {
        let mut outage = Outage::new(seconds(300), None);
        for _ in 0..9 {
            let wait = outage.wait_after(&refusal(RateLimitOrigin::Provider, Some(600), 100), &id());
            assert_eq!(wait, Ok(seconds(600)));
        }
        let tenth = outage.wait_after(&refusal(RateLimitOrigin::Provider, Some(600), 0), &id());
        assert_eq!(tenth, Err(GiveUp::Refused(10)));
    }

    #[test]
    fn the_time_of_calls_that_fail_spends_patience() {
        let mut outage = Outage::new(seconds(300), None);
        assert!(outage.wait_after(&refusal(RateLimitOrigin::Provider, None, 200), &id()).is_ok());
        let over = outage.wait_after(&refusal(RateLimitOrigin::Provider, None, 200), &id());
        assert!(matches!(over, Err(GiveUp::Unanswered(time)) if time >= seconds(400)), "{over:?}");
    }

    #[test]
    fn it_is_asked_once_more_when_the_patience_ends() {
        let mut outage = Outage::new(seconds(3), None);
        let mut waited = Duration::ZERO;
        let over = loop {
            match outage.wait_after(&refusal(RateLimitOrigin::Provider, None, 0), &id()) {
                Ok(wait) => waited += wait,
                Err(over) => break over,
            }
        };
        assert_eq!((waited, over), (seconds(3), GiveUp::Unanswered(seconds(3))));
    }

    proptest! {
        #[test]
        fn a_wait_is_between_half_and_all_of_its_step(tried in 1_u32..50, id in ".*") {
            let full = Duration::from_secs(1 << (tried - 1).min(6)).min(MAX_WAIT);
            let wait = backoff(tried, &CallId(id));
            prop_assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
        }
    }
}
