//! A firing of a routine, and what becomes of it.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{RoutineId, RunId, RunReason, TriggerType};
use serde_json::Value;
use uuid::Uuid;

use super::admit::{self, Candidate, RoutineFacts};
use crate::{
    Store, StoreError,
    accepted::{self, Accepted, IdempotencyKey, Lookup, Scope},
    events::instance_events,
    routines::{automation, definitions::disable, notifications, runs::finish},
    sqlite::{
        rows::{RowRef, text},
        write_tx::WriteTx,
    },
    users::user_storage,
};
use base::{digest, failpoint};
use domain::routine::admission::FiringKind;

/// Something that fires a routine, other than its schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    pub routine: RoutineId,
    /// The revision of the definition that was compared with what fires it; `None` if none was.
    pub rev: Option<u64>,
    pub trigger: TriggerType,
    /// What is known of what fires it, without its payload.
    pub detail: Value,
    /// What the run reads, as untrusted data; JSON or text.
    pub payload: Option<String>,
    /// Firings by routines that led to this one.
    pub depth: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FireOutcome {
    Fired(RunId),
    /// A guardrail stopped it; `run` is the entry that counts it.
    Skipped {
        run: RunId,
        reason: RunReason,
    },
    /// The routine is disabled. Nothing was written.
    Disabled,
    /// Automation is switched off. Nothing was written.
    AutomationDisabled,
    /// Its trigger or action has changed since it was compared. Nothing was written.
    Changed,
    /// There is no such routine. Nothing was written.
    NotFound,
}

/// The outcome of a firing that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Triggered {
    Decided(FireOutcome),
    /// The idempotency key was seen before. Nothing was written.
    Known(Lookup),
}

/// The status of the response to a firing that was asked for and has a run.
const ACCEPTED: u16 = 202;

impl Store {
    /// Records a firing, in one transaction: whether it may become a run, the run, and the response if it has a key. One
    /// that fires nothing does not use up its key. Fails if the owner's account is full; a repetition has its response.
    pub async fn trigger(
        &self,
        firing: Firing,
        key: Option<IdempotencyKey>,
        now: DateTime<Utc>,
    ) -> Result<Triggered, StoreError> {
        let triggered = self
            .write(transaction!(|tx| {
                if let Some(known) = accepted::lookup(&mut tx.db, key.as_ref(), now).await? {
                    return Ok(Triggered::Known(known));
                }
                let owner: Option<String> = sqlx::query_scalar("SELECT user_id FROM routines WHERE id = $1")
                    .bind(firing.routine)
                    .fetch_optional(&mut tx.db)
                    .await?;
                if let Some(owner) = owner {
                    user_storage::ensure_room(tx, &owner).await?;
                }
                let outcome = fire_in(tx, firing, now).await?;
                if let (Some(key), FireOutcome::Fired(run)) = (&key, outcome) {
                    let Some(run) = finish::load(tx, run).await? else { return Ok(Triggered::Decided(outcome)) };
                    let response = (ACCEPTED, text(&run.row.into_run()?)?);
                    accepted::answer(&mut tx.db, key, response, None, now).await?;
                }
                Ok(Triggered::Decided(outcome))
            }))
            .await?;
        failpoint::reach("routine.after_fire");
        Ok(triggered)
    }
}

/// What is known when routines fire.
struct FireFacts {
    routines: HashMap<Uuid, RoutineFacts>,
    is_automation_on: bool,
}

impl FireFacts {
    async fn read(tx: &mut WriteTx, routines: &[RoutineId], now: DateTime<Utc>) -> Result<Self, StoreError> {
        let is_automation_on = automation::load(&mut tx.db).await?.is_on;
        Ok(Self { routines: admit::facts(tx, routines, now).await?, is_automation_on })
    }
}

/// Records a firing in a transaction that does more.
pub(in crate::routines) async fn fire_in(
    tx: &mut WriteTx,
    firing: Firing,
    now: DateTime<Utc>,
) -> Result<FireOutcome, StoreError> {
    failpoint::reach("routine.before_fire");
    let facts = FireFacts::read(tx, &[firing.routine], now).await?;
    fire(tx, &facts, firing, now).await
}

/// Records firings of different routines in a transaction that does more. One whose routine cannot be read is logged and
/// left out.
pub(in crate::routines) async fn fire_all(
    tx: &mut WriteTx,
    firings: Vec<Firing>,
    now: DateTime<Utc>,
) -> Result<Vec<FireOutcome>, StoreError> {
    failpoint::reach("routine.before_fire");
    let routines: Vec<RoutineId> = firings.iter().map(|firing| firing.routine).collect();
    let facts = FireFacts::read(tx, &routines, now).await?;
    let mut outcomes = Vec::with_capacity(firings.len());
    for firing in firings {
        let routine = firing.routine;
        match fire(tx, &facts, firing, now).await {
            Err(error) if error.concerns_one_row() => {
                tracing::error!(error = &error as &dyn std::error::Error, routine.id = %routine, "a routine cannot be fired");
            }
            outcome => outcomes.push(outcome?),
        }
    }
    Ok(outcomes)
}

async fn fire(
    tx: &mut WriteTx,
    facts: &FireFacts,
    firing: Firing,
    now: DateTime<Utc>,
) -> Result<FireOutcome, StoreError> {
    let is_manual = firing.trigger == TriggerType::Manual;
    let is_automation_on = facts.is_automation_on;
    let Some(facts) = facts.routines.get(firing.routine.as_uuid()) else { return Ok(FireOutcome::NotFound) };
    if !facts.enabled {
        return Ok(FireOutcome::Disabled);
    }
    if firing.rev.is_some_and(|rev| rev < facts.verify_rev()) {
        return Ok(FireOutcome::Changed);
    }
    if !is_manual && !is_automation_on {
        return Ok(FireOutcome::AutomationDisabled);
    }
    let (routine, payload) = (firing.routine, Payload::of(facts, &firing)?);
    let is_duplicate = payload.is_known(tx, routine, now).await?;
    let admitted = admit::admit_all(tx, facts, vec![candidate(firing, &payload, is_duplicate)], now).await?;
    let mut events = Vec::new();
    let recorded = admit::insert(tx, admitted.runs, |_| None, &mut events).await?;
    instance_events::append_all(tx, now, &events).await?;
    if let Some(budget) = admitted.budget_spent {
        notifications::budget_spent(tx, routine, &budget, now).await?;
    }
    if let Some(reason) = admitted.disable {
        disable::disable(tx, routine, reason, now).await?;
    }
    let Some(run) = recorded.first() else {
        return Err(RowRef { table: "routine_runs", id: *routine.as_uuid() }.invalid("identity"));
    };
    if let Some(reason) = run.reason {
        return Ok(FireOutcome::Skipped { run: run.id, reason });
    }
    payload.remember(tx, routine, run.id, now).await?;
    Ok(FireOutcome::Fired(run.id))
}

/// What identifies a payload, and for how long.
struct Payload {
    digest: Option<String>,
    /// The time in which the same payload fires the routine once.
    window: Option<TimeDelta>,
}

impl Payload {
    fn of(facts: &RoutineFacts, firing: &Firing) -> Result<Self, StoreError> {
        let is_manual = firing.trigger == TriggerType::Manual;
        let seconds = facts.guardrails()?.dedup_window_seconds.filter(|_| !is_manual);
        let window = seconds.and_then(|seconds| TimeDelta::try_seconds(i64::try_from(seconds).ok()?));
        let digest = firing.payload.as_ref().map(|payload| digest::sha256_hex(payload.as_bytes()));
        Ok(Self { digest, window })
    }

    /// Whether the same payload has fired the routine within the window, as it is now.
    async fn is_known(&self, tx: &mut WriteTx, routine: RoutineId, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let (Some(digest), Some(window)) = (&self.digest, self.window) else { return Ok(false) };
        let known = accepted::find(&mut tx.db, Scope::Payload(routine), &[digest], Some(now - window), now).await?;
        Ok(known.is_some())
    }

    async fn remember(
        &self,
        tx: &mut WriteTx,
        routine: RoutineId,
        run: RunId,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (Some(digest), Some(window)) = (&self.digest, self.window) else { return Ok(()) };
        let fired = Accepted { run_id: Some(run), ..Accepted::default() };
        accepted::insert(&mut tx.db, (Scope::Payload(routine), digest), fired, now, window).await
    }
}

fn candidate(firing: Firing, payload: &Payload, is_duplicate: bool) -> Candidate {
    let mut detail = firing.detail;
    if let (Value::Object(members), Some(digest)) = (&mut detail, &payload.digest) {
        members.insert("payload_sha256".to_owned(), Value::from(digest.clone()));
    }
    Candidate {
        trigger: firing.trigger,
        kind: if firing.trigger == TriggerType::Manual { FiringKind::Manual } else { FiringKind::Event },
        detail,
        payload: firing.payload,
        is_duplicate,
        depth: firing.depth,
    }
}
