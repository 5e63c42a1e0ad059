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
    /// The job's wall clock; not known until the dispatcher has looked at its row.
    clock: Option<JobClock>,
}

/// When this process first saw the job's row, and how long the job had run by then.
#[derive(Debug, Clone, Copy)]
struct JobClock {
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
        let counted = self.with(job, attempt, |beat, _| beat.in_flight += 1);
        InFlight { pulse: self.clone(), job, attempt, counted }
    }

    /// The signs of these jobs, now. Others are forgotten, unless a call of theirs is in flight: the list may be older than
    /// the call. One that is new gets a fresh period.
    pub fn look(&self, jobs: &[JobRecord], wall: DateTime<Utc>) -> HashMap<JobId, Signs> {
        let now = self.clock.monotonic();
        let mut beats = self.lock();
        let mut looked = HashMap::with_capacity(jobs.len());
        let mut kept = HashMap::with_capacity(jobs.len());
        for job in jobs.iter().filter(|job| job.attempt > 0) {
            let mut beat = beats.remove(&job.id).unwrap_or_else(|| Beat::new(job.attempt, now));
            beat.follow(job.attempt, now);
            let clock = beat.clock.get_or_insert_with(|| {
                let ran_before = job.started_at.and_then(|at| (wall - at).to_std().ok()).unwrap_or_default();
                JobClock { seen: now, ran_before }
            });
            let ran = clock.ran_before + now.saturating_sub(clock.seen);
            looked.insert(job.id, Signs { job: ran, ..beat.signs(now) });
            kept.insert(job.id, beat);
        }
        kept.extend(beats.drain().filter(|(_, beat)| beat.in_flight > 0));
        *beats = kept;
        looked
    }

    /// Does this to the attempt's entry, which is made when there is none: a worker may call before the dispatcher has
    /// looked at its attempt. False = a newer attempt is known.
    fn with(&self, job: JobId, attempt: u32, act: impl FnOnce(&mut Beat, Duration)) -> bool {
        let now = self.clock.monotonic();
        let mut beats = self.lock();
        let beat = beats.entry(job).or_insert_with(|| Beat::new(attempt, now));
        beat.follow(attempt, now);
        let is_current = beat.attempt == attempt;
        if is_current {
            act(beat, now);
        }
        is_current
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Beat>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    const fn new(attempt: u32, now: Duration) -> Self {
        Self { attempt, began: now, heard: now, active: now, iteration: 0, in_flight: 0, clock: None }
    }

    /// Goes on to this attempt if it is a newer one; the job's wall clock stays.
    fn follow(&mut self, attempt: u32, now: Duration) {
        if attempt > self.attempt {
            *self = Self { clock: self.clock, ..Self::new(attempt, now) };
        }
    }

    fn signs(&self, now: Duration) -> Signs {
        let since = |then: Duration| now.saturating_sub(then);
        Signs {
            silent: since(self.heard),
            idle: if self.in_flight > 0 { Duration::ZERO } else { since(self.active) },
            attempt: since(self.began),
            job: Duration::ZERO,
        }
    }
}

/// A call in flight.
#[derive(Debug)]
pub struct InFlight {
    pulse: Pulse,
    job: JobId,
    attempt: u32,
    /// Only what was counted is taken back.
    counted: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        self.pulse.with(self.job, self.attempt, |beat, now| {
            beat.in_flight = beat.in_flight.saturating_sub(1);
            beat.active = now;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::ManualClock, domain::job::sample};

    const ATTEMPT: u32 = 1;

    fn running(attempt: u32, clock: &ManualClock) -> JobRecord {
        let mut job = sample::job(protocol::JobState::InProgress);
        (job.attempt, job.started_at) = (attempt, Some(Clock::Manual(clock.clone()).now()));
        job
    }

    fn world() -> (ManualClock, Pulse) {
        let clock = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
        (clock.clone(), Pulse::new(Clock::Manual(clock)))
    }

    fn signs(pulse: &Pulse, job: &JobRecord) -> Signs {
        let wall = pulse.clock.now();
        pulse.look(std::slice::from_ref(job), wall)[&job.id]
    }

    #[test]
    fn a_call_before_the_first_look_is_in_flight() {
        let (clock, pulse) = world();
        let job = running(ATTEMPT, &clock);
        let call = pulse.in_flight(job.id, ATTEMPT);
        clock.advance(Duration::from_secs(200));
        assert_eq!(signs(&pulse, &job).idle, Duration::ZERO);
        clock.advance(Duration::from_secs(200));
        let looked = signs(&pulse, &job);
        assert_eq!(
            (looked.idle, looked.job, looked.attempt),
            (Duration::ZERO, Duration::from_secs(400), Duration::from_secs(400))
        );
        drop(call);
        clock.advance(Duration::from_secs(7));
        assert_eq!(signs(&pulse, &job).idle, Duration::from_secs(7));
    }

    #[test]
    fn a_call_of_a_newer_attempt_before_it_is_looked_at_is_in_flight() {
        let (clock, pulse) = world();
        let mut job = running(ATTEMPT, &clock);
        signs(&pulse, &job);
        clock.advance(Duration::from_secs(10));
        let _call = pulse.in_flight(job.id, 2);
        clock.advance(Duration::from_secs(400));
        // A list from before the attempt takes nothing back.
        signs(&pulse, &job);
        job.attempt = 2;
        let looked = signs(&pulse, &job);
        assert_eq!(
            (looked.idle, looked.attempt, looked.job),
            (Duration::ZERO, Duration::from_secs(400), Duration::from_secs(410))
        );
    }

    #[test]
    fn a_call_of_an_older_attempt_takes_nothing_from_the_newer_ones() {
        let (clock, pulse) = world();
        let job = running(2, &clock);
        let _call = pulse.in_flight(job.id, 2);
        drop(pulse.in_flight(job.id, 1));
        clock.advance(Duration::from_secs(400));
        assert_eq!(signs(&pulse, &job).idle, Duration::ZERO);
    }

    #[test]
    fn a_look_that_does_not_know_the_job_yet_loses_no_call() {
        let (clock, pulse) = world();
        let job = running(ATTEMPT, &clock);
        let call = pulse.in_flight(job.id, ATTEMPT);
        pulse.look(&[], pulse.clock.now());
        clock.advance(Duration::from_secs(400));
        assert_eq!(signs(&pulse, &job).idle, Duration::ZERO);
        drop(call);
        pulse.look(&[], pulse.clock.now());
        assert!(pulse.lock().is_empty(), "what has ended is forgotten");
    }
}
