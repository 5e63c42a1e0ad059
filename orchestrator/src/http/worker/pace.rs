//! How many events a job may send, and how much in them: buckets per job, so that a flood costs its sender and nobody else.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::rate_limit::{Bucket, Rate};
use protocol::JobId;

/// At once several model turns with everything they print; lasting 500 a second, which is far above what a model can cause and
/// far below what the store can write.
const PACE: Rate = Rate { burst: 5_000, per_hour: 500 * 3_600 };
/// Their size in KiB: at once what 300 calls print that are cut at 100 kB, lasting 256 a second.
const VOLUME: Rate = Rate { burst: 32 * 1024, per_hour: 256 * 3_600 };
/// Jobs remembered; a full bucket is the same as none, so forgetting costs nothing.
const MAX_JOBS: usize = 10_000;

/// The buckets.
#[derive(Default)]
pub(super) struct Pace {
    buckets: Mutex<HashMap<JobId, (Bucket, Bucket)>>,
}

impl Pace {
    /// Takes room for `events` of so many bytes in all, or says how long to wait.
    pub(super) fn take(&self, job: JobId, (events, bytes): (usize, usize), now: Duration) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_JOBS {
            buckets.clear();
        }
        let (pace, volume) = buckets.entry(job).or_insert_with(|| (Bucket::full(PACE, now), Bucket::full(VOLUME, now)));
        // What the first gave when the second has none is lost to whoever sends too much.
        pace.take(PACE, events as u64, now)?;
        volume.take(VOLUME, bytes.div_ceil(1024) as u64, now)
    }
}
