//! The registry of live attempts.
//!
//! An attempt is registered when the transition that begins it is committed, or from its job's row where an earlier
//! process began it. It leaves the registry once it is over and its socket is no longer served. Correct as long as one
//! process serves a job's socket.
//!
//! An attempt that is over stays while its socket is served or its loop runs here, since both are stopped by way of the
//! registry (`an_attempt_stays_while_its_socket_is_served`), and while its job is open: the next attempt shares its
//! limits (`a_call_of_an_older_attempt_does_not_count_for_the_newer_one`). One that has ended is not revived by an older
//! row (`an_ended_attempt_is_not_revived_by_an_older_record`).

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
};

use parking_lot::Mutex;
use protocol::{JobId, JobState};
use tokio_util::task::TaskTracker;

use super::{
    attempt::{Attempt, AttemptFacts, AttemptKey},
    host_run::HostRunState,
};
use base::clock::Clock;
use domain::job::JobRecord;
use store::JobChange;

use crate::{OpenJobs, Violation};

/// The attempts of this process.
#[derive(Debug)]
pub struct AttemptRegistry {
    clock: Clock,
    /// Owns the calls in flight: they outlive the requests that asked for them.
    tasks: TaskTracker,
    attempts: Mutex<BTreeMap<AttemptKey, Arc<Attempt>>>,
}

impl AttemptRegistry {
    /// An empty registry.
    pub fn new(clock: Clock, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { clock, tasks, attempts: Mutex::default() })
    }

    /// Takes over a committed change.
    pub(crate) fn observe_change(&self, change: JobChange<'_>) {
        match change {
            JobChange::Created(record) | JobChange::Transitioned { job: record, .. } => {
                self.observe(record);
            }
            JobChange::PromptAdded(job) => {
                if let Some(attempt) = self.live(job) {
                    attempt.prompt_added();
                }
            }
            JobChange::ContainerRecorded { .. }
            | JobChange::WorkerCalled { .. }
            | JobChange::Read(_)
            | JobChange::Summed(_)
            | JobChange::Uncertain => {}
        }
    }

    /// Registers the record's attempt if it is new. Returns it if it is live.
    pub fn observe(&self, record: &JobRecord) -> Option<Arc<Attempt>> {
        let key = AttemptKey { job: record.id, attempt: record.attempt };
        let mut attempts = self.attempts.lock();
        for (_, attempt) in attempts.range(all_of(record.id)) {
            attempt.update(record);
        }
        if let Some(known) = attempts.get(&key) {
            return Some(Arc::clone(known)).filter(|attempt| attempt.is_live());
        }
        let newest = attempts.range(all_of(record.id)).next_back().map(|(_, attempt)| Arc::clone(attempt));
        let is_overtaken = newest.as_ref().is_some_and(|newest| newest.record().rev > record.rev);
        if is_overtaken || !matches!(record.state(), JobState::InProgress | JobState::Stuck) {
            return None;
        }
        let limits = newest.map(|newest| Arc::clone(newest.limits()));
        let attempt = Arc::new(Attempt::new(record, &self.clock, &self.tasks, limits));
        attempts.insert(key, Arc::clone(&attempt));
        Some(attempt)
    }

    /// An attempt that is live, or whose end is not complete.
    pub fn get(&self, key: AttemptKey) -> Option<Arc<Attempt>> {
        self.attempts.lock().get(&key).map(Arc::clone)
    }

    pub fn live(&self, job: JobId) -> Option<Arc<Attempt>> {
        self.attempts
            .lock()
            .range(all_of(job))
            .next_back()
            .map(|(_, attempt)| Arc::clone(attempt))
            .filter(|one| one.is_live())
    }

    /// Drops the attempts that are over.
    pub(crate) fn drop_ended(&self, jobs: &OpenJobs) {
        self.attempts.lock().retain(|key, attempt| {
            let runs_here = attempt.host_run().is_some_and(|run| run.state() == HostRunState::Running);
            runs_here || attempt.is_served() || jobs.keeps_attempt(key.job, key.attempt)
        });
    }

    /// What the process knows of each attempt.
    pub(crate) fn facts(&self) -> HashMap<AttemptKey, AttemptFacts> {
        let now = self.clock.monotonic();
        self.attempts.lock().iter().map(|(key, attempt)| (*key, attempt.facts(now))).collect()
    }

    /// Stops serving the socket of a container.
    pub(crate) fn stop_listener(&self, container: &str) {
        self.attempts.lock().values().for_each(|attempt| attempt.stop_listener(Some(container)));
    }

    /// Stops serving all sockets.
    pub(crate) fn stop_listeners(&self) {
        self.attempts.lock().values().for_each(|attempt| attempt.stop_listener(None));
    }

    /// Marks an attempt as over its disk quota. False when it is not registered, or over.
    pub(crate) fn mark_over_quota(&self, key: AttemptKey, violation: &Violation) -> bool {
        let attempts = self.attempts.lock();
        let Some(attempt) = attempts.get(&key).filter(|attempt| attempt.is_live()) else { return false };
        attempt.set_over_quota(violation.clone());
        true
    }

    /// How a job's live attempt exceeds its disk quota, if it was found to.
    pub(crate) fn over_quota(&self, job: JobId) -> Option<Violation> {
        self.live(job)?.over_quota()
    }
}

fn all_of(job: JobId) -> RangeInclusive<AttemptKey> {
    AttemptKey { job, attempt: 0 }..=AttemptKey { job, attempt: u32::MAX }
}

#[cfg(test)]
mod tests;
