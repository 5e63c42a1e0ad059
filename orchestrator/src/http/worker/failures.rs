//! How often the calls of one job may fail: a bucket for each job, so that a worker that repeats what is refused costs
//! little and delays nobody else.
//!
//! Never judges a call: who made it says that it has failed.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::rate_limit::{Bucket, Rate};
use protocol::{ErrorCode, JobId, RateLimitOrigin};

use crate::http::problem::ApiError;

/// Five a second (contract: agent, Gateway), and twice as many at once: a reply's calls run in parallel.
const FAILED_CALLS: Rate = Rate { burst: 10, per_hour: 5 * 3_600 };
/// Jobs remembered before those whose bucket is full again are forgotten.
const MAX_JOBS: usize = 1_000;

/// The buckets of one kind of call.
#[derive(Default)]
pub(super) struct FailureLimiter(Mutex<HashMap<JobId, Bucket>>);

impl FailureLimiter {
    /// Refuses a call while too many others of the job have just failed.
    pub(super) fn check(&self, job: JobId, now: Duration) -> Result<(), ApiError> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = buckets.get_mut(&job).map_or(Duration::ZERO, |bucket| bucket.wait(FAILED_CALLS, 1, now));
        if wait.is_zero() {
            return Ok(());
        }
        let refused =
            ApiError::new(ErrorCode::RateLimited, "too many calls of this job have failed; wait before the next one");
        Err(refused.with_reason(RateLimitOrigin::Local.as_str()).with_retry_after(wait))
    }

    /// Counts a call that has failed.
    pub(super) fn count(&self, job: JobId, now: Duration) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_JOBS {
            buckets.retain(|_, bucket| !bucket.wait(FAILED_CALLS, u64::from(FAILED_CALLS.burst), now).is_zero());
        }
        let bucket = buckets.entry(job).or_insert_with(|| Bucket::full(FAILED_CALLS, now));
        // Calls that were let in together may find it empty: the next one waits.
        let _ = bucket.take(FAILED_CALLS, 1, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_a_second_may_fail_after_ten_at_once_and_only_the_jobs_own_calls_wait() {
        let limiter = FailureLimiter::default();
        let (job, other) = (JobId::generate(), JobId::generate());
        let failing = |seconds: u64| {
            let now = Duration::from_secs(seconds);
            (0..1_000).take_while(|_| limiter.check(job, now).is_ok()).map(|_| limiter.count(job, now)).count()
        };
        assert_eq!((failing(0), failing(1), failing(2), failing(60)), (10, 5, 5, 10));
        let refused = limiter.check(job, Duration::from_mins(1)).expect_err("the bucket is empty");
        assert_eq!(refused.code(), ErrorCode::RateLimited);
        assert!(limiter.check(other, Duration::from_mins(1)).is_ok());
    }
}
