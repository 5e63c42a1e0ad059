//! Runs at a user's request, and the next times of a routine.

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{CreateRoutine, FiringTime, Routine, RoutineId, RoutineRun, RunId, TriggerRoutine, TriggerType};
use serde_json::json;

use super::{RoutineCaller, RoutineEditor, RoutineError, invalid, schedule_of};
use domain::routine::timing::{stagger_offset, upcoming};
use store::{FireOutcome, Firing, IdempotencyKey, Lookup, Topic, Triggered};

/// Largest payload of a run at a user's request, as JSON.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// Longest wait for a run.
const MAX_WAIT_SECONDS: u64 = 300;

/// A run that a user has asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ManualRun {
    /// The run, as it is now.
    pub run: RoutineRun,
    /// Whether it has ended while the caller waited.
    pub is_finished: bool,
    /// Whether an earlier request with the same key has fired it.
    pub is_replayed: bool,
}

impl RoutineEditor {
    /// Fires a routine at a user's request, and waits for the end of the run as long as the request says. A request that
    /// is repeated with its key waits for the run of the first one.
    pub async fn trigger(
        &self,
        caller: &RoutineCaller,
        id: RoutineId,
        request: TriggerRoutine,
        key: Option<IdempotencyKey>,
    ) -> Result<ManualRun, RoutineError> {
        let payload = request.payload.as_ref().map(ToString::to_string);
        let mut errors = Vec::new();
        if payload.as_ref().is_some_and(|text| text.len() > MAX_PAYLOAD_BYTES) {
            errors.push(invalid("payload", &format!("must be at most {MAX_PAYLOAD_BYTES} bytes as JSON")));
        }
        if request.wait_seconds.is_some_and(|seconds| seconds > MAX_WAIT_SECONDS) {
            errors.push(invalid("wait_seconds", &format!("must be at most {MAX_WAIT_SECONDS}")));
        }
        if !errors.is_empty() {
            return Err(RoutineError::Invalid(errors));
        }
        let routine = self.get(caller, id).await?;
        let firing = Firing {
            routine: id,
            rev: None,
            trigger: TriggerType::Manual,
            detail: json!({"by": caller.user}),
            payload,
            depth: 0,
        };
        let triggered = self.store().trigger(firing, key, self.now()).await?;
        self.waker.wake_runs();
        let wait = Duration::from_secs(request.wait_seconds.unwrap_or(0));
        let outcome = match triggered {
            Triggered::Decided(outcome) => outcome,
            Triggered::Known(Lookup::Replayed { body, .. }) => {
                let first: RoutineRun = serde_json::from_str(&body).map_err(|_| RoutineError::KeyReused)?;
                // The run may have been deleted since.
                return match self.wait_for_run(&routine.user_id, first.id, wait).await {
                    Err(RoutineError::NotFound) => Ok(ManualRun { run: first, is_finished: false, is_replayed: true }),
                    run => Ok(ManualRun { is_replayed: true, ..run? }),
                };
            }
            Triggered::Known(Lookup::KeyMismatch | Lookup::JobDeleted) => return Err(RoutineError::KeyReused),
        };
        match outcome {
            FireOutcome::Fired(run) => self.wait_for_run(&routine.user_id, run, wait).await,
            FireOutcome::Skipped { run, reason } => Err(RoutineError::Skipped { run, reason }),
            FireOutcome::Disabled => Err(RoutineError::Disabled),
            FireOutcome::AutomationDisabled => Err(RoutineError::AutomationDisabled),
            FireOutcome::Changed => Err(RoutineError::Contended),
            FireOutcome::NotFound => Err(RoutineError::NotFound),
        }
    }

    /// The next times of a routine's schedule.
    pub async fn upcoming(&self, routine: &Routine, count: usize) -> Result<Vec<FiringTime>, RoutineError> {
        if !routine.enabled {
            return Ok(Vec::new());
        }
        let definition = CreateRoutine::of(routine);
        // The time that is stored may be due by now.
        let from = routine.next_fire_at.map_or(self.now(), |next| next - chrono::TimeDelta::microseconds(1));
        let left = definition.guardrails.max_runs.map(|max| max.saturating_sub(routine.run_count));
        let count = left.map_or(count, |left| count.min(usize::try_from(left).unwrap_or(usize::MAX)));
        self.times(routine.id, &definition, routine.created_at, (from, count), &routine.user_id).await
    }

    pub(super) async fn times(
        &self,
        id: RoutineId,
        request: &CreateRoutine,
        created_at: DateTime<Utc>,
        (from, count): (DateTime<Utc>, usize),
        user: &str,
    ) -> Result<Vec<FiringTime>, RoutineError> {
        let Some(schedule) = schedule_of(request, created_at)? else { return Ok(Vec::new()) };
        let zone = match schedule.zone() {
            Some(zone) => zone,
            None => self.users_zone(user).await?.zone(),
        };
        let guardrails = &request.guardrails;
        let stagger = stagger_offset(id, guardrails.stagger_seconds);
        let times = upcoming(&schedule, stagger, guardrails.until, guardrails.max_runs, from, count);
        Ok(times.into_iter().map(|utc| FiringTime { utc, local: utc.with_timezone(&zone).to_rfc3339() }).collect())
    }

    async fn wait_for_run(&self, user: &str, run: RunId, wait: Duration) -> Result<ManualRun, RoutineError> {
        let mut changes = self.store().event_notifier().subscribe(Topic::User(user.to_owned()));
        let until = self.submitter.clock.monotonic() + wait;
        loop {
            let now = self.store().routine_run(run).await?.ok_or(RoutineError::NotFound)?;
            // A caller that does not wait gets the same answer however fast the run is.
            let is_finished = now.status.is_finished() && !wait.is_zero();
            if is_finished || wait.is_zero() {
                return Ok(ManualRun { run: now, is_finished, is_replayed: false });
            }
            tokio::select! {
                () = changes.changed() => {}
                () = self.submitter.clock.sleep_until(until) => {
                    return Ok(ManualRun { run: now, is_finished: false, is_replayed: false });
                }
            }
        }
    }
}
