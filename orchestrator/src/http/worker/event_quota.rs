//! How much one job's worker may write into its events, in all: beside the rate, so that a long flood ends too.
//!
//! Counted in memory; what is there already is asked of the store when a job is first heard of. Over the quota what the
//! worker only tells along the way is no longer stored, while the conversation and the calls go on; far over it nothing is.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use protocol::{EventKind, JobId};

/// Most bytes of a job's events with everything in them: some 2,500 commands that each print the 100 kB that are kept.
pub(super) const MAX_EVENT_BYTES: u64 = 256 * 1024 * 1024;
/// Most bytes of a job's events at all: the conversation and the calls may fill four times as much.
pub(super) const MAX_EVENT_BYTES_HARD: u64 = 4 * MAX_EVENT_BYTES;
/// Its name in the `limit` event.
pub(super) const LIMIT: &str = "max_events_mb";
/// Jobs remembered; one that is forgotten is asked for again.
const MAX_JOBS: usize = 10_000;

/// What is known of the jobs at work.
#[derive(Default)]
pub(super) struct EventQuota {
    written: Mutex<HashMap<JobId, u64>>,
}

/// What becomes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// All of it is stored.
    All,
    /// The first batch over the quota: the same, and the job is told.
    ReachedNow,
    /// Only the conversation and the calls are stored.
    Essential,
    /// Nothing is.
    None,
}

impl EventQuota {
    /// Whether a job's events have been counted.
    pub(super) fn knows(&self, job: JobId) -> bool {
        self.lock().contains_key(&job)
    }

    /// Takes over what a job has written before.
    pub(super) fn learn(&self, job: JobId, bytes: u64) {
        let mut written = self.lock();
        if written.len() >= MAX_JOBS {
            written.clear();
        }
        written.entry(job).or_insert(bytes);
    }

    /// Counts a batch, and says what becomes of it.
    pub(super) fn take(&self, job: JobId, bytes: u64) -> Room {
        let mut written = self.lock();
        let before = written.entry(job).or_default();
        if before.saturating_add(bytes) > MAX_EVENT_BYTES_HARD {
            return Room::None;
        }
        let was_over = *before >= MAX_EVENT_BYTES;
        *before += bytes;
        match (was_over, *before >= MAX_EVENT_BYTES) {
            (true, _) => Room::Essential,
            (false, true) => Room::ReachedNow,
            (false, false) => Room::All,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, u64>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kinds without which a job cannot be gone on with or understood.
pub(super) fn is_essential(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Log | EventKind::Status | EventKind::Reasoning | EventKind::Egress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_told_once_and_then_only_the_essential_is_kept_until_nothing_is() {
        let (quota, job) = (EventQuota::default(), JobId::generate());
        assert!(!quota.knows(job));
        quota.learn(job, MAX_EVENT_BYTES - 10);
        assert!(quota.knows(job));
        assert_eq!(quota.take(job, 9), Room::All);
        assert_eq!(quota.take(job, 1), Room::ReachedNow);
        assert_eq!(quota.take(job, 1), Room::Essential);
        assert_eq!(quota.take(job, MAX_EVENT_BYTES_HARD), Room::None);
        assert_eq!(quota.take(job, 1), Room::Essential, "a smaller batch still fits");
    }

    #[test]
    fn a_job_that_was_told_before_a_restart_is_not_told_again() {
        let (quota, job) = (EventQuota::default(), JobId::generate());
        quota.learn(job, MAX_EVENT_BYTES + 1);
        assert_eq!(quota.take(job, 1), Room::Essential);
    }

    #[test]
    fn what_was_said_and_done_is_essential() {
        let kept: Vec<&str> = EventKind::ALL
            .iter()
            .filter(|kind| kind.from_worker() && is_essential(**kind))
            .map(|kind| kind.as_str())
            .collect();
        assert_eq!(kept, ["message", "plan", "tool_use", "tool_result", "limit"]);
    }
}
