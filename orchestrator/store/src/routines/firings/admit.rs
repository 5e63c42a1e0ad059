//! Firings become runs, or are recorded as skipped or missed: what is known of the routines is read, the domain decides.
//!
//! Everything happens in one transaction, for one firing or for many. Whether a routine fires at all (its revision, its
//! next time) is checked by the callers before.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{
    BudgetPeriod, DisabledReason, Guardrails, RoutineId, RoutineRun, RunId, RunReason, RunStatus, TriggerType,
};
use serde_json::{Value, json};
use sqlx::FromRow;
use uuid::Uuid;

use super::without_run;
use crate::{
    StoreError,
    events::instance_events::NewInstanceEvent,
    routines::{
        publish,
        rows::{time_text, unfinished},
        runs::{budgets, cancel, run_log},
    },
    sqlite::{
        inconsistent_rows::Keyed,
        rows::{RowRef, count, text},
        write_tx::WriteTx,
    },
};
use domain::routine::admission::{Admission, AdmissionFacts, FIRE_RATE_WINDOW, FiringKind, admit};

/// What is known of a routine that fires.
#[derive(FromRow)]
pub(in crate::routines) struct RoutineFacts {
    pub(in crate::routines) id: Uuid,
    pub(in crate::routines) user_id: String,
    name: String,
    pub(in crate::routines) rev: i64,
    verify_rev: i64,
    pub(in crate::routines) enabled: bool,
    action_type: String,
    guardrails: String,
    run_count: i64,
    last_run_at: Option<DateTime<Utc>>,
    budget_from: Option<DateTime<Utc>>,
    budget_tokens: i64,
    budget_cost_usd: f64,
    pub(in crate::routines) budget_notified: bool,
    timezone: Option<String>,
    running: i64,
    queued: i64,
    retrying: i64,
    recent_starts: i64,
}

/// Reads the facts about routines. Missing routines, and those that cannot be read, have none.
pub(in crate::routines) async fn facts(
    tx: &mut WriteTx,
    routines: &[RoutineId],
    now: DateTime<Utc>,
) -> Result<HashMap<Uuid, RoutineFacts>, StoreError> {
    let rows: Vec<Keyed<RoutineFacts>> = sqlx::query_as(concat!(
        "SELECT r.id, r.user_id, r.name, r.rev, r.verify_rev, r.enabled, r.action_type, r.guardrails, r.run_count, r.last_run_at, \
         r.budget_from, r.budget_tokens, r.budget_cost_usd, r.budget_notified, CASE WHEN json_valid(s.settings) THEN s.settings->>'timezone' END AS timezone, \
         (",
        unfinished!("r.id"),
        " AND status = 'running') AS running, \
         (",
        unfinished!("r.id"),
        " AND status = 'queued' AND started_at IS NULL) AS queued, \
         (",
        unfinished!("r.id"),
        " AND status = 'queued' AND started_at IS NOT NULL) AS retrying, \
         (SELECT COUNT(*) FROM (SELECT 1 FROM routine_runs WHERE routine_id = r.id AND started_at > $2 \
         AND trigger_type NOT IN ('cron', 'every', 'at') LIMIT 100)) AS recent_starts \
         FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value, '-') \
         LEFT JOIN user_settings AS s ON s.user_id = r.user_id",
    ))
    .bind(text(&routines)?)
    .bind(now - FIRE_RATE_WINDOW)
    .fetch_all(&mut tx.db)
    .await?;
    let mut facts = HashMap::new();
    for Keyed { id, row } in rows {
        match row.get() {
            Err(error) if error.concerns_one_row() => {
                tracing::error!(routine.id = %id, error = &error as &dyn std::error::Error, "a routine cannot be read");
            }
            row => drop(facts.insert(id, row?)),
        }
    }
    Ok(facts)
}

/// A firing that is about to be recorded.
pub(in crate::routines) struct Candidate {
    pub(in crate::routines) trigger: TriggerType,
    pub(in crate::routines) kind: FiringKind,
    pub(in crate::routines) detail: Value,
    pub(in crate::routines) payload: Option<String>,
    pub(in crate::routines) is_duplicate: bool,
    pub(in crate::routines) depth: u32,
}

impl Candidate {
    pub(in crate::routines) fn scheduled(trigger: TriggerType, due_at: DateTime<Utc>, is_backlog: bool) -> Self {
        Self {
            trigger,
            kind: FiringKind::Scheduled { due_at, is_backlog },
            detail: json!({}),
            payload: None,
            is_duplicate: false,
            depth: 0,
        }
    }
}

/// A run, or a firing that leads to none, that is about to be stored.
pub(in crate::routines) struct NewRun {
    pub(in crate::routines) run: RoutineRun,
    kind: String,
    rev: i64,
    payload: Option<String>,
    depth: u32,
}

/// What the admission of a routine's firings leads to.
#[derive(Default)]
pub(in crate::routines) struct Admitted {
    /// The runs and the firings that were stopped, to be stored together.
    pub(in crate::routines) runs: Vec<NewRun>,
    /// Why the routine does not fire any more.
    pub(in crate::routines) disable: Option<DisabledReason>,
    /// The start of the period whose budget is spent, if the owner does not know it yet.
    pub(in crate::routines) budget_spent: Option<SpentBudget>,
}

pub(in crate::routines) struct SpentBudget {
    pub(in crate::routines) per: BudgetPeriod,
    pub(in crate::routines) from: DateTime<Utc>,
}

impl RoutineFacts {
    fn row(&self) -> RowRef {
        RowRef { table: "routines", id: self.id }
    }

    /// The revision at which its trigger or action last changed.
    pub(in crate::routines) fn verify_rev(&self) -> u64 {
        count(self.verify_rev)
    }

    pub(in crate::routines) fn guardrails(&self) -> Result<Guardrails, StoreError> {
        self.row().json("guardrails", &self.guardrails)
    }

    /// The start of the budget's current period, and whether the budget is spent.
    fn budget(&self, guardrails: &Guardrails, now: DateTime<Utc>) -> Option<(SpentBudget, bool)> {
        let budget = guardrails.budget?;
        let from = budgets::period_start(budget.per, self.timezone.as_deref().unwrap_or("UTC"), now);
        let is_current = self.budget_from == Some(from);
        let is_spent = is_current && budgets::is_over(&budget, self.budget_tokens, self.budget_cost_usd);
        Some((SpentBudget { per: budget.per, from }, is_spent))
    }

    fn admission(&self, is_budget_spent: bool) -> Result<AdmissionFacts, StoreError> {
        let number = |column, value| self.row().number::<u32>(column, value);
        Ok(AdmissionFacts {
            running: number("running", self.running)?,
            queued: number("queued", self.queued)?,
            retrying: number("retrying", self.retrying)?,
            recent_starts: number("recent_starts", self.recent_starts)?,
            run_count: count(self.run_count),
            last_run_at: self.last_run_at,
            is_budget_spent,
            is_duplicate: false,
            depth: 0,
        })
    }

    fn new_run(
        &self,
        candidate: Candidate,
        status: RunStatus,
        reason: Option<RunReason>,
        now: DateTime<Utc>,
    ) -> NewRun {
        let due_at = match candidate.kind {
            FiringKind::Scheduled { due_at, .. } => Some(due_at),
            FiringKind::Event | FiringKind::Manual => None,
        };
        let is_skipped = status == RunStatus::Skipped;
        let run = RoutineRun {
            id: RunId::generate(),
            routine_id: RoutineId::from_uuid(self.id),
            routine_name: self.name.clone(),
            user_id: self.user_id.clone(),
            trigger_type: candidate.trigger,
            last_skipped_detail: is_skipped.then(|| candidate.detail.clone()),
            trigger_detail: candidate.detail,
            due_at,
            started_at: None,
            completed_at: status.is_finished().then_some(now),
            status,
            reason,
            message: None,
            result_summary: None,
            result_truncated: false,
            result: None,
            cut: false,
            tokens_used: 0,
            cost_usd: Some(0.0),
            job_id: None,
            attempt: 1,
            not_before: None,
            missed_from: None,
            missed_to: None,
            missed_count: None,
            skipped_count: is_skipped.then_some(1),
            last_skipped_at: is_skipped.then_some(now),
            created_at: now,
        };
        NewRun {
            run,
            kind: self.action_type.clone(),
            rev: self.rev,
            payload: candidate.payload,
            depth: candidate.depth,
        }
    }

    /// Times that passed unnoticed.
    pub(in crate::routines) fn missed_run(
        &self,
        trigger: TriggerType,
        (from, to, number): (DateTime<Utc>, DateTime<Utc>, u64),
        reason: RunReason,
        now: DateTime<Utc>,
    ) -> NewRun {
        let candidate = Candidate::scheduled(trigger, from, false);
        let mut new = self.new_run(candidate, RunStatus::Missed, Some(reason), now);
        (new.run.missed_from, new.run.missed_to, new.run.missed_count) = (Some(from), Some(to), Some(number));
        new
    }
}

/// Decides about firings of one routine, in their order. May end its oldest run.
pub(in crate::routines) async fn admit_all(
    tx: &mut WriteTx,
    facts: &RoutineFacts,
    candidates: Vec<Candidate>,
    now: DateTime<Utc>,
) -> Result<Admitted, StoreError> {
    let guardrails = facts.guardrails()?;
    let budget = facts.budget(&guardrails, now);
    let is_budget_spent = budget.as_ref().is_some_and(|(_, is_spent)| *is_spent);
    let mut known = facts.admission(is_budget_spent)?;
    let mut admitted = Admitted::default();
    for candidate in candidates {
        let asked = AdmissionFacts { is_duplicate: candidate.is_duplicate, depth: candidate.depth, ..known };
        let (status, reason) = match admit(&guardrails, &asked, candidate.kind, now) {
            Admission::Queue => (RunStatus::Queued, None),
            Admission::ReplaceOldest => {
                if cancel::cancel_oldest(tx, RoutineId::from_uuid(facts.id), now).await? {
                    (known.running, known.queued) = if known.running > 0 {
                        (known.running - 1, known.queued)
                    } else {
                        (known.running, known.queued.saturating_sub(1))
                    };
                }
                (RunStatus::Queued, None)
            }
            Admission::Skip(reason) => (RunStatus::Skipped, Some(reason)),
        };
        match reason {
            None => known.queued += 1,
            Some(RunReason::FireRate) => admitted.disable = Some(DisabledReason::FireRate),
            Some(RunReason::Until) => admitted.disable = Some(DisabledReason::Until),
            Some(RunReason::MaxRuns) => admitted.disable = Some(DisabledReason::MaxRuns),
            Some(_) => {}
        }
        admitted.runs.push(facts.new_run(candidate, status, reason, now));
    }
    let is_last = guardrails.max_runs.is_some_and(|max| known.run_count + u64::from(known.queued) >= max);
    if is_last && admitted.disable.is_none() {
        admitted.disable = Some(DisabledReason::MaxRuns);
    }
    let was_stopped = admitted.runs.iter().any(|new| new.run.reason == Some(RunReason::Budget));
    if let Some((budget, _)) = budget.filter(|_| was_stopped && !facts.budget_notified) {
        admitted.budget_spent = Some(budget);
    }
    Ok(admitted)
}

/// Stores runs and the firings that led to none, and returns them. A time of a schedule that has a run gets no other.
/// The events of runs, and of the first firing of each entry, are added to `events`.
pub(in crate::routines) async fn insert(
    tx: &mut WriteTx,
    runs: Vec<NewRun>,
    next: impl Fn(&RoutineRun) -> Option<DateTime<Utc>>,
    events: &mut Vec<NewInstanceEvent>,
) -> Result<Vec<RoutineRun>, StoreError> {
    let (stopped, runs): (Vec<NewRun>, Vec<NewRun>) = runs.into_iter().partition(|new| new.run.status.is_finished());
    let mut recorded = Vec::with_capacity(stopped.len() + runs.len());
    for without_run::Recorded { run, is_first } in
        without_run::record(tx, stopped.into_iter().map(|new| new.run).collect()).await?
    {
        if is_first {
            run_log::not_run(tx, &run);
            events.extend(publish::of_run(&run, next(&run)));
        }
        recorded.push(run);
    }
    if runs.is_empty() {
        return Ok(recorded);
    }
    let rows: Vec<Value> = runs.iter().map(NewRun::to_json).collect();
    let stored: Vec<Uuid> = sqlx::query_scalar(
        "INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, payload, \
         depth, routine_rev, status, due_at, created_at) \
         SELECT unhex(j.value->>'id', '-'), unhex(j.value->>'routine', '-'), j.value->>'user', j.value->>'name', j.value->>'identity', \
         j.value->>'kind', j.value->>'trigger', j.value->>'detail', j.value->>'payload', j.value->>'depth', j.value->>'rev', \
         j.value->>'status', j.value->>'due', j.value->>'created' FROM json_each($1) AS j WHERE TRUE \
         ON CONFLICT DO NOTHING RETURNING id",
    )
    .bind(text(&rows)?)
    .fetch_all(&mut tx.db)
    .await?;
    for NewRun { run, .. } in runs {
        if stored.contains(run.id.as_uuid()) {
            events.extend(publish::of_run(&run, next(&run)));
            recorded.push(run);
        }
    }
    Ok(recorded)
}

impl NewRun {
    fn to_json(&self) -> Value {
        let run = &self.run;
        let due = run.due_at.map(time_text);
        // Unique in the routine: the time of the schedule, or the run's own id.
        let identity = due.as_ref().map_or_else(|| run.id.to_string(), |due| format!("due:{due}"));
        json!({
            "id": run.id, "routine": run.routine_id, "user": run.user_id,
            "name": run.routine_name, "identity": identity, "kind": self.kind, "trigger": run.trigger_type,
            "detail": run.trigger_detail.to_string(), "payload": self.payload, "depth": self.depth, "rev": self.rev,
            "status": run.status, "due": due, "created": time_text(run.created_at),
        })
    }
}
