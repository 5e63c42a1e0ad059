//! The scheduler: routines whose time has come become runs.
//!
//! Owns when the database is asked for due routines. What becomes of their times is decided in
//! `domain::routine::timing` and recorded by the store, whose guards let any number of schedulers work at once. Never
//! works on a run.

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use base::clock::Clock;
use chrono::{DateTime, Utc};
use dispatch::RoutineWaker;
use domain::routine::timing::{TimingDecision, TimingFacts, decide, stagger_offset};
use protocol::{DisabledReason, RoutineId, RoutineRun};
use schedule::Schedule;
use store::{Automation, DueRoutine, PlannedFiring, Store, StoreError};
use tokio_util::sync::CancellationToken;

/// Longest time between two ticks: a clock that is stepped, or a machine that was suspended, is noticed within it.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Routines that are claimed in one transaction. Other writes wait for it, so it takes a few milliseconds.
const BATCH: u32 = 200;
/// Batches after which the runner is woken although more routines are due. Until then the runs of one instant are recorded
/// before any of them is worked on: both need the one writer.
const MAX_UNANNOUNCED: u32 = 5;
/// Failures of single claims after which the database is at fault, and not a routine.
const MAX_FAILURES: u32 = 10;
/// Routines that are decided on the runtime's threads. A decision takes microseconds, and a few milliseconds at the
/// worst.
const MAX_INLINE: usize = 8;

/// The task that fires routines at the times of their schedules.
pub struct RoutineScheduler {
    pub store: Store,
    pub clock: Clock,
    /// Wakes this task, and the one that works on runs.
    pub waker: RoutineWaker,
    /// Whether triggers are on in the environment.
    pub cron_enabled: bool,
}

/// What a tick has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TickOutcome {
    /// There may be further routines that are due.
    More,
    /// None is due before this time, or triggers are switched off.
    Until(Option<DateTime<Utc>>),
}

/// What is remembered from one tick to the next.
#[derive(Debug, Default)]
struct SchedulerState {
    /// Whether triggers were on.
    is_on: Option<bool>,
    /// The routines of the last tick, with the times that were due.
    due: HashSet<(RoutineId, DateTime<Utc>)>,
    /// Batches with runs that the runner was not woken for.
    unannounced: u32,
}

impl RoutineScheduler {
    /// Runs until `drain` fires.
    pub async fn run(self, drain: CancellationToken) {
        let mut seen = SchedulerState::default();
        while !drain.is_cancelled() {
            let outcome = self.tick(&mut seen).await;
            let must_wake = match outcome {
                Ok(TickOutcome::More) => seen.unannounced >= MAX_UNANNOUNCED,
                Ok(TickOutcome::Until(_)) => seen.unannounced > 0,
                // Some of a batch may have been recorded.
                Err(_) => true,
            };
            if must_wake {
                self.waker.wake_runs();
                seen.unannounced = 0;
            }
            let until = match outcome {
                Ok(TickOutcome::More) => continue,
                Ok(TickOutcome::Until(next)) => self.time_of_tick(next),
                // Not fatal, since the database may be busy: the next tick retries.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "due routines could not be claimed");
                    self.time_of_tick(None)
                }
            };
            tokio::select! {
                () = drain.cancelled() => return,
                () = self.waker.scheduler() => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// The monotonic time of the next tick.
    fn time_of_tick(&self, next: Option<DateTime<Utc>>) -> Duration {
        let latest = self.clock.monotonic() + MAX_WAIT;
        next.map_or(latest, |next| self.clock.monotonic_at(next).min(latest))
    }

    /// Claims one batch of what is due.
    async fn tick(&self, seen: &mut SchedulerState) -> Result<TickOutcome, StoreError> {
        let automation = self.store.automation().await?;
        self.report(automation, seen).await?;
        if !automation.is_on || !self.cron_enabled {
            return Ok(TickOutcome::Until(None));
        }
        let now = self.clock.now();
        if automation.resumed_at.is_some_and(|resumed_at| resumed_at > now) {
            self.store.limit_resumed_at(now).await?;
            return Ok(TickOutcome::More);
        }
        let next = self.store.earliest_fire().await?;
        if next.is_none_or(|next| next > now) {
            return Ok(TickOutcome::Until(next));
        }
        let due = self.store.due_routines(BATCH, now).await?;
        let found = due.routines.len() + due.unreadable.len();
        for routine in due.unreadable {
            self.disable_unreadable(routine, "its row makes no sense").await?;
        }
        let keys: HashSet<_> = due.routines.iter().map(|routine| (routine.id, routine.next_fire_at)).collect();
        // A routine that is due again with the same time was claimed by another scheduler just now, or cannot be: it
        // must not keep this task busy.
        let is_repeated = keys.iter().any(|key| seen.due.contains(key));
        seen.due = keys;
        seen.unannounced += u32::from(self.claim(due.routines, automation, now).await?);
        let is_full = found >= usize::try_from(BATCH).unwrap_or(usize::MAX);
        if is_full && !is_repeated {
            return Ok(TickOutcome::More);
        }
        let next = self.store.earliest_fire().await?;
        Ok(TickOutcome::Until(if is_repeated { None } else { next }))
    }

    /// Logs when triggers have been switched on or off, and at the start.
    async fn report(&self, automation: Automation, seen: &mut SchedulerState) -> Result<(), StoreError> {
        let is_on = automation.is_on && self.cron_enabled;
        if seen.is_on == Some(is_on) {
            return Ok(());
        }
        if is_on {
            let (count, next) = (self.store.count_scheduled().await?, self.store.earliest_fire().await?);
            let next = next.map_or_else(|| "none".to_owned(), |next| next.to_rfc3339());
            tracing::info!(count, next, "scheduler started");
        } else {
            tracing::info!(by_environment = !self.cron_enabled, "cron disabled");
        }
        seen.is_on = Some(is_on);
        Ok(())
    }

    /// Decides about the routines and records the decisions. Returns whether there are runs to be worked on.
    async fn claim(
        &self,
        routines: Vec<DueRoutine>,
        automation: Automation,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let plans = decide_all(routines, automation.resumed_at, now).await;
        let mut planned = Vec::with_capacity(plans.len());
        for (routine, decision) in plans {
            match decision {
                Ok(decision) => {
                    tracing::debug!(routine.id = %routine.id, next = ?decision.next, "next time recomputed");
                    planned.push(PlannedFiring { routine, decision });
                }
                Err(error) => self.disable_unreadable(routine.id, &error).await?,
            }
        }
        if planned.is_empty() {
            return Ok(false);
        }
        match self.store.record_due(planned.clone(), now).await {
            Ok(runs) => Ok(has_work(&runs)),
            Err(error @ (StoreError::Busy | StoreError::Closed)) => Err(error),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due routines are claimed one by one");
                self.claim_singly(planned, now).await
            }
        }
    }

    /// Claims the routines of a batch one by one, so that a row that makes no sense stops only its own routine.
    async fn claim_singly(&self, planned: Vec<PlannedFiring>, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let (mut failures, mut is_any) = (0, false);
        for plan in planned {
            let routine = plan.routine.id;
            match self.store.record_due(vec![plan], now).await {
                Ok(runs) => is_any |= has_work(&runs),
                Err(error) if error.concerns_one_row() => {
                    self.disable_unreadable(routine, &error.to_string()).await?;
                }
                Err(error) if failures < MAX_FAILURES => {
                    failures += 1;
                    tracing::warn!(routine.id = %routine, error = &error as &dyn std::error::Error, "a due routine could not be claimed");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(is_any)
    }

    async fn disable_unreadable(&self, routine: RoutineId, error: &str) -> Result<(), StoreError> {
        tracing::error!(routine.id = %routine, error, "a routine cannot be read and is disabled");
        self.store.disable_routine(routine, DisabledReason::Unreadable, self.clock.now()).await
    }
}

/// Whether any of the recorded runs is to be worked on.
fn has_work(runs: &[RoutineRun]) -> bool {
    runs.iter().any(|run| !run.status.is_finished())
}

/// A routine, and the decision about its times or why there is none.
type Plan = (DueRoutine, Result<TimingDecision, String>);

/// The decisions about routines; many of them off the runtime's threads.
async fn decide_all(routines: Vec<DueRoutine>, resumed_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Vec<Plan> {
    let is_small = routines.len() <= MAX_INLINE;
    let plan_each = move || -> Vec<Plan> {
        let plans = routines.into_iter().map(|routine| {
            let decision = plan(&routine, resumed_at, now);
            (routine, decision)
        });
        plans.collect()
    };
    if is_small { plan_each() } else { tokio::task::spawn_blocking(plan_each).await.unwrap_or_default() }
}

/// The decision about a routine. A panic is an error about this routine alone.
fn plan(routine: &DueRoutine, resumed_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Result<TimingDecision, String> {
    let guardrails = &routine.guardrails;
    let schedule = Schedule::of(&routine.trigger, routine.created_at).map_err(|error| error.to_string())?;
    let facts = TimingFacts {
        schedule: schedule.ok_or("its trigger has no times")?,
        stagger: stagger_offset(routine.id, guardrails.stagger_seconds),
        next_fire_at: routine.next_fire_at,
        now,
        catch_up: guardrails.catch_up,
        catch_up_window_seconds: guardrails.catch_up_window_seconds,
        catch_up_max: guardrails.catch_up_max,
        until: guardrails.until,
        resumed_at,
    };
    catch_unwind(AssertUnwindSafe(|| decide(&facts))).map_err(|_| "its times cannot be computed".to_owned())
}
