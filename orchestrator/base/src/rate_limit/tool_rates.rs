//! How often each user may call each of the orchestrator's tools. Pure; the caller passes the time.
//!
//! Owns the rates of the tools and the buckets of the users. In memory: a restart resets them.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

use super::{Bucket, Rate};

/// Tools whose calls reach a person, cost more, or store: calls at once, which are refilled in a minute, and calls an
/// hour.
const TOOLS_WITH_OWN_RATES: [(&str, u32, u32); 4] =
    [("message", 10, 100), ("create_job", 5, 30), ("http", 30, 500), ("memory_write", 20, 200)];

/// Maximum number of (user, tool) pairs remembered. Beyond it full buckets are dropped (a full bucket equals none),
/// then the least recently used ones.
const MAX_BUCKETS: usize = 10_000;
/// Number of least recently used pairs dropped at once, so that a scan pays for many calls.
const EVICTED_AT_ONCE: usize = MAX_BUCKETS / 10;

/// The rates of the tools that are not in the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolRates {
    /// Calls at once; 0 for no limit, also of the tools that have their own.
    pub burst: u32,
    /// Rate in calls per second at which `burst` is refilled.
    pub per_second: u32,
    /// Calls an hour; 0 for no limit, also of the tools that have their own.
    pub per_hour: u32,
}

/// Holds each user's calls of each tool to its rates.
#[derive(Debug)]
pub struct ToolRateLimits {
    rates: ToolRates,
    buckets: Mutex<HashMap<(String, String), Vec<LimitedBucket>>>,
}

#[derive(Debug)]
struct LimitedBucket {
    rate: Rate,
    bucket: Bucket,
}

impl ToolRates {
    /// The rates that apply to a tool at once.
    fn of(&self, tool: &str) -> impl Iterator<Item = Rate> {
        let own = TOOLS_WITH_OWN_RATES.iter().find(|(name, ..)| *name == tool);
        let (burst, burst_per_hour, per_hour) = match own {
            Some((_, per_minute, per_hour)) => (*per_minute, per_minute * 60, *per_hour),
            None => (self.burst, self.per_second * 3_600, self.per_hour),
        };
        let at_once = (self.burst > 0).then_some(Rate { burst, per_hour: burst_per_hour });
        let hourly = (self.per_hour > 0).then_some(Rate { burst: per_hour, per_hour });
        at_once.into_iter().chain(hourly)
    }
}

impl ToolRateLimits {
    /// Full buckets.
    pub fn new(rates: ToolRates) -> Self {
        Self { rates, buckets: Mutex::default() }
    }

    /// Takes one call, or returns how long to wait for it. A refused call takes nothing.
    pub fn take(&self, user: &str, tool: &str, now: Duration) -> Result<(), Duration> {
        let mut all = self.buckets.lock();
        if all.len() >= MAX_BUCKETS {
            all.retain(|_, buckets| !buckets.iter_mut().all(|limited| limited.is_full(now)));
            evict_oldest(&mut all);
        }
        let full = |rate| LimitedBucket { rate, bucket: Bucket::full(rate, now) };
        let buckets =
            all.entry((user.to_owned(), tool.to_owned())).or_insert_with(|| self.rates.of(tool).map(full).collect());
        let waits = buckets.iter_mut().map(|LimitedBucket { rate, bucket }| bucket.wait(*rate, 1, now));
        if let Some(wait) = waits.max().filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        for LimitedBucket { rate, bucket } in buckets {
            bucket.take(*rate, 1, now)?;
        }
        Ok(())
    }

    /// Gives back what [`Self::take`] took, for a call that was not made after all.
    pub fn give_back(&self, user: &str, tool: &str) {
        if let Some(buckets) = self.buckets.lock().get_mut(&(user.to_owned(), tool.to_owned())) {
            for LimitedBucket { rate, bucket } in buckets {
                bucket.give_back(*rate);
            }
        }
    }
}

impl LimitedBucket {
    fn is_full(&mut self, now: Duration) -> bool {
        self.bucket.wait(self.rate, u64::from(self.rate.burst), now).is_zero()
    }
}

/// Drops the least recently used pairs, if the map is still full.
fn evict_oldest(all: &mut HashMap<(String, String), Vec<LimitedBucket>>) {
    if all.len() < MAX_BUCKETS {
        return;
    }
    let last_used =
        |buckets: &[LimitedBucket]| buckets.first().map_or(Duration::ZERO, |limited| limited.bucket.refilled_at);
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
    use rstest::rstest;

    use super::*;

    const AS_IN_THE_CONTRACT: ToolRates = ToolRates { burst: 60, per_second: 1, per_hour: 1_000 };

    fn taken(limits: &ToolRateLimits, user: &str, tool: &str, at: Duration) -> u32 {
        (0..10_000).find(|_| limits.take(user, tool, at).is_err()).unwrap_or(10_000)
    }

    /// What a user may call at once, how long the next call waits, and what a user who calls every second makes in an
    /// hour.
    #[rstest]
    #[case::message("message", 10, 6_000, 10 + 600, 100 + 100)]
    #[case::create_job("create_job", 5, 12_000, 5 + 300, 30 + 30)]
    #[case::http("http", 30, 2_000, 30 + 1_800, 500 + 500)]
    #[case::memory_write("memory_write", 20, 3_000, 20 + 1_200, 200 + 200)]
    #[case::any_other("echo", 60, 1_000, 60 + 3_600, 1_000 + 1_000)]
    fn rates_are_exact(
        #[case] tool: &str,
        #[case] at_once: u32,
        #[case] wait_ms: u64,
        #[case] by_minute: u32,
        #[case] by_hour: u32,
    ) {
        let limits = ToolRateLimits::new(AS_IN_THE_CONTRACT);
        assert_eq!(taken(&limits, "ada", tool, Duration::ZERO), at_once);
        let wait = Duration::from_millis(wait_ms);
        assert_eq!(limits.take("ada", tool, Duration::ZERO), Err(wait));
        assert_eq!(limits.take("ada", tool, Duration::from_millis(wait_ms - 1)), Err(Duration::from_millis(1)));
        assert_eq!(taken(&limits, "ada", tool, wait), 1);
        assert_eq!(taken(&limits, "bob", tool, wait), at_once, "users do not share a rate");
        let each_second: u32 = (1..=3_600).map(|at| taken(&limits, "ada", tool, Duration::from_secs(at))).sum();
        // A bucket gives back what its rate makes while it is emptied; the smaller of the two limits.
        assert_eq!(at_once + 1 + each_second, by_minute.min(by_hour));
        assert_eq!(taken(&limits, "ada", tool, Duration::from_hours(3)), at_once);
    }

    #[test]
    fn tools_do_not_share_a_rate_and_a_call_that_was_not_made_counts_for_nothing() {
        let limits = ToolRateLimits::new(AS_IN_THE_CONTRACT);
        assert_eq!(taken(&limits, "ada", "message", Duration::ZERO), 10);
        assert_eq!(taken(&limits, "ada", "http", Duration::ZERO), 30);
        limits.give_back("ada", "message");
        limits.give_back("ada", "never_called");
        assert_eq!(taken(&limits, "ada", "message", Duration::ZERO), 1);
        limits.give_back("bob", "message");
        assert_eq!(taken(&limits, "bob", "message", Duration::ZERO), 10);
    }

    #[rstest]
    #[case::none(ToolRates { burst: 0, per_second: 1, per_hour: 0 }, 10_000, 10_000)]
    #[case::hourly_only(ToolRates { burst: 0, per_second: 1, per_hour: 1_000 }, 1_000, 100)]
    #[case::at_once_only(ToolRates { burst: 60, per_second: 1, per_hour: 0 }, 60, 10)]
    fn zero_is_no_limit(#[case] rates: ToolRates, #[case] echo: u32, #[case] message: u32) {
        let limits = ToolRateLimits::new(rates);
        let taken = |tool| taken(&limits, "ada", tool, Duration::ZERO);
        assert_eq!((taken("echo"), taken("message")), (echo, message));
    }

    #[test]
    fn the_number_of_buckets_is_bounded_though_none_is_full() {
        let limits = ToolRateLimits::new(ToolRates { burst: 10, per_second: 1, per_hour: 1 });
        for user in 0..(MAX_BUCKETS as u64 + 5_000) {
            limits.take(&user.to_string(), "echo", Duration::from_millis(user)).unwrap();
        }
        let kept = limits.buckets.lock();
        assert!(kept.len() <= MAX_BUCKETS, "{} buckets", kept.len());
        assert!(kept.contains_key(&("14999".to_owned(), "echo".to_owned())));
    }
}
