//! How many events a job may send: a bucket per job, so that a flood costs its sender and nobody else.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use agent::{Bucket, Rate};
use protocol::JobId;

/// At once several model turns with everything they print; lasting 500 a second, which is far above what a model can cause and
/// far below what the store can write.
const PACE: Rate = Rate { burst: 5_000, per_hour: 500 * 3_600 };
/// Jobs remembered; a full bucket is the same as none, so forgetting costs nothing.
const MAX_JOBS: usize = 10_000;

/// The buckets.
#[derive(Default)]
pub(super) struct Pace {
    buckets: Mutex<HashMap<JobId, Bucket>>,
}

impl Pace {
    /// Takes room for `events`, or says how long to wait.
    pub(super) fn take(&self, job: JobId, events: usize, now: Duration) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_JOBS {
            buckets.clear();
        }
        buckets.entry(job).or_insert_with(|| Bucket::full(PACE, now)).take(PACE, events as u64, now)
    }
}
