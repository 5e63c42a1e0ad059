//! Token buckets: a burst and a sustained rate. Pure; the caller passes the time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Fixed-point scale of a token: one token an hour refills a whole unit each millisecond (ms in an hour).
const TOKEN_SCALE: u64 = 3_600_000;
/// Maximum number of (user, tool) pairs remembered. Beyond it full buckets are dropped (a full bucket equals none), then the
/// least recently used ones.
const MAX_BUCKETS: usize = 10_000;
/// Number of least recently used pairs dropped at once, so that a scan pays for many calls.
const EVICTED_AT_ONCE: usize = MAX_BUCKETS / 10;

/// A rate: a burst, and what refills in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens of a full bucket.
    pub burst: u32,
    /// Sustained rate, in tokens an hour.
    pub per_hour: u32,
}

/// How often one user may call one tool; an empty list of rates is no limit.
#[derive(Debug, Default)]
pub struct RateLimits {
    rates: Vec<Rate>,
    buckets: Mutex<HashMap<(String, String), Vec<Bucket>>>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    /// The tokens that are left, in units of `1 / TOKEN_SCALE` token.
    left: u64,
    refilled_at: Duration,
}

impl Bucket {
    /// A full bucket.
    pub const fn full(rate: Rate, now: Duration) -> Self {
        Self { left: rate.burst as u64 * TOKEN_SCALE, refilled_at: now }
    }

    /// Takes `tokens`, or returns how long to wait for them. More than the burst are never available.
    pub fn take(&mut self, rate: Rate, tokens: u64, now: Duration) -> Result<(), Duration> {
        let wait = self.wait(rate, tokens, now);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.left -= tokens * TOKEN_SCALE;
        Ok(())
    }

    /// How long until this many tokens are available. Takes none.
    pub fn wait(&mut self, rate: Rate, tokens: u64, now: Duration) -> Duration {
        let passed = u64::try_from(now.saturating_sub(self.refilled_at).as_millis()).unwrap_or(u64::MAX);
        let made = passed.saturating_mul(u64::from(rate.per_hour));
        self.left = self.left.saturating_add(made).min(u64::from(rate.burst) * TOKEN_SCALE);
        // The rest below a millisecond counts at the next refill.
        self.refilled_at += Duration::from_millis(passed);
        let missing = tokens.saturating_mul(TOKEN_SCALE).saturating_sub(self.left);
        Duration::from_millis(missing.div_ceil(u64::from(rate.per_hour).max(1)))
    }
}

impl RateLimits {
    /// Applies all of these rates at once.
    pub fn new(rates: Vec<Rate>) -> Self {
        Self { rates, buckets: Mutex::default() }
    }

    /// Takes one call, or returns how long to wait for it. A refused call takes nothing.
    pub fn take(&self, user: &str, tool: &str, now: Duration) -> Result<(), Duration> {
        if self.rates.is_empty() {
            return Ok(());
        }
        let mut all = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_BUCKETS {
            let full =
                |bucket: &mut Bucket, rate: &Rate| bucket.wait(*rate, u64::from(rate.burst), now) == Duration::ZERO;
            all.retain(|_, buckets| !buckets.iter_mut().zip(&self.rates).all(|(bucket, rate)| full(bucket, rate)));
            evict_oldest(&mut all);
        }
        let buckets = all
            .entry((user.to_owned(), tool.to_owned()))
            .or_insert_with(|| self.rates.iter().map(|rate| Bucket::full(*rate, now)).collect());
        let waits = buckets.iter_mut().zip(&self.rates).map(|(bucket, rate)| bucket.wait(*rate, 1, now));
        if let Some(wait) = waits.max().filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        for bucket in buckets {
            bucket.left -= TOKEN_SCALE;
        }
        Ok(())
    }
}

/// Drops the least recently used pairs, if the map is still full.
fn evict_oldest(all: &mut HashMap<(String, String), Vec<Bucket>>) {
    if all.len() < MAX_BUCKETS {
        return;
    }
    let last_used = |buckets: &[Bucket]| buckets.first().map_or(Duration::ZERO, |bucket| bucket.refilled_at);
    let mut times: Vec<Duration> = all.values().map(|buckets| last_used(buckets)).collect();
    let (_, limit, _) = times.select_nth_unstable(EVICTED_AT_ONCE);
    let limit = *limit;
    let mut evicted = 0;
    all.retain(|_, buckets| {
        let keep = evicted >= EVICTED_AT_ONCE || last_used(buckets) > limit;
        evicted += usize::from(!keep);
        keep
    });
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
    fn frequent_attempts_do_not_lengthen_the_wait() {
        let rate = Rate { burst: 1, per_hour: 3_600 };
        let mut bucket = Bucket::full(rate, Duration::ZERO);
        bucket.take(rate, 1, Duration::ZERO).unwrap();
        let asked = (1..10_000).find(|asked| bucket.take(rate, 1, Duration::from_micros(asked * 300)).is_ok());
        assert_eq!(asked, Some(3_334), "a second in steps of 0.3 ms");
    }

    #[test]
    fn the_number_of_buckets_is_bounded_though_none_is_full() {
        let limits = RateLimits::new(vec![Rate { burst: 10, per_hour: 1 }]);
        for user in 0..(MAX_BUCKETS as u64 + 5_000) {
            limits.take(&user.to_string(), "echo", Duration::from_millis(user)).unwrap();
        }
        let kept = limits.buckets.lock().unwrap();
        assert!(kept.len() <= MAX_BUCKETS, "{} buckets", kept.len());
        assert!(kept.contains_key(&("14999".to_owned(), "echo".to_owned())));
    }

    #[test]
    fn no_rates_are_no_limit() {
        assert_eq!(RateLimits::default().take("ada", "echo", Duration::ZERO), Ok(()));
    }
}
