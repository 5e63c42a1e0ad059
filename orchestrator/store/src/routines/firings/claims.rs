//! Times of schedules become runs: routines that are due are read, and what was planned for them is recorded.
//!
//! A plan is made without a lock. Its claim checks in its transaction that the routine's revision and next time are
//! those that the plan was made from, so that of two sweeps, or of a sweep and an edit, only one has an effect.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{DisabledReason, Guardrails, RoutineId, RoutineRun, RoutineTrigger, TriggerType};
use serde_json::json;
use sqlx::FromRow;
use uuid::Uuid;

use super::admit::{self, Candidate, NewRun, RoutineFacts};
use crate::{
    Store, StoreError,
    events::instance_events::{self, NewInstanceEvent},
    routines::{definitions::disable, notifications, rows::time_text},
    sqlite::{
        inconsistent_rows::Keyed,
        rows::{RowRef, count, text},
        write_tx::WriteTx,
    },
};
use base::failpoint;
use domain::routine::timing::TimingDecision;

/// A routine whose next time has come.
#[derive(Debug, Clone, PartialEq)]
pub struct DueRoutine {
    pub id: RoutineId,
    pub rev: u64,
    /// The time that has come, stagger included.
    pub next_fire_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
    pub trigger: RoutineTrigger,
    pub guardrails: Guardrails,
}

/// The routines whose next time has come.
#[derive(Debug, Default)]
pub struct DueRoutines {
    /// Those with valid rows.
    pub routines: Vec<DueRoutine>,
    /// Those with inconsistent rows.
    pub unreadable: Vec<RoutineId>,
}

/// What is to be recorded for a due routine.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedFiring {
    /// The routine as the plan was made from it.
    pub routine: DueRoutine,
    pub decision: TimingDecision,
}

#[derive(FromRow)]
struct DueRow {
    id: Uuid,
    rev: i64,
    next_fire_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
    trigger: String,
    guardrails: String,
}

impl DueRow {
    fn into_due(self) -> Result<DueRoutine, StoreError> {
        let row = RowRef { table: "routines", id: self.id };
        Ok(DueRoutine {
            id: RoutineId::from_uuid(self.id),
            rev: count(self.rev),
            next_fire_at: self.next_fire_at,
            created_at: self.created_at,
            trigger: row.json("trigger", &self.trigger)?,
            guardrails: row.json("guardrails", &self.guardrails)?,
        })
    }
}

impl Store {
    /// The routines whose next time has come, the earliest first.
    pub async fn due_routines(&self, limit: u32, now: DateTime<Utc>) -> Result<DueRoutines, StoreError> {
        let rows: Vec<Keyed<DueRow>> = sqlx::query_as(
            "SELECT id, rev, next_fire_at, created_at, trigger, guardrails FROM routines \
             WHERE enabled AND next_fire_at <= $1 ORDER BY next_fire_at LIMIT $2",
        )
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        let mut due = DueRoutines::default();
        for row in rows {
            let id = RoutineId::from_uuid(row.id);
            match self.inconsistent.skip(row.row.get().and_then(DueRow::into_due))? {
                Some(routine) => due.routines.push(routine),
                None => due.unreadable.push(id),
            }
        }
        Ok(due)
    }

    /// The earliest time at which a routine fires by its schedule.
    pub async fn earliest_fire(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let earliest = sqlx::query_scalar(
            "SELECT next_fire_at FROM routines WHERE enabled AND next_fire_at IS NOT NULL ORDER BY next_fire_at LIMIT 1",
        );
        Ok(earliest.fetch_optional(&self.read).await?)
    }

    /// The number of routines that have a next time.
    pub async fn count_scheduled(&self) -> Result<u64, StoreError> {
        let rows: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM routines INDEXED BY routines_due WHERE enabled AND next_fire_at IS NOT NULL",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(count(rows))
    }

    /// Records what was planned, in one transaction, and returns the runs. A plan for a routine that has changed since
    /// has no effect; nor has any while automation is switched off.
    pub async fn record_due(
        &self,
        planned: Vec<PlannedFiring>,
        now: DateTime<Utc>,
    ) -> Result<Vec<RoutineRun>, StoreError> {
        failpoint::reach("routine.before_claim");
        let runs = self.write(transaction!(|tx| claim(tx, planned, now).await)).await?;
        failpoint::reach("routine.after_claim");
        Ok(runs)
    }

    /// Disables a routine for a reason that Gantry found.
    pub async fn disable_routine(
        &self,
        routine: RoutineId,
        reason: DisabledReason,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| disable::disable(tx, routine, reason, now).await)).await
    }
}

async fn claim(
    tx: &mut WriteTx,
    planned: Vec<PlannedFiring>,
    now: DateTime<Utc>,
) -> Result<Vec<RoutineRun>, StoreError> {
    let current = current(tx, &planned).await?;
    let planned: Vec<PlannedFiring> =
        planned.into_iter().filter(|plan| current.contains(plan.routine.id.as_uuid())).collect();
    let ids: Vec<RoutineId> = planned.iter().map(|plan| plan.routine.id).collect();
    let facts = admit::facts(tx, &ids, now).await?;
    let (mut runs, mut updates, mut after) = (Vec::new(), Vec::new(), Vec::new());
    let mut next: HashMap<Uuid, Option<DateTime<Utc>>> = HashMap::new();
    for PlannedFiring { routine, decision } in planned {
        let Some(facts) = facts.get(routine.id.as_uuid()) else {
            after.push((routine.id, Some(DisabledReason::Unreadable), None));
            continue;
        };
        let (disable, budget) = match record(tx, facts, &routine, &decision, now).await {
            Ok((new, admitted)) => {
                runs.extend(new);
                (decision.end.or(admitted.disable), admitted.budget_spent)
            }
            Err(error) if error.concerns_one_row() => {
                tracing::error!(routine.id = %routine.id, error = &error as &dyn std::error::Error, "a routine cannot be read");
                (Some(DisabledReason::Unreadable), None)
            }
            Err(error) => return Err(error),
        };
        updates.push(json!({"id": routine.id, "next": decision.next.map(time_text)}));
        next.insert(*routine.id.as_uuid(), decision.next);
        after.push((routine.id, disable, budget));
    }
    let mut events: Vec<NewInstanceEvent> = Vec::new();
    let recorded =
        admit::insert(tx, runs, |run| next.get(run.routine_id.as_uuid()).copied().flatten(), &mut events).await?;
    sqlx::query(
        "UPDATE routines SET next_fire_at = j.value->>'next' FROM json_each($1) AS j WHERE routines.id = unhex(j.value->>'id', '-')",
    )
    .bind(text(&updates)?)
    .execute(&mut tx.db)
    .await?;
    instance_events::append_all(tx, now, &events).await?;
    for (routine, disable, budget) in after {
        if let Some(budget) = budget {
            notifications::budget_spent(tx, routine, &budget, now).await?;
        }
        if let Some(reason) = disable {
            disable::disable(tx, routine, reason, now).await?;
        }
    }
    Ok(recorded)
}

/// The planned routines that are as they were when the plan was made.
async fn current(tx: &mut WriteTx, planned: &[PlannedFiring]) -> Result<Vec<Uuid>, StoreError> {
    let keys: Vec<_> = planned
        .iter()
        .map(|plan| {
            let due = &plan.routine;
            json!({"id": due.id, "rev": due.rev, "next": time_text(due.next_fire_at)})
        })
        .collect();
    Ok(sqlx::query_scalar(
        "SELECT r.id FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value->>'id', '-') \
         WHERE r.rev = j.value->>'rev' AND r.next_fire_at = j.value->>'next' AND r.enabled \
         AND (SELECT is_on FROM automation)",
    )
    .bind(text(&keys)?)
    .fetch_all(&mut tx.db)
    .await?)
}

async fn record(
    tx: &mut WriteTx,
    facts: &RoutineFacts,
    routine: &DueRoutine,
    decision: &TimingDecision,
    now: DateTime<Utc>,
) -> Result<(Vec<NewRun>, admit::Admitted), StoreError> {
    let trigger: TriggerType = routine.trigger.kind();
    let mut runs: Vec<NewRun> = decision
        .missed
        .iter()
        .map(|missed| facts.missed_run(trigger, (missed.from, missed.to, missed.count), missed.reason, now))
        .collect();
    // Several times run one after the other, the first of them after a run that is in progress.
    let is_backlog = decision.fire.len() > 1;
    let candidates: Vec<Candidate> =
        decision.fire.iter().map(|due_at| Candidate::scheduled(trigger, *due_at, is_backlog)).collect();
    let mut admitted = admit::admit_all(tx, facts, candidates, now).await?;
    runs.append(&mut admitted.runs);
    Ok((runs, admitted))
}
