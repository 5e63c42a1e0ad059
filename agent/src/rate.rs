//! Token buckets: how much may happen at once, and how much in the long run. Pure; whoever asks says what time it is.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Of one token: what a rate of one an hour makes in a millisecond is a whole number.
const PARTS: u64 = 3_600_000;
/// Buckets remembered; beyond that the full ones are forgotten, and a full bucket is the same as none.
const MAX_BUCKETS: usize = 10_000;

/// How fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// Lasting.
    pub per_hour: u32,
}

/// How often one user may call one of the orchestrator's tools; an empty list is no limit.
#[derive(Debug, Default)]
pub struct RateLimits {
    rates: Vec<Rate>,
    buckets: Mutex<HashMap<(String, String), Vec<Bucket>>>,
}

/// What is left of a rate.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    left: u64,
    at: Duration,
}

impl Bucket {
    /// A full one.
    pub const fn full(rate: Rate, now: Duration) -> Self {
        Self { left: rate.burst as u64 * PARTS, at: now }
    }

    /// Takes `tokens`, or says how long to wait for them. More than the burst never fit.
    pub fn take(&mut self, rate: Rate, tokens: u64, now: Duration) -> Result<(), Duration> {
        let wait = self.wait(rate, tokens, now);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.left -= tokens * PARTS;
        Ok(())
    }

    /// How long until there are so many. Takes none.
    pub fn wait(&mut self, rate: Rate, tokens: u64, now: Duration) -> Duration {
        let passed = u64::try_from(now.saturating_sub(self.at).as_millis()).unwrap_or(u64::MAX);
        let made = passed.saturating_mul(u64::from(rate.per_hour));
        self.left = self.left.saturating_add(made).min(u64::from(rate.burst) * PARTS);
        // What is less than a millisecond counts the next time.
        self.at += Duration::from_millis(passed);
        let missing = tokens.saturating_mul(PARTS).saturating_sub(self.left);
        Duration::from_millis(missing.div_ceil(u64::from(rate.per_hour).max(1)))
    }
}

impl RateLimits {
    /// All of these at once.
    pub fn new(rates: Vec<Rate>) -> Self {
        Self { rates, buckets: Mutex::default() }
    }

    /// One call, or how long to wait until it may be made. A call that is refused takes nothing.
    pub(crate) fn take(&self, user: &str, tool: &str, now: Duration) -> Result<(), Duration> {
        if self.rates.is_empty() {
            return Ok(());
        }
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_BUCKETS {
            let full =
                |bucket: &mut Bucket, rate: &Rate| bucket.wait(*rate, u64::from(rate.burst), now) == Duration::ZERO;
            all.retain(|_, buckets| !buckets.iter_mut().zip(&self.rates).all(|(bucket, rate)| full(bucket, rate)));
        }
        let buckets = all
            .entry((user.to_owned(), tool.to_owned()))
            .or_insert_with(|| self.rates.iter().map(|rate| Bucket::full(*rate, now)).collect());
        let waits = buckets.iter_mut().zip(&self.rates).map(|(bucket, rate)| bucket.wait(*rate, 1, now));
        if let Some(wait) = waits.max().filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        for bucket in buckets {
            bucket.left -= PARTS;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_IN_THE_CONTRACT: [Rate; 2] = [Rate { burst: 60, per_hour: 3_600 }, Rate { burst: 1_000, per_hour: 1_000 }];

    fn taken(limits: &RateLimits, user: &str, tool: &str, at: Duration) -> u32 {
        (0..10_000).find(|_| limits.take(user, tool, at).is_err()).unwrap_or_default()
    }

    #[test]
    fn sixty_at_once_one_a_second_and_a_thousand_an_hour() {
        let limits = RateLimits::new(AS_IN_THE_CONTRACT.to_vec());
        let at = Duration::from_secs;
        assert_eq!(taken(&limits, "ada", "echo", at(0)), 60);
        assert_eq!(limits.take("ada", "echo", at(0)), Err(at(1)));
        assert_eq!(taken(&limits, "ada", "echo", at(1)), 1);
        assert_eq!((taken(&limits, "ada", "json", at(1)), taken(&limits, "bob", "echo", at(1))), (60, 60));
        let second_by_second: u32 = (2..=3_600).map(|second| taken(&limits, "ada", "echo", at(second))).sum();
        // The hour's own bucket gives back what an hour makes while it is emptied.
        assert_eq!(61 + second_by_second, 1_000 + 1_000);
        assert_eq!(limits.take("ada", "echo", at(3_600)), Err(Duration::from_millis(3_600)));
    }

    #[test]
    fn asking_often_makes_nobody_wait_longer() {
        let rate = Rate { burst: 1, per_hour: 3_600 };
        let mut bucket = Bucket::full(rate, Duration::ZERO);
        bucket.take(rate, 1, Duration::ZERO).unwrap();
        let asked = (1..10_000).find(|asked| bucket.take(rate, 1, Duration::from_micros(asked * 300)).is_ok());
        assert_eq!(asked, Some(3_334), "a second in steps of 0.3 ms");
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(RateLimits::default().take("ada", "echo", Duration::ZERO), Ok(()));
    }
}
