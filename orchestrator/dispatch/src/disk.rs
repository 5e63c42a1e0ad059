//! Enforces the disk quotas of running jobs: each workspace is measured every second, and at once when the free space
//! drops.
//!
//! The ulimit `fsize` bounds one file; this bounds their sum. Marks attempts over their quota; the dispatcher ends
//! them.

mod measurer;
mod open_files;
mod verdict;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::JobId;
use tokio::{sync::watch, task::JoinSet, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::{
    measurer::Effort,
    verdict::{DropDetector, NextMeasurement, Situation, next_measurement, wait_after_pause},
};
use super::{AttemptKey, AttemptRegistry, DispatcherWaker};
use store::{RunningJob, Store};
use workspace::FreeSpace;

pub use measurer::WorkspaceMeasurer;

/// Time between two reads of the free space.
const FREE_SPACE_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two lists of the running jobs.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// A measurement triggered by a drop of the free space begins no sooner after the last one than this, or than twice
/// that one's cost.
const MIN_WAIT: Duration = Duration::from_millis(50);

/// How a job exceeds its disk quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Bytes in its workspace, as far as they were counted.
    pub bytes: u64,
    /// A human-readable message.
    pub message: String,
}

/// The sweep: one task watches the free space and the list of running jobs, and one task per running job measures it.
pub struct DiskSweep {
    /// Lists the running jobs.
    pub store: Store,
    pub measurer: WorkspaceMeasurer,
    /// Free space of their file system.
    pub free_space: FreeSpace,
    /// Attempts over their quota are marked here.
    pub attempts: Arc<AttemptRegistry>,
    pub waker: DispatcherWaker,
}

impl DiskSweep {
    /// Runs until the drain fires.
    pub async fn run(self, drain: CancellationToken) {
        let (drops, _) = watch::channel(());
        let mut watched = Watched::default();
        let mut detector = DropDetector::default();
        let mut tick = tokio::time::interval(FREE_SPACE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed_at: Option<Instant> = None;
        // The first list has the jobs of an earlier process.
        let mut is_first = true;
        loop {
            tokio::select! {
                () = drain.cancelled() => break,
                _ = tick.tick() => {}
            }
            let is_due = listed_at.is_none_or(|at| at.elapsed() >= LIST_INTERVAL);
            let must_measure_all = self.must_measure_all(&mut detector, is_due);
            if is_due || must_measure_all {
                is_first &= !self.list(&mut watched, &drops, is_first).await;
                listed_at = Some(Instant::now());
            }
            if must_measure_all {
                drops.send_replace(());
            }
            while watched.tasks.try_join_next().is_some() {}
        }
        // A container that is paused for a measurement is unpaused if the drain allows; otherwise the next process
        // unpauses it.
        watched.running.values().for_each(|(_, stop)| stop.cancel());
        while watched.tasks.join_next().await.is_some() {}
    }

    /// Whether every job is to be measured now: the free space dropped, is below the floor, or cannot be read.
    fn must_measure_all(&self, detector: &mut DropDetector, is_due: bool) -> bool {
        match self.free_space.read() {
            Ok(space) => {
                let has_dropped = detector.has_dropped(space.free_bytes, space.free_inodes);
                has_dropped || (is_due && space.free_bytes < self.free_space.floor_bytes(space))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the free space of the workspaces");
                is_due
            }
        }
    }

    /// Starts to watch jobs that have started, and stops for those that have ended. False if the jobs cannot be listed;
    /// then nothing changes.
    async fn list(&self, watched: &mut Watched, drops: &watch::Sender<()>, is_first: bool) -> bool {
        let running = match self.store.running().await {
            Ok(running) => running,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot list the running jobs");
                return false;
            }
        };
        // By container, since each attempt has another one.
        let attempts: HashSet<(JobId, &Option<String>)> = running.iter().map(|job| (job.id, &job.container)).collect();
        watched.running.retain(|id, (container, stop)| {
            let runs = attempts.contains(&(*id, container));
            if !runs {
                stop.cancel();
            }
            runs
        });
        for job in running {
            if let Entry::Vacant(entry) = watched.running.entry(job.id) {
                let stop = CancellationToken::new();
                entry.insert((job.container.clone(), stop.clone()));
                let (measurer, attempts, waker) =
                    (self.measurer.clone(), Arc::clone(&self.attempts), self.waker.clone());
                let watch = JobWatch { measurer, attempts, waker, job, drops: drops.subscribe(), stop };
                watched.tasks.spawn(watch.run(is_first));
            }
        }
        true
    }
}

/// The jobs being watched.
#[derive(Default)]
struct Watched {
    /// Each with its container and the token that stops its watch.
    running: HashMap<JobId, (Option<String>, CancellationToken)>,
    tasks: JoinSet<()>,
}

/// Watches one running job.
struct JobWatch {
    measurer: WorkspaceMeasurer,
    attempts: Arc<AttemptRegistry>,
    waker: DispatcherWaker,
    job: RunningJob,
    /// Signals drops of the free space.
    drops: watch::Receiver<()>,
    stop: CancellationToken,
}

impl JobWatch {
    /// Runs until the job ends, or exceeds its quota.
    async fn run(mut self, was_running: bool) {
        if was_running {
            // An earlier process may have died while it had the container paused.
            self.measurer.unpause(&self.job).await;
        }
        let mut was_triggered = false;
        let (mut unmeasured_since, mut paused_at): (Option<Instant>, Option<Instant>) = (None, None);
        while !self.stop.is_cancelled() {
            let started_at = Instant::now();
            let effort = if was_triggered { Effort::Thorough } else { Effort::Quick };
            let measurement = self.measurer.measure(&self.job, effort).await;
            let mut cost = started_at.elapsed();
            let step = next_measurement(Situation {
                finding: &measurement.finding,
                cost,
                was_triggered,
                unmeasured_for: unmeasured_since.map(|since: Instant| since.elapsed()).unwrap_or_default(),
                since_pause: paused_at.map(|at: Instant| at.elapsed()),
            });
            let wait = match step {
                NextMeasurement::Wait(wait) => {
                    (unmeasured_since, was_triggered) = (None, false);
                    wait
                }
                NextMeasurement::Retry(wait) => {
                    unmeasured_since.get_or_insert(started_at);
                    wait
                }
                NextMeasurement::Pause => {
                    let started_at = Instant::now();
                    if let Err(violation) = self.measurer.measure_paused(&self.job).await {
                        self.mark(&violation).await;
                        break;
                    }
                    (unmeasured_since, was_triggered, paused_at) = (None, false, Some(Instant::now()));
                    cost = started_at.elapsed();
                    wait_after_pause(cost)
                }
            };
            was_triggered |= self.wait(wait, cost).await;
        }
        self.measurer.forget(&self.job);
    }

    /// Marks the attempt, which the dispatcher then ends. After a restart the attempt may not be registered yet.
    async fn mark(&self, violation: &Violation) {
        let key = AttemptKey { job: self.job.id, attempt: self.job.attempt };
        while !self.stop.is_cancelled() && !self.attempts.mark_over_quota(key, violation) {
            self.waker.wake();
            tokio::time::sleep(FREE_SPACE_INTERVAL).await;
        }
        self.waker.wake();
    }

    /// Waits before the next measurement. Returns whether a drop of the free space ended the wait.
    async fn wait(&mut self, wait: Duration, cost: Duration) -> bool {
        let min_wait = (cost * 2).max(MIN_WAIT).min(wait);
        let dropped = async {
            tokio::time::sleep(min_wait).await;
            // An error means that the sweep has ended, which stops this task as well.
            if self.drops.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(wait) => false,
            () = dropped => true,
        }
    }
}
