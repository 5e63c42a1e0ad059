//! Token buckets of one job's worker, so that a flood of requests slows down its sender only.

use std::time::Duration;

use base::rate_limit::{Bucket, Rate};
use parking_lot::Mutex;

/// One token bucket. Shared by all calls of a job.
#[derive(Debug)]
pub struct RateLimiter {
    rate: Rate,
    bucket: Mutex<Bucket>,
}

impl RateLimiter {
    /// A full bucket.
    pub(super) const fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, bucket: Mutex::new(Bucket::full(rate, now)) }
    }

    /// Takes `tokens`, or returns how long to wait for them.
    pub fn take(&self, tokens: u64, now: Duration) -> Result<(), Duration> {
        self.bucket.lock().take(self.rate, tokens, now)
    }

    /// Returns how long to wait while the bucket is empty. Takes nothing.
    pub fn check(&self, now: Duration) -> Result<(), Duration> {
        let wait = self.bucket.lock().wait(self.rate, 1, now);
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }
}
