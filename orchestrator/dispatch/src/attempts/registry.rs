//! The registry of live attempts.
//!
//! An attempt is registered when the transition that begins it is committed, or from its job's row where an earlier
//! process began it. It leaves the registry once it is over and its socket is no longer served. Correct as long as one
//! process serves a job's socket.
//!
//! `reconcile` gets a list of jobs that is older than the registry: transitions are observed while it is read. So a row
//! adds what is missing and never takes back what is newer: an attempt that began after `read_at`, or has a higher
//! number than its row, is kept (`a_list_without_the_new_job_drops_no_attempt`,
//! `an_outdated_list_does_not_affect_a_newer_attempt`), and one that has ended is not revived
//! (`an_ended_attempt_is_not_revived_by_an_older_record`). An attempt that is over stays while its socket is served or
//! its loop runs here, since both are stopped by way of the registry (`an_attempt_stays_while_its_socket_is_served`),
//! and while its job is open: the next attempt shares its limits
//! (`a_call_of_an_older_attempt_does_not_count_for_the_newer_one`).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use protocol::{JobId, JobState};
use tokio_util::task::TaskTracker;

use super::{
    activity::Liveness,
    attempt::{Attempt, AttemptKey},
    host_run::HostRunState,
};
use base::clock::Clock;
use domain::job::JobRecord;
use store::{JobChange, JobObserver};

use crate::Violation;

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

    /// The observer that the store calls after each commit that concerns an attempt.
    pub fn observer(self: &Arc<Self>) -> JobObserver {
        let registry = Arc::clone(self);
        Arc::new(move |change| match change {
            JobChange::Transitioned(record) => {
                registry.observe(record);
            }
            JobChange::PromptAdded(job) => {
                if let Some(attempt) = registry.live(job) {
                    attempt.prompt_added();
                }
            }
        })
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

    /// Registers the live attempts among `jobs`, which were read after the monotonic time `read_at`, and returns the
    /// liveness of each. Attempts of other jobs are dropped once they are over, unless they began after that time. Jobs
    /// in `unreadable` keep theirs.
    pub fn reconcile(
        &self,
        jobs: &[JobRecord],
        unreadable: &HashSet<JobId>,
        read_at: Duration,
    ) -> HashMap<JobId, Liveness> {
        let now = self.clock.monotonic();
        let live = jobs.iter().filter_map(|job| Some((job.id, self.observe(job)?.liveness(now)))).collect();
        let open: HashMap<JobId, u32> = jobs.iter().map(|job| (job.id, job.attempt)).collect();
        self.attempts.lock().retain(|key, attempt| {
            let is_kept = match open.get(&key.job) {
                // An attempt that is over is kept for the limits that the job's next one shares, until that is there.
                Some(current) => key.attempt >= *current,
                None => unreadable.contains(&key.job) || (attempt.is_live() && attempt.began() >= read_at),
            };
            let runs_here = attempt.host_run().is_some_and(|run| run.state() == HostRunState::Running);
            is_kept || runs_here || attempt.served_container().is_some()
        });
        live
    }

    /// Containers whose socket is served.
    pub fn served_containers(&self) -> HashSet<String> {
        self.attempts.lock().values().filter_map(|attempt| attempt.served_container()).collect()
    }

    /// Stops serving the socket of a container.
    pub fn stop_listener(&self, container: &str) {
        self.attempts.lock().values().for_each(|attempt| attempt.stop_listener(Some(container)));
    }

    /// Stops serving all sockets.
    pub fn stop_listeners(&self) {
        self.attempts.lock().values().for_each(|attempt| attempt.stop_listener(None));
    }

    /// The attempts whose loop runs, or ran, in this process.
    pub fn host_runs(&self) -> HashMap<AttemptKey, HostRunState> {
        let attempts = self.attempts.lock();
        attempts.iter().filter_map(|(key, attempt)| Some((*key, attempt.host_run()?.state()))).collect()
    }

    /// Jobs with a loop in this process that has not ended.
    pub fn jobs_run_here(&self) -> HashSet<JobId> {
        let running = |(key, state): (AttemptKey, _)| (state == HostRunState::Running).then_some(key.job);
        self.host_runs().into_iter().filter_map(running).collect()
    }

    /// Marks an attempt as over its disk quota. False when it is not registered, or over.
    pub fn mark_over_quota(&self, key: AttemptKey, violation: &Violation) -> bool {
        let attempts = self.attempts.lock();
        let Some(attempt) = attempts.get(&key).filter(|attempt| attempt.is_live()) else { return false };
        attempt.set_over_quota(violation.clone());
        true
    }

    /// How a job's live attempt exceeds its disk quota, if it was found to.
    pub fn over_quota(&self, job: JobId) -> Option<Violation> {
        self.live(job)?.over_quota()
    }

    /// Jobs whose live attempt exceeds its disk quota.
    pub fn over_quota_jobs(&self) -> HashSet<JobId> {
        let attempts = self.attempts.lock();
        let over = attempts.iter().filter(|(_, attempt)| attempt.is_live() && attempt.over_quota().is_some());
        over.map(|(key, _)| key.job).collect()
    }

    /// Jobs whose live attempt waits for a child job.
    pub fn jobs_waiting_for_child(&self) -> HashSet<JobId> {
        let attempts = self.attempts.lock();
        let waiting = attempts.iter().filter(|(_, attempt)| attempt.is_live() && attempt.waits_for_child());
        waiting.map(|(key, _)| key.job).collect()
    }
}

fn all_of(job: JobId) -> RangeInclusive<AttemptKey> {
    AttemptKey { job, attempt: 0 }..=AttemptKey { job, attempt: u32::MAX }
}

#[cfg(test)]
mod tests;
