//! How full the workspaces of running jobs are: each is measured every second, and at once when free space falls.
//!
//! `fsize` bounds one file; this bounds their sum. Measures and says who is to end; ending is the dispatcher's.

mod gauge;
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
    gauge::Effort,
    verdict::{FallWatch, Situation, Step, next_step, rest_after_pause},
};
use super::{AttemptRegistry, Wake};
use crate::{
    store::{RunningJob, Store},
    workspace::FreeSpace,
};

pub use gauge::DiskGauge;

/// Between looks at the free space (contract: sandbox, Posture).
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between looks at which jobs run.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// A measure that a fall of the free space asks for begins no sooner after the last one, or than twice what that cost.
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// Why a job is over its disk limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What its workspace holds, as far as it was counted.
    pub bytes: u64,
    /// For people.
    pub message: String,
}

/// The sweep: a task for each running job, and one that looks at the free space and at which jobs run.
pub struct DiskSweep {
    /// Which jobs run, and their limits.
    pub store: Store,
    /// Measures them.
    pub gauge: DiskGauge,
    /// Of the file system that they write to.
    pub space: FreeSpace,
    /// Marks the attempts over their quota.
    pub attempts: Arc<AttemptRegistry>,
    /// Woken when there is one.
    pub wake: Wake,
}

impl DiskSweep {
    /// Sweeps until the process drains.
    pub async fn run(self, drain: CancellationToken) {
        let (fell, _) = watch::channel(());
        let mut watched = Watched::default();
        let mut falls = FallWatch::default();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed_at: Option<Instant> = None;
        // Until the jobs of an earlier process were listed once.
        let mut is_first = true;
        loop {
            tokio::select! {
                () = drain.cancelled() => break,
                _ = tick.tick() => {}
            }
            let is_due = listed_at.is_none_or(|at| at.elapsed() >= LIST_EVERY);
            let has_fallen = self.has_fallen(&mut falls, is_due);
            if is_due || has_fallen {
                is_first &= !self.list(&mut watched, &fell, is_first).await;
                listed_at = Some(Instant::now());
            }
            if has_fallen {
                fell.send_replace(());
            }
            while watched.tasks.try_join_next().is_some() {}
        }
        // A container that is paused for a measure is not left so.
        watched.running.values().for_each(|(_, stop)| stop.cancel());
        while watched.tasks.join_next().await.is_some() {}
    }

    /// Whether every job is to be looked at now: free space fell, or is below the floor.
    fn has_fallen(&self, falls: &mut FallWatch, is_due: bool) -> bool {
        match self.space.read() {
            Ok(space) => {
                let has_fallen = falls.has_fallen(space.free_bytes, space.free_inodes);
                has_fallen || (is_due && space.free_bytes < self.space.floor_bytes(space))
            }
            Err(error) => {
                tracing::warn!(%error, "the free space of the workspaces cannot be read");
                is_due
            }
        }
    }

    /// Begins to watch what has started, and ends it for what has ended. Without an answer everything stays as it is, and
    /// it says false.
    async fn list(&self, watched: &mut Watched, fell: &watch::Sender<()>, is_first: bool) -> bool {
        let running = match self.store.running().await {
            Ok(running) => running,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the running jobs could not be listed");
                return false;
            }
        };
        for row in running.unreadable {
            if watched.unreadable.insert(row) {
                tracing::error!(job.id = %row, "a job's row cannot be read: its disk limit is not held");
            }
        }
        // A new attempt has another container.
        let attempts: HashSet<(JobId, &Option<String>)> =
            running.jobs.iter().map(|job| (job.id, &job.container)).collect();
        watched.running.retain(|id, (container, stop)| {
            let runs = attempts.contains(&(*id, container));
            if !runs {
                stop.cancel();
            }
            runs
        });
        for job in running.jobs {
            if let Entry::Vacant(place) = watched.running.entry(job.id) {
                let stop = CancellationToken::new();
                place.insert((job.container.clone(), stop.clone()));
                let (gauge, attempts, wake) = (self.gauge.clone(), Arc::clone(&self.attempts), self.wake.clone());
                let watch = JobWatch { gauge, attempts, wake, job, fell: fell.subscribe(), stop };
                watched.tasks.spawn(watch.run(is_first));
            }
        }
        true
    }
}

/// What is being watched.
#[derive(Default)]
struct Watched {
    /// With the container of its attempt, and what ends the watch.
    running: HashMap<JobId, (Option<String>, CancellationToken)>,
    tasks: JoinSet<()>,
    unreadable: HashSet<uuid::Uuid>,
}

/// Watches one job.
struct JobWatch {
    gauge: DiskGauge,
    attempts: Arc<AttemptRegistry>,
    wake: Wake,
    job: RunningJob,
    fell: watch::Receiver<()>,
    stop: CancellationToken,
}

impl JobWatch {
    /// Until it ends, or is found over its limit.
    async fn run(mut self, was_running: bool) {
        if was_running {
            // An earlier process may have died while it had it paused.
            self.gauge.unpause(&self.job).await;
        }
        let mut was_triggered = false;
        let (mut unmeasured_since, mut paused_at): (Option<Instant>, Option<Instant>) = (None, None);
        while !self.stop.is_cancelled() {
            let begun = Instant::now();
            let effort = if was_triggered { Effort::Thorough } else { Effort::Quick };
            let measure = self.gauge.measure(&self.job, effort).await;
            let mut cost = begun.elapsed();
            let step = next_step(Situation {
                finding: &measure.finding,
                cost,
                was_triggered,
                unmeasured_for: unmeasured_since.map(|since: Instant| since.elapsed()).unwrap_or_default(),
                since_pause: paused_at.map(|at: Instant| at.elapsed()),
            });
            let rest = match step {
                Step::Rest(rest) => {
                    (unmeasured_since, was_triggered) = (None, false);
                    rest
                }
                Step::Retry(rest) => {
                    unmeasured_since.get_or_insert(begun);
                    rest
                }
                Step::Pause => {
                    let begun = Instant::now();
                    if let Err(violation) = self.gauge.measure_paused(&self.job).await {
                        self.mark(&violation).await;
                        break;
                    }
                    (unmeasured_since, was_triggered, paused_at) = (None, false, Some(Instant::now()));
                    cost = begun.elapsed();
                    rest_after_pause(cost)
                }
            };
            was_triggered |= self.rest(rest, cost).await;
        }
        self.gauge.forget(&self.job);
    }

    /// Marks the attempt, which the dispatcher then ends. After a restart it may not be registered yet.
    async fn mark(&self, violation: &Violation) {
        while !self.stop.is_cancelled() && !self.attempts.mark_over_quota(self.job.id, violation) {
            self.wake.wake();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.wake.wake();
    }

    /// Rests; whether free space fell meanwhile.
    async fn rest(&mut self, rest: Duration, cost: Duration) -> bool {
        let shortest = (cost * 2).max(SHORTEST_REST).min(rest);
        let fell = async {
            tokio::time::sleep(shortest).await;
            // An error is the end of the sweep, which stops this, too.
            if self.fell.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(rest) => false,
            () = fell => true,
        }
    }
}
