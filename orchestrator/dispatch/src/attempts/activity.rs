//! When an attempt was last heard from and when it last made progress.
//!
//! Measured by monotonic time, so that a step of the wall clock ends nothing, and kept in memory, so that a restart of
//! the process grants each live attempt a fresh period. Only records; what an age means is decided in `plan`.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// How long ago an attempt was last heard from and last made progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Since the last call of its worker.
    pub since_contact: Duration,
    /// Since its last progress; zero while a call of its is in flight.
    pub since_progress: Duration,
    /// Since the attempt began, as far as this process knows.
    pub attempt_age: Duration,
    /// Since the job's first attempt began: its wall clock.
    pub job_age: Duration,
}

/// When one attempt was last heard from and last made progress, as monotonic times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activity {
    began: Duration,
    pub(super) contact: Duration,
    pub(super) progress: Duration,
    iteration: u32,
    pub(super) calls_in_flight: u32,
}

impl Activity {
    /// A fresh period from `now` on.
    pub(super) const fn new(now: Duration) -> Self {
        Self { began: now, contact: now, progress: now, iteration: 0, calls_in_flight: 0 }
    }

    /// Records a heartbeat, which is progress only when it reports a new iteration. Returns whether it does.
    pub(super) const fn record_iteration(&mut self, iteration: u32, now: Duration) -> bool {
        let is_new = iteration > self.iteration;
        if is_new {
            (self.iteration, self.progress) = (iteration, now);
        }
        is_new
    }

    /// The ages at `now`; the job's is the caller's to add.
    pub(super) fn liveness(&self, now: Duration, job_age: Duration) -> Liveness {
        let since = |then: Duration| now.saturating_sub(then);
        Liveness {
            since_contact: since(self.contact),
            since_progress: if self.calls_in_flight > 0 { Duration::ZERO } else { since(self.progress) },
            attempt_age: since(self.began),
            job_age,
        }
    }
}

/// The wall clock of a job, kept by monotonic time from the moment this process first saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobClock {
    seen: Duration,
    ran_before: Duration,
}

impl JobClock {
    /// The clock of a job that started at `started_at`, seen `now` (monotonic) at `wall`.
    pub(super) fn new(started_at: Option<DateTime<Utc>>, wall: DateTime<Utc>, now: Duration) -> Self {
        let ran_before = started_at.and_then(|at| (wall - at).to_std().ok()).unwrap_or_default();
        Self { seen: now, ran_before }
    }

    /// How long the job has run.
    pub(super) fn age(&self, now: Duration) -> Duration {
        self.ran_before + now.saturating_sub(self.seen)
    }
}
