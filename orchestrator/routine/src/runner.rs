//! The runner: starts runs that wait, and ends them in the database.
//!
//! Owns which runs are worked on at once. The database is the truth: a wake carries no data, and what is to be done is
//! read again. A run that is in progress there and that no task works on is ended here. Never decides what fires, and
//! never what a run does.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use protocol::{RoutineAction, RoutineActionKind, RoutineRun, RunId, RunReason};
use tokio::{
    sync::{Mutex, Notify},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    lightweight::{Lightweight, with_usage},
    live_runs::{LiveRun, LiveRuns, RunStopCause},
};
use base::clock::Clock;
use dispatch::{RoutineWaker, RunJobs};
use domain::routine::attempt::{AttemptEnd, AttemptResult};
use llm::metering::retry_write;
use store::{AbandonedRun, RunAttempt, Store, StoreError};

/// Delay before the database is asked again after it failed.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Longest sleep: a time that is waited for is one of the wall clock, which may be set.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Shortest sleep, so that a time that is due already, but starts nothing, is not polled in a loop.
const MIN_SLEEP: Duration = Duration::from_millis(20);
/// Sleep when no run waits for a time. What can start is announced.
const IDLE_SLEEP: Duration = Duration::from_secs(15);
/// Interval of the search for runs that no task works on.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);
/// Full-job runs that are read at once.
const BATCH: usize = 100;
/// Runs that no task works on that are read at once.
const ABANDONED_BATCH: u32 = 100;
/// Runs that only post a line that are read in one pass: they take less than a millisecond each.
const LINE_BATCH: usize = 500;
/// Passes over lines until other kinds have their turn.
const MAX_LINE_PASSES: usize = 2;
/// Time for runs in progress to end by themselves once the process drains, and then to be ended. Both are less than the
/// process gives its tasks.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

pub struct RunnerParts {
    pub store: Store,
    /// Works on lightweight runs.
    pub lightweight: Lightweight,
    /// Starts the jobs of other runs.
    pub jobs: Arc<RunJobs>,
    pub waker: RoutineWaker,
    pub clock: Clock,
    /// Lightweight runs and jobs without a container of runs that are in progress at once.
    pub max_concurrent: u32,
}

/// Starts runs that wait.
pub struct Runner {
    parts: RunnerParts,
    live: LiveRuns,
    /// Wakes [`Self::start_jobs`].
    jobs: Notify,
    /// Held while the room is computed and used.
    starting: Mutex<()>,
}

impl Runner {
    /// A runner that works on nothing yet.
    pub fn new(parts: RunnerParts) -> Self {
        Self { parts, live: LiveRuns::default(), jobs: Notify::new(), starting: Mutex::new(()) }
    }

    /// Works until the drain fires. Runs in progress then have a moment to end, and are ended.
    pub async fn run(self, drain: CancellationToken) {
        let runner = Arc::new(self);
        tokio::join!(runner.start_runs(&drain), runner.start_jobs(&drain), runner.end_abandoned(&drain));
    }

    /// Starts lines and lightweight runs until the drain fires.
    async fn start_runs(self: &Arc<Self>, drain: &CancellationToken) {
        let runner = self;
        let mut tasks = JoinSet::new();
        while !drain.is_cancelled() {
            // Before anything that is due is read: what is due a moment later is not taken for what waits.
            let (monotonic, now) = (runner.parts.clock.monotonic(), runner.parts.clock.now());
            runner.jobs.notify_one();
            let until = match runner.pass(&mut tasks, monotonic, now).await {
                Ok(until) => until,
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "the runs that wait could not be read");
                    runner.parts.clock.monotonic() + STORE_RETRY
                }
            };
            tokio::select! {
                () = runner.parts.waker.runs() => {}
                Some(_) = tasks.join_next() => {}
                () = runner.parts.clock.sleep_until(until) => {}
                () = drain.cancelled() => {}
            }
        }
        runner.end_tasks(tasks).await;
    }

    /// Starts full-job runs until the drain fires, whenever [`Self::start_runs`] has looked. By itself, because an
    /// engine that does not answer delays each of them.
    async fn start_jobs(&self, drain: &CancellationToken) {
        while !drain.is_cancelled() {
            match self.start_waiting_jobs().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "the jobs of runs could not be started");
                }
            }
            tokio::select! {
                () = self.jobs.notified() => {}
                () = drain.cancelled() => {}
            }
        }
    }

    /// Starts what can start. Returns until when, by monotonic time, to sleep unless woken.
    async fn pass(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        monotonic: Duration,
        now: DateTime<Utc>,
    ) -> Result<Duration, StoreError> {
        let RunnerParts { store, clock, .. } = &self.parts;
        self.stop_ended().await?;
        let mut is_more = false;
        for pass in 1..=MAX_LINE_PASSES {
            if store.post_lines(LINE_BATCH, clock.now()).await? == 0 {
                break;
            }
            is_more = pass == MAX_LINE_PASSES;
        }
        self.start_lightweight(tasks).await?;
        if is_more {
            return Ok(clock.monotonic() + MIN_SLEEP);
        }
        let earliest: Option<DateTime<Utc>> = store.earliest_queued(now).await?;
        Ok(match earliest {
            None => monotonic + IDLE_SLEEP,
            // It waits for another run of its routine, such as a job, or for room.
            Some(at) if at <= now => monotonic + MAX_SLEEP,
            Some(at) => clock.monotonic_at(at).clamp(monotonic + MIN_SLEEP, monotonic + MAX_SLEEP),
        })
    }

    /// How many more lightweight runs and jobs without a container may be in progress.
    async fn room(&self) -> Result<usize, StoreError> {
        let host_runs = self.parts.store.count_host_runs().await?;
        Ok((self.parts.max_concurrent as usize).saturating_sub(self.live.len() + host_runs))
    }

    /// Starts full-job runs that wait; where jobs run without a container, as far as there is room. Returns whether
    /// there may be more.
    async fn start_waiting_jobs(&self) -> Result<bool, StoreError> {
        if !self.parts.jobs.run_on_host() {
            return Ok(self.parts.jobs.start_waiting(BATCH).await? > 0);
        }
        let _starting = self.starting.lock().await;
        let room = self.room().await?.min(BATCH);
        Ok(room > 0 && self.parts.jobs.start_waiting(room).await? > 0)
    }

    /// Starts lightweight runs as far as there is room. Further ones wait until one has ended.
    async fn start_lightweight(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> Result<(), StoreError> {
        let _starting = self.starting.lock().await;
        while self.start_some(tasks, self.room().await?).await? {}
        Ok(())
    }

    /// Starts at most `room` lightweight runs. Returns whether there may be more.
    async fn start_some(self: &Arc<Self>, tasks: &mut JoinSet<()>, room: usize) -> Result<bool, StoreError> {
        if room == 0 {
            return Ok(false);
        }
        let kind = RoutineActionKind::Lightweight;
        let started = self.parts.store.start_runs_of(kind, room, self.parts.clock.now()).await?;
        let is_more = !started.is_empty();
        for run in started {
            let live = self.live.insert(run.run);
            let runner = Arc::clone(self);
            let span = tracing::info_span!(
                "routine.run",
                routine.id = %run.routine, run.id = %run.run, routine.name = run.routine_name
            );
            tasks.spawn(async move { runner.work(&run, &live).await }.instrument(span));
        }
        Ok(is_more)
    }

    /// Works on an attempt and ends it.
    async fn work(&self, run: &RunAttempt, live: &LiveRun) {
        let result = match &run.action {
            // A panic ends its run, not the process.
            RoutineAction::Lightweight(action) => {
                let work = self.parts.lightweight.run(run, action, live.stop());
                AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                    tracing::error!("a run panicked");
                    internal_error()
                })
            }
            RoutineAction::FullJob(_) | RoutineAction::SystemEventText { .. } => internal_error(),
        };
        let result = match live.stop_cause() {
            Some(RunStopCause::Drained) => AttemptResult { end: restarted(), ..result },
            // It has ended in the database; writing another end changes nothing.
            Some(RunStopCause::Ended) | None => result,
        };
        match self.end(run.run, run.attempt, result).await {
            Ok(Some(_)) => {}
            Ok(None) => tracing::debug!("the run had ended already"),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the end of a run could not be stored; it is tried again later"
                );
            }
        }
    }

    async fn end(&self, run: RunId, attempt: u32, result: AttemptResult) -> Result<Option<RoutineRun>, StoreError> {
        let RunnerParts { store, clock, lightweight, .. } = &self.parts;
        let end = || store.end_run(run, attempt, result.clone(), clock.now());
        retry_write(&lightweight.meter.drain, &run, end).await
    }

    /// Stops the work on runs that have ended in the database: a user has cancelled them, or a later firing.
    async fn stop_ended(&self) -> Result<(), StoreError> {
        let live = self.live.ids();
        if live.is_empty() {
            return Ok(());
        }
        for run in self.parts.store.ended_among(&live).await? {
            self.live.stop(run, RunStopCause::Ended);
        }
        Ok(())
    }

    /// Ends the runs that are in progress in the database and that no task works on, at the start and at intervals, until
    /// the drain fires: those of an earlier process, and those whose end could not be stored.
    async fn end_abandoned(&self, drain: &CancellationToken) {
        while !drain.is_cancelled() {
            match self.end_abandoned_batch().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "the runs in progress could not be read");
                }
            }
            let until = self.parts.clock.monotonic() + RECONCILE_INTERVAL;
            tokio::select! {
                () = self.parts.clock.sleep_until(until) => {}
                () = drain.cancelled() => {}
            }
        }
    }

    /// Ends some of the runs that no task works on. Returns whether there may be more.
    async fn end_abandoned_batch(&self) -> Result<bool, StoreError> {
        let abandoned = {
            // A run that starts meanwhile would be in progress and not be known here yet.
            let _starting = self.starting.lock().await;
            self.parts.store.abandoned_runs(&self.live.ids(), ABANDONED_BATCH).await?
        };
        let found = abandoned.len();
        let mut ended = 0;
        for AbandonedRun { run, attempt } in abandoned {
            let result = with_usage(&self.parts.store, run, restarted()).await;
            match self.end(run, attempt, result).await {
                Ok(_) => ended += 1,
                // The others are ended nevertheless.
                Err(error) => {
                    tracing::error!(run.id = %run, error = &error as &dyn std::error::Error, "a run cannot be ended");
                }
            }
        }
        if found > 0 {
            tracing::warn!(found, ended, "ended runs that no task worked on");
        }
        // Those that cannot be ended are first again, so that only a batch without them leads to others.
        Ok(found == ABANDONED_BATCH as usize && ended == found)
    }

    /// Gives runs in progress a moment to end, then ends them.
    async fn end_tasks(&self, mut tasks: JoinSet<()>) {
        if tokio::time::timeout(DRAIN_GRACE, all_ended(&mut tasks)).await.is_ok() {
            return;
        }
        for run in self.live.ids() {
            self.live.stop(run, RunStopCause::Drained);
        }
        if tokio::time::timeout(DRAIN_TIMEOUT, all_ended(&mut tasks)).await.is_err() {
            tracing::warn!(runs = tasks.len(), "drain timeout: runs of routines were still in progress");
        }
    }
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

fn restarted() -> AttemptEnd {
    AttemptEnd::failed(
        RunReason::OrchestratorRestart,
        "the orchestrator stopped while the run was in progress".to_owned(),
    )
}

fn internal_error() -> AttemptResult {
    let message = "internal server error; the log has the details".to_owned();
    AttemptResult { cost_usd: None, ..AttemptResult::unused(AttemptEnd::failed(RunReason::Internal, message)) }
}
