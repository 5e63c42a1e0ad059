//! Signs of life of the attempts that run: when each was last heard, when it last got somewhere, what is in flight.
//!
//! By monotonic time, so that a step of the wall clock ends nothing, and in memory, so that a start of the process gives
//! each live attempt a fresh period. Only keeps signs; what they mean is `plan`'s.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use protocol::JobId;

use crate::{clock::Clock, domain::job::JobRecord};

/// The signs. Clones are the same.
#[derive(Debug, Clone)]
pub struct Pulse {
    clock: Clock,
    beats: Arc<Mutex<HashMap<JobId, Beat>>>,
}

/// What is known of one attempt, as ages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signs {
    /// Since its worker was last heard.
    pub silent: Duration,
    /// Since its last activity; nothing while a call of its is in flight.
    pub idle: Duration,
    /// Since the attempt began, as far as this process knows.
    pub attempt: Duration,
    /// Since the job's first attempt began: its wall clock.
    pub job: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Beat {
    attempt: u32,
    began: Duration,
    heard: Duration,
    active: Duration,
    iteration: u32,
    in_flight: u32,
    /// When this process first saw the job, and how long it had run by then.
    seen: Duration,
    ran_before: Duration,
}

impl Pulse {
    /// Nothing known yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, beats: Arc::default() }
    }

    /// The attempt's worker called.
    pub fn heard(&self, job: JobId, attempt: u32) {
        self.with(job, attempt, |beat, now| beat.heard = now);
    }

    /// The attempt got somewhere.
    pub fn active(&self, job: JobId, attempt: u32) {
        self.with(job, attempt, |beat, now| beat.active = now);
    }

    /// A heartbeat: activity only when it tells of a new iteration. True = it does.
    pub fn iteration(&self, job: JobId, attempt: u32, iteration: u32) -> bool {
        let mut fresh = false;
        self.with(job, attempt, |beat, now| {
            fresh = iteration > beat.iteration;
            if fresh {
                (beat.iteration, beat.active) = (iteration, now);
            }
        });
        fresh
    }

    /// A model or tool call is in flight for as long as the guard lives.
    pub fn in_flight(&self, job: JobId, attempt: u32) -> InFlight {
        self.with(job, attempt, |beat, _| beat.in_flight += 1);
        InFlight { pulse: self.clone(), job, attempt }
    }

    /// The signs of these jobs, now. Others are forgotten; one that is new gets a fresh period.
    pub fn look(&self, jobs: &[JobRecord], wall: DateTime<Utc>) -> HashMap<JobId, Signs> {
        let now = self.clock.monotonic();
        let mut beats = self.lock();
        let mut looked = HashMap::with_capacity(jobs.len());
        let mut kept = HashMap::with_capacity(jobs.len());
        for job in jobs.iter().filter(|job| job.attempt > 0) {
            let ran = job.started_at.and_then(|at| (wall - at).to_std().ok()).unwrap_or_default();
            let mut beat =
                beats.get(&job.id).copied().unwrap_or(Beat { ran_before: ran, ..Beat::new(job.attempt, now) });
            if beat.attempt != job.attempt {
                beat = Beat { seen: beat.seen, ran_before: beat.ran_before, ..Beat::new(job.attempt, now) };
            }
            looked.insert(job.id, beat.signs(now));
            kept.insert(job.id, beat);
        }
        *beats = kept;
        looked
    }

    fn with(&self, job: JobId, attempt: u32, act: impl FnOnce(&mut Beat, Duration)) {
        let now = self.clock.monotonic();
        if let Some(beat) = self.lock().get_mut(&job).filter(|beat| beat.attempt == attempt) {
            act(beat, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Beat>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    const fn new(attempt: u32, now: Duration) -> Self {
        Self {
            attempt,
            began: now,
            heard: now,
            active: now,
            iteration: 0,
            in_flight: 0,
            seen: now,
            ran_before: Duration::ZERO,
        }
    }

    fn signs(&self, now: Duration) -> Signs {
        let since = |then: Duration| now.saturating_sub(then);
        Signs {
            silent: since(self.heard),
            idle: if self.in_flight > 0 { Duration::ZERO } else { since(self.active) },
            attempt: since(self.began),
            job: self.ran_before + since(self.seen),
        }
    }
}

/// A call in flight.
#[derive(Debug)]
pub struct InFlight {
    pulse: Pulse,
    job: JobId,
    attempt: u32,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.pulse.with(self.job, self.attempt, |beat, now| {
            beat.in_flight = beat.in_flight.saturating_sub(1);
            beat.active = now;
        });
    }
}
