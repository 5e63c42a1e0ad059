//! Creates, changes and fires routines for every caller: the public API, JSON-RPC and tools.
//!
//! Owns the order of the steps: who may, validation, secrets, the first time, row, wakes. Knows no HTTP type. Never
//! runs anything.

mod change;
mod error;
mod run;
mod upcoming;
mod warnings;
mod zones;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use protocol::{
    CreateRoutine, DisabledReason, FieldError, Routine, RoutineId, RoutinePreview, RoutineSaved, RoutineTrigger,
};
use secrecy::SecretString;

pub use error::RoutineError;
pub use run::ManualRun;

use crate::{InvalidDestination, JobSubmitter, NotificationDestinations, RoutineWaker};
use base::Zone;
use domain::routine::{
    definition::{CheckedDefinition, DefinitionBounds, DefinitionLimits, check},
    secret::RoutineSecret,
    signature::secret_of_key,
    timing::{NextFiring, next_firing, stagger_offset, until_checked},
};
use schedule::Schedule;
use secrets::Secrets;
use store::{AuditEntry, IdempotencyKey, Lookup, NewRoutine, RoutineDefinition, RoutineStored, SealedSecret, Store};

/// Times that a preview shows.
const PREVIEW_TIMES: usize = 3;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutineCaller {
    pub user: String,
    /// Whether routines of all users are found.
    pub sees_all: bool,
    /// Written in the transaction of the change.
    pub entry: AuditEntry,
}

/// Creates, changes and fires routines.
pub struct RoutineEditor {
    /// Knows what jobs may ask for, and whether they can run.
    pub submitter: Arc<JobSubmitter>,
    /// Where notifications may be posted.
    pub destinations: NotificationDestinations,
    pub secrets: Arc<Secrets>,
    /// Wakes sweep and runner.
    pub waker: RoutineWaker,
    /// What the operator allows in definitions.
    pub limits: DefinitionLimits,
    /// The model of lightweight runs that name none.
    pub default_model: String,
    /// Maximum routines of a user.
    pub max_per_user: u32,
    /// Whether triggers are on in the environment.
    pub cron_enabled: bool,
}

impl RoutineEditor {
    pub async fn create(&self, caller: &RoutineCaller, request: CreateRoutine) -> Result<RoutineSaved, RoutineError> {
        self.create_with_id(RoutineId::generate(), caller, request, None).await
    }

    /// Creates a routine. A request that is repeated with its key creates nothing, and gets the routine as it is now,
    /// without the secrets that were generated for the first request. Returns whether it is a repetition.
    pub async fn create_once(
        &self,
        caller: &RoutineCaller,
        request: CreateRoutine,
        key: Option<IdempotencyKey>,
    ) -> Result<(RoutineSaved, bool), RoutineError> {
        if let Some(saved) = self.created_with(caller, key.as_ref()).await? {
            return Ok((saved, true));
        }
        match self.create_with_id(RoutineId::generate(), caller, request, key.clone()).await {
            // By a request that came at the same time.
            Err(RoutineError::KeyReused) => {
                let saved = self.created_with(caller, key.as_ref()).await?;
                Ok((saved.ok_or(RoutineError::KeyReused)?, true))
            }
            created => created.map(|saved| (saved, false)),
        }
    }

    async fn created_with(
        &self,
        caller: &RoutineCaller,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<RoutineSaved>, RoutineError> {
        let Some(key) = key else { return Ok(None) };
        let id = match self.store().idempotency(key, caller.entry.at).await? {
            None => return Ok(None),
            Some(Lookup::Replayed { body, .. }) => body.parse().map_err(|_| RoutineError::KeyReused)?,
            Some(Lookup::KeyMismatch | Lookup::JobDeleted) => return Err(RoutineError::KeyReused),
        };
        let routine = self.get(caller, id).await?;
        let warnings = self.warnings(&caller.user, &CreateRoutine::of(&routine)).await?;
        Ok(Some(RoutineSaved { routine, warnings }))
    }

    /// Creates a routine whose definition names its own id.
    pub async fn create_with_id(
        &self,
        id: RoutineId,
        caller: &RoutineCaller,
        request: CreateRoutine,
        key: Option<IdempotencyKey>,
    ) -> Result<RoutineSaved, RoutineError> {
        // The `created_at` of its row, which times without an anchor are counted from.
        let now = caller.entry.at;
        let users = self.users_zone(&caller.user).await?;
        let unset = users.warning(&request.trigger, now);
        let checked = self.check(request, &self.bounds(users.zone(), now))?;
        let (definition, shown) = self.definition(id, &caller.user, checked, (None, now), now)?;
        let mut warnings = self.warnings(&caller.user, &definition.request).await?;
        warnings.extend(unset);
        let committed = self.secrets.invalidation(&caller.user);
        let new = NewRoutine { id, definition, max_of_user: self.max_per_user, key };
        let stored = self.store().create_routine(new, &caller.entry, committed).await?;
        let routine = stored_routine(stored)?;
        self.waker.wake_scheduler();
        tracing::info!(routine.id = %id, user = caller.user, "routine created");
        Ok(RoutineSaved { routine: shown.add_to(routine), warnings })
    }

    /// Checks the definition of a new routine, without what is stored: a local time without a zone must be in the future in
    /// one zone at least.
    pub fn validate(&self, request: CreateRoutine) -> Result<(), RoutineError> {
        let latest = "Etc/GMT+12".parse().unwrap_or(Zone::UTC);
        self.check(request, &self.bounds(latest, self.now())).map(drop)
    }

    /// What creating a routine would answer. Nothing is stored.
    pub async fn preview(
        &self,
        caller: &RoutineCaller,
        request: CreateRoutine,
    ) -> Result<RoutinePreview, RoutineError> {
        let (now, id) = (self.now(), RoutineId::generate());
        let users = self.users_zone(&caller.user).await?;
        let unset = users.warning(&request.trigger, now);
        let checked = self.check(request, &self.bounds(users.zone(), now))?;
        let mut warnings = self.warnings(&caller.user, &checked.request).await?;
        warnings.extend(unset);
        if self.store().routine_by_name(&caller.user, &checked.request.name).await?.is_some() {
            return Err(RoutineError::NameTaken);
        }
        let times = self.times(id, &checked.request, now, (now, PREVIEW_TIMES), &caller.user).await?;
        let count = self.firings_of_new(id, &checked.request, now).await?;
        Ok(RoutinePreview { warnings, upcoming: times, count })
    }

    /// A routine that the caller may see.
    pub async fn get(&self, caller: &RoutineCaller, id: RoutineId) -> Result<Routine, RoutineError> {
        let routine = self.store().routine(id).await?.ok_or(RoutineError::NotFound)?;
        if caller.sees_all || routine.user_id == caller.user { Ok(routine) } else { Err(RoutineError::NotOwner) }
    }

    /// The bounds of a new definition.
    fn bounds(&self, zone: Zone, now: DateTime<Utc>) -> DefinitionBounds<'_> {
        let (ceiling, limits) = (&self.submitter.ceiling, &self.limits);
        DefinitionBounds { ceiling, limits, zone, now, created_at: now, keeps_trigger: false }
    }

    fn check(&self, request: CreateRoutine, bounds: &DefinitionBounds<'_>) -> Result<CheckedDefinition, RoutineError> {
        let checked = check(request, bounds).map_err(RoutineError::Invalid)?;
        if let Some(url) = &checked.request.notify.webhook_url {
            let refused = |error: InvalidDestination| {
                RoutineError::Invalid(vec![invalid("notify.webhook_url", &error.to_string())])
            };
            self.destinations.check(url).map_err(refused)?;
        }
        Ok(checked)
    }

    /// The definition as it is stored: with its path and its next time, and its secrets sealed. Secrets that are
    /// generated are returned, to be shown once.
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
        let next_fire_at = Self::next_after_change(id, &request, current, created_at, now)?;
        let definition = RoutineDefinition { request, session, persist_payload, next_fire_at, secrets };
        Ok((definition, shown))
    }

    /// The secret to store: the given one, or a generated one where none is known.
    fn secret(given: Option<String>, is_known: bool, shown: &mut Option<String>) -> Option<String> {
        if given.is_some() || is_known {
            return given;
        }
        let generated = secret_of_key(&rand::random());
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

    /// When a routine with this schedule fires next. One that is enabled and would never fire is refused.
    fn next_after_change(
        id: RoutineId,
        request: &CreateRoutine,
        current: Option<&Routine>,
        created_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, RoutineError> {
        let Some(schedule) = schedule_of(request, created_at)? else { return Ok(None) };
        let stagger = stagger_offset(id, request.guardrails.stagger_seconds);
        let until = request.guardrails.until;
        let pending = current
            .filter(|current| current.enabled && current.trigger == request.trigger)
            .and_then(|current| Some((current.next_fire_at?, current.guardrails.stagger_seconds)));
        let NextFiring { next, end } = match pending {
            // The same time of the schedule, with another delay: nothing is lost, and nothing fires again.
            Some((time, seconds)) => until_checked(time - stagger_offset(id, seconds) + stagger, until),
            None => next_firing(&schedule, stagger, until, now),
        };
        match end {
            Some(reason) if request.enabled => Err(never_fires(reason)),
            _ => Ok(next),
        }
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
    let (field, detail) = match reason {
        DisabledReason::Completed => ("trigger.at", "must be in the future"),
        DisabledReason::Until => ("guardrails.until", "must not be before the next time of the schedule"),
        _ => ("trigger", "must have a time in the future"),
    };
    RoutineError::Invalid(vec![invalid(field, detail)])
}

fn invalid(field: &str, message: &str) -> FieldError {
    FieldError { field: field.to_owned(), message: message.to_owned() }
}

fn stored_routine(stored: RoutineStored) -> Result<Routine, RoutineError> {
    match stored {
        RoutineStored::Done(routine) => Ok(*routine),
        RoutineStored::NameTaken => Err(RoutineError::NameTaken),
        RoutineStored::PathTaken => Err(RoutineError::PathTaken),
        RoutineStored::TooMany { max } => Err(RoutineError::TooMany { max }),
        RoutineStored::Changed => Err(RoutineError::Contended),
        RoutineStored::NotFound => Err(RoutineError::NotFound),
        RoutineStored::Known(_) => Err(RoutineError::KeyReused),
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
