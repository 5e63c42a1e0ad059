//! Creates, changes and fires routines for every caller: the public API, JSON-RPC and tools.
//!
//! Owns the order of the steps: who may, validation, secrets, the first time, row, wakes. Knows no HTTP type. Never runs anything.

mod error;
mod warnings;

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use protocol::{
    CreateRoutine, DisabledReason, FieldError, FiringTime, Routine, RoutineId, RoutinePatch, RoutinePreview,
    RoutineRun, RoutineSaved, RoutineTrigger, RunId, TriggerRoutine, TriggerType,
};
use secrecy::SecretString;
use serde_json::json;

pub use error::RoutineError;

use super::{InvalidDestination, JobSubmitter, NotificationDestinations, RoutineWaker};
use crate::{
    domain::routine::{
        definition::{CheckedDefinition, DefinitionBounds, apply_patch, check, definition_of},
        schedule::Schedule,
        secret::RoutineSecret,
        timing::{NextFiring, next_firing, stagger_offset, upcoming},
    },
    secrets::Secrets,
    store::{
        AuditEntry, FireOutcome, Firing, RoutineDefinition, RoutineStored, RoutineUpdate, SealedSecret, Store, Topic,
    },
};

/// Largest payload of a firing by hand, as JSON.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// Longest wait for a run (contract: routines, Decided in detail).
const MAX_WAIT_SECONDS: u64 = 300;
/// Bytes of a generated secret.
const SECRET_BYTES: usize = 32;
/// Times that a preview shows.
const PREVIEW_TIMES: usize = 3;
/// How often a change is made again from a newer revision.
const MAX_RETRIES: u32 = 5;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutineCaller {
    /// The user.
    pub user: String,
    /// Whether routines of all users are found.
    pub sees_all: bool,
    /// Written in the transaction of the change.
    pub entry: AuditEntry,
}

/// A firing by hand.
#[derive(Debug, Clone, PartialEq)]
pub struct ManualRun {
    /// The run, as it is now.
    pub run: RoutineRun,
    /// Whether it has ended while the caller waited.
    pub is_finished: bool,
}

/// Creates, changes and fires routines.
pub struct RoutineEditor {
    /// Knows what jobs may ask for, and whether they can run.
    pub submitter: Arc<JobSubmitter>,
    /// Where notifications may be posted.
    pub targets: NotificationDestinations,
    /// Seals secrets of routines.
    pub secrets: Arc<Secrets>,
    /// Wakes sweep and runner.
    pub waker: RoutineWaker,
    /// The shortest distance of two times of a schedule.
    pub min_interval_seconds: u64,
    /// The most rounds of tool calls of a lightweight run.
    pub max_tool_rounds: u32,
    /// Whether triggers are on in the environment.
    pub cron_enabled: bool,
}

impl RoutineEditor {
    /// Creates a routine for the caller.
    pub async fn create(&self, caller: &RoutineCaller, request: CreateRoutine) -> Result<RoutineSaved, RoutineError> {
        self.create_with_id(RoutineId::generate(), caller, request).await
    }

    /// Creates a routine whose definition names its own id.
    pub async fn create_with_id(
        &self,
        id: RoutineId,
        caller: &RoutineCaller,
        request: CreateRoutine,
    ) -> Result<RoutineSaved, RoutineError> {
        // The `created_at` of its row, which times without an anchor are counted from.
        let now = caller.entry.at;
        let checked = self.check(request, now, now, false)?;
        let (definition, shown) = self.definition(id, &caller.user, checked, (None, now), now)?;
        let warnings = self.warnings(&caller.user, &definition.request).await?;
        let committed = self.secrets.invalidation(&caller.user);
        let stored = self.store().create_routine(id, &caller.user, definition, &caller.entry, committed).await?;
        let routine = stored_routine(stored)?;
        self.waker.wake_scheduler();
        tracing::info!(routine.id = %id, user = caller.user, "routine created");
        Ok(RoutineSaved { routine: shown.add_to(routine), warnings })
    }

    /// What creating a routine would answer. Nothing is stored.
    pub async fn preview(
        &self,
        caller: &RoutineCaller,
        request: CreateRoutine,
    ) -> Result<RoutinePreview, RoutineError> {
        let (now, id) = (self.now(), RoutineId::generate());
        let checked = self.check(request, now, now, false)?;
        let warnings = self.warnings(&caller.user, &checked.request).await?;
        if self.store().routine_by_name(&caller.user, &checked.request.name).await?.is_some() {
            return Err(RoutineError::NameTaken);
        }
        let times = self.times(id, &checked.request, now, (now, PREVIEW_TIMES), &caller.user).await?;
        Ok(RoutinePreview { warnings, upcoming: times })
    }

    /// A routine that the caller may see.
    pub async fn get(&self, caller: &RoutineCaller, id: RoutineId) -> Result<Routine, RoutineError> {
        let routine = self.store().routine(id).await?.ok_or(RoutineError::NotFound)?;
        if caller.sees_all || routine.user_id == caller.user { Ok(routine) } else { Err(RoutineError::NotOwner) }
    }

    /// Changes a routine. `expected` is the revision that the caller has seen, if it must be that one.
    pub async fn patch(
        &self,
        caller: &RoutineCaller,
        id: RoutineId,
        patch: RoutinePatch,
        expected: Option<u64>,
    ) -> Result<RoutineSaved, RoutineError> {
        for _ in 0..MAX_RETRIES {
            let current = self.get(caller, id).await?;
            if expected.is_some_and(|rev| rev != current.rev) {
                return Err(RoutineError::Changed { rev: current.rev });
            }
            match self.patch_once(caller, &current, patch.clone()).await? {
                Some(saved) => return Ok(saved),
                None => {
                    tracing::debug!(routine.id = %id, "the routine has changed meanwhile; the change is made again");
                }
            }
        }
        Err(RoutineError::Contended)
    }

    /// `None`: the routine has changed since it was read.
    async fn patch_once(
        &self,
        caller: &RoutineCaller,
        current: &Routine,
        patch: RoutinePatch,
    ) -> Result<Option<RoutineSaved>, RoutineError> {
        let now = self.now();
        let before = definition_of(current);
        let patched = apply_patch(&before, patch).map_err(|error| RoutineError::Invalid(vec![error]))?;
        let keeps_trigger = patched.trigger == before.trigger;
        let checked = self.check(patched, now, current.created_at, keeps_trigger)?;
        let request = &checked.request;
        let is_enabling = request.enabled && !current.enabled;
        let timing = |request: &CreateRoutine| (request.guardrails.stagger_seconds, request.guardrails.until);
        let is_rescheduled = !keeps_trigger || is_enabling || timing(request) != timing(&before);
        let clears_verified = request.trigger != before.trigger || request.action != before.action;
        let (definition, shown) =
            self.definition(current.id, &current.user_id, checked, (Some(current), current.created_at), now)?;
        if is_enabling {
            Self::check_next(&definition)?;
        }
        let warnings = self.warnings(&current.user_id, &definition.request).await?;
        let update =
            RoutineUpdate { routine: current.id, rev: current.rev, definition, is_rescheduled, clears_verified };
        let committed = self.secrets.invalidation(&current.user_id);
        let stored = match self.store().update_routine(update, &caller.entry, committed).await? {
            RoutineStored::Changed => return Ok(None),
            stored => stored_routine(stored)?,
        };
        self.waker.wake_scheduler();
        Ok(Some(RoutineSaved { routine: shown.add_to(stored), warnings }))
    }

    /// Enables or disables a routine; `None` does the opposite of what it is.
    pub async fn set_enabled(
        &self,
        caller: &RoutineCaller,
        id: RoutineId,
        enabled: Option<bool>,
    ) -> Result<Routine, RoutineError> {
        for _ in 0..MAX_RETRIES {
            let current = self.get(caller, id).await?;
            let enabled = enabled.unwrap_or(!current.enabled);
            let next = if enabled && !current.enabled { self.next_of_enabled(&current)? } else { None };
            match self.store().set_routine_enabled(id, current.rev, enabled, next, &caller.entry).await? {
                RoutineStored::Changed => {}
                stored => {
                    self.waker.wake_scheduler();
                    self.waker.wake_runs();
                    return stored_routine(stored);
                }
            }
        }
        Err(RoutineError::Contended)
    }

    /// Deletes a routine. A run in progress goes on, and its runs stay.
    pub async fn delete(&self, caller: &RoutineCaller, id: RoutineId) -> Result<(), RoutineError> {
        // One that cannot be read can be deleted by those who may see all.
        let owner = match self.get(caller, id).await {
            Ok(routine) => routine.user_id,
            Err(RoutineError::Store(_)) if caller.sees_all => caller.user.clone(),
            Err(error) => return Err(error),
        };
        let committed = self.secrets.invalidation(&owner);
        if !self.store().delete_routine(id, &caller.entry, committed).await? {
            return Err(RoutineError::NotFound);
        }
        self.waker.wake_runs();
        Ok(())
    }

    /// Fires a routine by hand, and waits for the end of the run as long as the request says.
    pub async fn trigger(
        &self,
        caller: &RoutineCaller,
        id: RoutineId,
        request: TriggerRoutine,
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
            trigger: TriggerType::Manual,
            identity: format!("manual:{}", RunId::generate()),
            detail: json!({"by": caller.user}),
            payload,
            depth: 0,
        };
        let run = self.fire(firing).await?;
        let wait = Duration::from_secs(request.wait_seconds.unwrap_or(0));
        self.wait_for_run(&routine.user_id, run, wait).await
    }

    /// Fires a routine. A firing that a guardrail stops is an error with its run.
    pub async fn fire(&self, firing: Firing) -> Result<RunId, RoutineError> {
        let outcome = self.store().fire(firing, self.now()).await?;
        self.waker.wake_runs();
        match outcome {
            FireOutcome::Fired(run) | FireOutcome::Duplicate(run) => Ok(run),
            FireOutcome::Skipped { run, reason } => Err(RoutineError::Skipped { run, reason }),
            FireOutcome::Disabled => Err(RoutineError::Disabled),
            FireOutcome::AutomationDisabled => Err(RoutineError::AutomationDisabled),
            FireOutcome::NotFound => Err(RoutineError::NotFound),
        }
    }

    /// The next times of a routine's schedule.
    pub async fn upcoming(&self, routine: &Routine, count: usize) -> Result<Vec<FiringTime>, RoutineError> {
        if !routine.enabled {
            return Ok(Vec::new());
        }
        let definition = definition_of(routine);
        // The time that is stored may be due by now.
        let from = routine.next_fire_at.map_or(self.now(), |next| next - chrono::TimeDelta::microseconds(1));
        let left = definition.guardrails.max_runs.map(|max| max.saturating_sub(routine.run_count));
        let count = left.map_or(count, |left| count.min(usize::try_from(left).unwrap_or(usize::MAX)));
        self.times(routine.id, &definition, routine.created_at, (from, count), &routine.user_id).await
    }

    async fn times(
        &self,
        id: RoutineId,
        request: &CreateRoutine,
        created_at: DateTime<Utc>,
        (from, count): (DateTime<Utc>, usize),
        user: &str,
    ) -> Result<Vec<FiringTime>, RoutineError> {
        let Some(schedule) = schedule_of(request, created_at)? else { return Ok(Vec::new()) };
        let settings = self.store().settings(user).await?;
        let zone = schedule.zone().or_else(|| settings.timezone.parse().ok()).unwrap_or(chrono_tz::Tz::UTC);
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
                return Ok(ManualRun { run: now, is_finished });
            }
            tokio::select! {
                () = changes.changed() => {}
                () = self.submitter.clock.sleep_until(until) => return Ok(ManualRun { run: now, is_finished: false }),
            }
        }
    }

    fn check(
        &self,
        request: CreateRoutine,
        now: DateTime<Utc>,
        created_at: DateTime<Utc>,
        keeps_trigger: bool,
    ) -> Result<CheckedDefinition, RoutineError> {
        let bounds = DefinitionBounds {
            ceiling: &self.submitter.ceiling,
            min_interval_seconds: self.min_interval_seconds,
            max_tool_rounds: self.max_tool_rounds,
            now,
            created_at,
            keeps_trigger,
        };
        let checked = check(request, &bounds).map_err(RoutineError::Invalid)?;
        if let Some(url) = &checked.request.notify.webhook_url {
            let refused = |error: InvalidDestination| {
                RoutineError::Invalid(vec![invalid("notify.webhook_url", &error.to_string())])
            };
            self.targets.check(url).map_err(refused)?;
        }
        Ok(checked)
    }

    /// The definition as it is stored: with its path and its next time, and its secrets sealed. Secrets that are generated are
    /// returned, to be shown once.
    fn definition(
        &self,
        id: RoutineId,
        user: &str,
        checked: CheckedDefinition,
        (current, created_at): (Option<&Routine>, DateTime<Utc>),
        now: DateTime<Utc>,
    ) -> Result<(RoutineDefinition, Generated), RoutineError> {
        let CheckedDefinition { mut request, session, persist_payload } = checked;
        let (mut secrets, mut shown) = (Vec::new(), Generated::default());
        if let RoutineTrigger::Webhook(webhook) = &mut request.trigger {
            webhook.path.get_or_insert_with(|| id.to_string());
            let known = current.is_some_and(has_webhook_secret);
            let given = webhook.secret.take();
            if let Some(value) = Self::secret(given, known, &mut shown.webhook) {
                secrets.push((RoutineSecret::Webhook, self.seal(user, RoutineSecret::Webhook, id, value)?));
            }
        }
        if request.notify.webhook_url.is_some() {
            let known = current.is_some_and(|routine| routine.notify.has_webhook_secret == Some(true));
            let given = request.notify.webhook_secret.take();
            if let Some(value) = Self::secret(given, known, &mut shown.notify) {
                secrets.push((RoutineSecret::Notify, self.seal(user, RoutineSecret::Notify, id, value)?));
            }
        }
        let NextFiring { next, .. } = Self::next(id, &request, created_at, now)?;
        let definition = RoutineDefinition { request, session, persist_payload, next_fire_at: next, secrets };
        Ok((definition, shown))
    }

    /// The secret to store: the given one, or a generated one where none is known.
    fn secret(given: Option<String>, is_known: bool, shown: &mut Option<String>) -> Option<String> {
        if given.is_some() || is_known {
            return given;
        }
        let generated = format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; SECRET_BYTES]>()));
        *shown = Some(generated.clone());
        Some(generated)
    }

    fn seal(
        &self,
        user: &str,
        secret: RoutineSecret,
        id: RoutineId,
        value: String,
    ) -> Result<SealedSecret, RoutineError> {
        Ok(self.secrets.seal(user, &secret.name(id), &SecretString::from(value))?)
    }

    fn next(
        id: RoutineId,
        request: &CreateRoutine,
        created_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<NextFiring, RoutineError> {
        let Some(schedule) = schedule_of(request, created_at)? else { return Ok(NextFiring { next: None, end: None }) };
        let stagger = stagger_offset(id, request.guardrails.stagger_seconds);
        Ok(next_firing(&schedule, stagger, request.guardrails.until, now))
    }

    fn next_of_enabled(&self, routine: &Routine) -> Result<Option<DateTime<Utc>>, RoutineError> {
        let firing = Self::next(routine.id, &definition_of(routine), routine.created_at, self.now())?;
        match firing.end {
            None => Ok(firing.next),
            Some(reason) => Err(never_fires(reason)),
        }
    }

    fn check_next(definition: &RoutineDefinition) -> Result<(), RoutineError> {
        let is_schedule = definition.request.trigger.kind().is_schedule();
        if is_schedule && definition.next_fire_at.is_none() {
            return Err(never_fires(DisabledReason::ScheduleEnded));
        }
        Ok(())
    }

    fn now(&self) -> DateTime<Utc> {
        self.submitter.clock.now()
    }

    fn store(&self) -> &Store {
        &self.submitter.store
    }
}

fn has_webhook_secret(routine: &Routine) -> bool {
    matches!(&routine.trigger, RoutineTrigger::Webhook(webhook) if webhook.has_secret == Some(true))
}

fn schedule_of(request: &CreateRoutine, created_at: DateTime<Utc>) -> Result<Option<Schedule>, RoutineError> {
    let kind = request.trigger.kind();
    Schedule::of(&request.trigger, created_at)
        .map_err(|error| RoutineError::Invalid(vec![invalid(error.field(kind), &error.to_string())]))
}

fn never_fires(reason: DisabledReason) -> RoutineError {
    let detail = match reason {
        DisabledReason::Completed => "its time has passed; change trigger.at to a time in the future",
        DisabledReason::Until => "guardrails.until has passed; change or remove it",
        _ => "its schedule has no further time; change the trigger",
    };
    RoutineError::Invalid(vec![invalid("enabled", detail)])
}

fn invalid(field: &str, message: &str) -> FieldError {
    FieldError { field: field.to_owned(), message: message.to_owned() }
}

fn stored_routine(stored: RoutineStored) -> Result<Routine, RoutineError> {
    match stored {
        RoutineStored::Done(routine) => Ok(*routine),
        RoutineStored::NameTaken => Err(RoutineError::NameTaken),
        RoutineStored::PathTaken => Err(RoutineError::PathTaken),
        RoutineStored::TooMany => Err(RoutineError::TooMany),
        RoutineStored::Changed => Err(RoutineError::Contended),
        RoutineStored::NotFound => Err(RoutineError::NotFound),
    }
}

/// Secrets that were generated.
#[derive(Default)]
struct Generated {
    webhook: Option<String>,
    notify: Option<String>,
}

impl Generated {
    fn add_to(self, mut routine: Routine) -> Routine {
        if let (RoutineTrigger::Webhook(webhook), Some(secret)) = (&mut routine.trigger, self.webhook) {
            webhook.secret = Some(secret);
        }
        if self.notify.is_some() {
            routine.notify.webhook_secret = self.notify;
        }
        routine
    }
}
