//! Changes of routines: patches, switches and deletions, each made again from the newest revision when another one came
//! first.

use protocol::{CreateRoutine, Routine, RoutineId, RoutinePatch, RoutineSaved, RoutineTrigger, RoutineWarning};
use secrecy::ExposeSecret as _;

use super::{RoutineCaller, RoutineEditor, RoutineError, stored_routine, zones::ScheduleZone};
use base::digest;
use domain::{
    ExpectedVersion,
    routine::{
        definition::{DefinitionBounds, apply_patch},
        secret::RoutineSecret,
    },
};
use schedule::canonicalize;
use store::{RoutineStored, RoutineUpdate};

/// How often a change is made again from a newer revision.
const MAX_RETRIES: u32 = 5;

impl RoutineEditor {
    /// Changes a routine. `expected` is the revision that the caller has seen, if it must be that one.
    pub async fn patch(
        &self,
        caller: &RoutineCaller,
        id: RoutineId,
        patch: RoutinePatch,
        expected: Option<ExpectedVersion>,
    ) -> Result<RoutineSaved, RoutineError> {
        for _ in 0..MAX_RETRIES {
            let current = self.get(caller, id).await?;
            if expected.as_ref().is_some_and(|expected| !expected.allows(Some(current.rev))) {
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
        let before = CreateRoutine::of(current);
        let changes_trigger = patch.contains_key("trigger");
        let mut patched = apply_patch(&before, patch).map_err(|error| RoutineError::Invalid(vec![error]))?;
        // A schedule without a zone keeps the zone of the one that it replaces.
        let zone = match ScheduleZone::of(&before.trigger) {
            Some(zone) => zone,
            None => self.users_zone(&current.user_id).await?,
        };
        let unset = zone.warning(&patched.trigger, now);
        if changes_trigger && let Ok(trigger) = canonicalize(patched.trigger.clone(), zone.zone(), now) {
            patched.trigger = trigger;
        }
        self.remove_known_secrets(current, &mut patched).await?;
        if patched == before {
            return Ok(Some(RoutineSaved { routine: current.clone(), warnings: self.warnings_of(current).await? }));
        }
        // Switching a routine on or off checks nothing else: the operator's limits may have changed since it was
        // stored.
        if patched == (CreateRoutine { enabled: patched.enabled, ..before.clone() }) {
            return self.switch_once(caller, current, patched.enabled).await;
        }
        let keeps_trigger = patched.trigger == before.trigger;
        let bounds =
            DefinitionBounds { created_at: current.created_at, keeps_trigger, ..self.bounds(zone.zone(), now) };
        let checked = self.check(patched, &bounds)?;
        let request = &checked.request;
        let is_enabling = request.enabled && !current.enabled;
        let timing = |request: &CreateRoutine| (request.guardrails.stagger_seconds, request.guardrails.until);
        let is_rescheduled = !keeps_trigger || is_enabling || timing(request) != timing(&before);
        let clears_verified = request.trigger != before.trigger || request.action != before.action;
        let (definition, shown) =
            self.definition(current.id, &current.user_id, checked, (Some(current), current.created_at), now)?;
        let mut warnings = self.warnings(&current.user_id, &definition.request).await?;
        warnings.extend(unset);
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
            if let Some(saved) = self.switch_once(caller, &current, enabled.unwrap_or(!current.enabled)).await? {
                return Ok(saved.routine);
            }
        }
        Err(RoutineError::Contended)
    }

    /// `None`: the routine has changed since it was read.
    async fn switch_once(
        &self,
        caller: &RoutineCaller,
        current: &Routine,
        enabled: bool,
    ) -> Result<Option<RoutineSaved>, RoutineError> {
        let next = if enabled && !current.enabled {
            let request = CreateRoutine { enabled, ..CreateRoutine::of(current) };
            Self::next_after_change(current.id, &request, None, current.created_at, self.now())?
        } else {
            None
        };
        match self.store().set_routine_enabled(current.id, current.rev, enabled, next, &caller.entry).await? {
            RoutineStored::Changed => Ok(None),
            stored => {
                self.waker.wake_scheduler();
                self.waker.wake_runs();
                let routine = stored_routine(stored)?;
                let warnings = self.warnings_of(&routine).await?;
                Ok(Some(RoutineSaved { routine, warnings }))
            }
        }
    }

    /// Removes secrets that are those that are stored, so that a definition that names them again changes nothing.
    async fn remove_known_secrets(&self, current: &Routine, patched: &mut CreateRoutine) -> Result<(), RoutineError> {
        if let RoutineTrigger::Webhook(webhook) = &mut patched.trigger {
            self.remove_known_secret(current, RoutineSecret::Webhook, &mut webhook.secret).await?;
        }
        self.remove_known_secret(current, RoutineSecret::Notify, &mut patched.notify.webhook_secret).await
    }

    async fn remove_known_secret(
        &self,
        current: &Routine,
        secret: RoutineSecret,
        given: &mut Option<String>,
    ) -> Result<(), RoutineError> {
        let Some(value) = given.as_deref() else { return Ok(()) };
        let stored = self.secrets.get(&current.user_id, &secret.name(current.id)).await?;
        if stored.is_some_and(|stored| {
            digest::sha256_hex(stored.expose_secret().as_bytes()) == digest::sha256_hex(value.as_bytes())
        }) {
            *given = None;
        }
        Ok(())
    }

    async fn warnings_of(&self, routine: &Routine) -> Result<Vec<RoutineWarning>, RoutineError> {
        self.warnings(&routine.user_id, &CreateRoutine::of(routine)).await
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
}
