//! How many events a job may send: a bucket per job, so that a flood costs its sender and nobody else.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use protocol::JobId;

/// At once; several model turns with everything they print.
const BURST_EVENTS: u64 = 5_000;
/// Lasting. Far above what a model can cause, far below what the store can write.
const EVENTS_A_SECOND: u64 = 500;
/// Jobs remembered; a full bucket is the same as none, so forgetting costs nothing.
const MAX_JOBS: usize = 10_000;

/// The buckets.
#[derive(Default)]
pub(super) struct Pace {
    buckets: Mutex<HashMap<JobId, Bucket>>,
}

struct Bucket {
    /// In thousandths of an event.
    left: u64,
    at: Duration,
}

impl Pace {
    /// Takes room for `events`, or says how long to wait.
    pub(super) fn take(&self, job: JobId, events: usize, now: Duration) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_JOBS {
            buckets.clear();
        }
        let bucket = buckets.entry(job).or_insert(Bucket { left: BURST_EVENTS * 1_000, at: now });
        let passed = u64::try_from(now.saturating_sub(bucket.at).as_millis()).unwrap_or(u64::MAX);
        bucket.left = bucket.left.saturating_add(passed.saturating_mul(EVENTS_A_SECOND)).min(BURST_EVENTS * 1_000);
        bucket.at = now;
        let wanted = events as u64 * 1_000;
        if wanted <= bucket.left {
            bucket.left -= wanted;
            return Ok(());
        }
        Err(Duration::from_millis((wanted - bucket.left).div_ceil(EVENTS_A_SECOND)))
    }
}
