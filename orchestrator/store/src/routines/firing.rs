//! A firing of a routine, and what becomes of it.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{RoutineId, RunId, RunReason, TriggerType};
use serde_json::Value;
use uuid::Uuid;

use super::{
    super::{Store, StoreError, instance_events, rows::RowRef, write_tx::WriteTx},
    admit::{self, Candidate, RoutineFacts},
    automation, disable, notifications,
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
    /// What makes the firing unique in its routine, such as the id of a delivery.
    pub identity: String,
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
    /// A guardrail stopped it; the run is recorded as skipped.
    Skipped {
        run: RunId,
        reason: RunReason,
    },
    /// The same firing has been recorded before. Nothing was written.
    Duplicate(RunId),
    /// The routine is disabled. Nothing was written.
    Disabled,
    /// Automation is switched off. Nothing was written.
    AutomationDisabled,
    /// Its trigger or action has changed since it was compared. Nothing was written.
    Changed,
    /// There is no such routine. Nothing was written.
    NotFound,
}

impl Store {
    /// Records a firing, in one transaction: whether it is new, whether it may become a run, and the run.
    pub async fn fire(&self, firing: Firing, now: DateTime<Utc>) -> Result<FireOutcome, StoreError> {
        let outcome = self.write(transaction!(|tx| fire_in(tx, firing, now).await)).await?;
        failpoint::reach("routine.after_fire");
        Ok(outcome)
    }
}

/// Like [`Store::fire`], in a transaction that does more.
pub(crate) async fn fire_in(tx: &mut WriteTx, firing: Firing, now: DateTime<Utc>) -> Result<FireOutcome, StoreError> {
    failpoint::reach("routine.before_fire");
    if let Some(known) = known(tx, &firing).await? {
        return Ok(FireOutcome::Duplicate(RunId::from_uuid(known)));
    }
    let facts = admit::facts(tx, &[firing.routine], now).await?;
    let Some(facts) = facts.get(firing.routine.as_uuid()) else { return Ok(FireOutcome::NotFound) };
    if !facts.enabled {
        return Ok(FireOutcome::Disabled);
    }
    if firing.rev.is_some_and(|rev| rev < facts.verify_rev()) {
        return Ok(FireOutcome::Changed);
    }
    let is_manual = firing.trigger == TriggerType::Manual;
    if !is_manual && !automation::load(&mut tx.db).await?.is_on {
        return Ok(FireOutcome::AutomationDisabled);
    }
    let (routine, candidate) = (firing.routine, candidate(tx, facts, firing, now).await?);
    let admitted = admit::admit_all(tx, facts, vec![candidate], now).await?;
    let mut events = Vec::new();
    let next: Option<DateTime<Utc>> = None;
    let recorded = admit::insert(tx, admitted.runs, |_| next, &mut events).await?;
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
    Ok(match run.reason {
        Some(reason) => FireOutcome::Skipped { run: run.id, reason },
        None => FireOutcome::Fired(run.id),
    })
}

/// The run that was recorded for this firing before.
async fn known(tx: &mut WriteTx, firing: &Firing) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar("SELECT id FROM routine_runs WHERE routine_id = $1 AND identity = $2")
        .bind(firing.routine)
        .bind(&firing.identity)
        .fetch_optional(&mut tx.db)
        .await?)
}

async fn candidate(
    tx: &mut WriteTx,
    facts: &RoutineFacts,
    firing: Firing,
    now: DateTime<Utc>,
) -> Result<Candidate, StoreError> {
    let digest = firing.payload.as_ref().map(|payload| digest::sha256_hex(payload.as_bytes()));
    let window = facts.guardrails()?.dedup_window_seconds.filter(|_| firing.trigger != TriggerType::Manual);
    let is_duplicate = match (window, &digest) {
        (Some(seconds), Some(digest)) => {
            let seconds = i64::try_from(seconds).ok().and_then(TimeDelta::try_seconds).unwrap_or(TimeDelta::MAX);
            let since = now.checked_sub_signed(seconds).unwrap_or(DateTime::<Utc>::MIN_UTC);
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM routine_runs WHERE routine_id = $1 AND payload_digest = unhex($2) AND created_at > $3 \
                 AND status <> 'skipped')",
            )
            .bind(firing.routine)
            .bind(digest)
            .bind(since)
            .fetch_one(&mut tx.db)
            .await?
        }
        _ => false,
    };
    let mut detail = firing.detail;
    if let (Value::Object(members), Some(digest)) = (&mut detail, &digest) {
        members.insert("payload_sha256".to_owned(), Value::from(digest.clone()));
    }
    Ok(Candidate {
        trigger: firing.trigger,
        kind: if firing.trigger == TriggerType::Manual { FiringKind::Manual } else { FiringKind::Event },
        identity: firing.identity,
        detail,
        payload: firing.payload,
        payload_digest: digest,
        is_duplicate,
        depth: firing.depth,
    })
}
