//! Conversion of rows of routines and runs. A value that is not valid is `Inconsistent`.

use chrono::{DateTime, SecondsFormat, Utc};
use protocol::{
    BudgetUse, DisabledReason, Guardrails, JobId, Routine, RoutineId, RoutineRun, RoutineSession, RoutineTrigger,
    RunId, RunReason, RunStatus, TriggerType, WakeMode,
};
use sqlx::FromRow;
use uuid::Uuid;

use super::super::{
    StoreError,
    sqlite::rows::{RowRef, count},
};
use domain::routine::outcome::{StatusFacts, routine_status};

/// A time as the database writes it, for comparisons with columns in JSON arguments.
pub(super) fn time_text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, false)
}

/// Whether a run of the routine is in progress.
macro_rules! is_running {
    () => {
        "EXISTS (SELECT 1 FROM routine_runs INDEXED BY routine_runs_live WHERE routine_runs.routine_id = routines.id \
         AND routine_runs.status IN ('queued', 'running') AND routine_runs.status = 'running')"
    };
}
pub(super) use is_running;

/// The start of a count of a routine's runs that have not ended. The index has only those: without it, the count would
/// read all runs of the routine.
macro_rules! unfinished {
    ($routine:literal) => {
        concat!(
            "SELECT COUNT(*) FROM routine_runs INDEXED BY routine_runs_live WHERE routine_id = ",
            $routine,
            " AND routine_runs.status IN ('queued', 'running')"
        )
    };
}
pub(super) use unfinished;

/// The columns of [`RoutineRow`], for SELECT from `routines`.
macro_rules! routine_columns {
    () => {
        concat!(
            "routines.id, routines.user_id, routines.name, description, enabled, disabled_reason, disabled_at, rev, trigger, action, \
         guardrails, notify, session, wake_mode, deliver, post_to_main, post_to_main_prefix, persist_payload, \
         has_webhook_secret, has_notify_secret, state, last_run_at, last_status, next_fire_at, run_count, \
         consecutive_failures, verified, budget_from, budget_tokens, budget_cost_usd, routines.created_at, updated_at, ",
            $crate::routines::rows::is_running!(),
            " AS is_running"
        )
    };
}
pub(super) use routine_columns;

/// One row of `routines`.
#[derive(FromRow)]
#[expect(clippy::struct_excessive_bools, reason = "columns")]
pub(super) struct RoutineRow {
    pub(super) id: Uuid,
    user_id: String,
    name: String,
    description: Option<String>,
    enabled: bool,
    disabled_reason: Option<String>,
    disabled_at: Option<DateTime<Utc>>,
    rev: i64,
    trigger: String,
    action: String,
    guardrails: String,
    notify: String,
    session: String,
    wake_mode: String,
    deliver: bool,
    post_to_main: bool,
    post_to_main_prefix: Option<String>,
    persist_payload: bool,
    has_webhook_secret: bool,
    has_notify_secret: bool,
    state: Option<String>,
    last_run_at: Option<DateTime<Utc>>,
    last_status: Option<String>,
    next_fire_at: Option<DateTime<Utc>>,
    run_count: i64,
    consecutive_failures: i64,
    verified: bool,
    budget_from: Option<DateTime<Utc>>,
    budget_tokens: i64,
    budget_cost_usd: f64,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    is_running: bool,
}

impl RoutineRow {
    pub(super) fn into_routine(self) -> Result<Routine, StoreError> {
        let row = RowRef { table: "routines", id: self.id };
        let last_status = self.last_status.as_deref();
        let last_status = last_status.map(|name| row.known("last_status", RunStatus::parse(name))).transpose()?;
        let mut trigger: RoutineTrigger = row.json("trigger", &self.trigger)?;
        if let RoutineTrigger::Webhook(webhook) = &mut trigger {
            webhook.has_secret = Some(self.has_webhook_secret);
        }
        let mut notify: protocol::Notify = row.json("notify", &self.notify)?;
        notify.has_webhook_secret = notify.webhook_url.is_some().then_some(self.has_notify_secret);
        let facts = StatusFacts {
            enabled: self.enabled,
            is_running: self.is_running,
            verified: self.verified,
            consecutive_failures: row.number("consecutive_failures", self.consecutive_failures)?,
            last_status,
        };
        let reason = self.disabled_reason.as_deref();
        let guardrails: Guardrails = row.json("guardrails", &self.guardrails)?;
        let budget_used = guardrails.budget.and(self.budget_from).map(|since| BudgetUse {
            tokens: count(self.budget_tokens),
            cost_usd: self.budget_cost_usd,
            since,
        });
        Ok(Routine {
            id: RoutineId::from_uuid(self.id),
            user_id: self.user_id,
            name: self.name,
            description: self.description,
            enabled: self.enabled,
            disabled_reason: reason
                .map(|name| row.known("disabled_reason", DisabledReason::parse(name)))
                .transpose()?,
            disabled_at: self.disabled_at,
            rev: count(self.rev),
            trigger,
            action: row.json("action", &self.action)?,
            guardrails,
            notify,
            session: row.known("session", RoutineSession::parse(&self.session))?,
            wake_mode: row.known("wake_mode", WakeMode::parse(&self.wake_mode))?,
            deliver: self.deliver,
            post_to_main: self.post_to_main,
            post_to_main_prefix: self.post_to_main_prefix,
            persist_payload: self.persist_payload,
            state: self.state,
            last_run_at: self.last_run_at,
            next_fire_at: self.next_fire_at,
            run_count: count(self.run_count),
            consecutive_failures: row.number("consecutive_failures", self.consecutive_failures)?,
            verified: self.verified,
            status: routine_status(&facts),
            budget_used,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

/// The columns of [`RunRow`], for SELECT from `routine_runs`.
macro_rules! run_columns {
    () => {
        "id, routine_id, routine_name, user_id, trigger_type, trigger_detail, due_at, started_at, completed_at, status, reason, \
         message, result_summary, result IS NOT NULL AS result_truncated, cut, tokens_used, cost_usd, job_id, attempt, not_before, created_at"
    };
}
pub(super) use run_columns;

/// One row of `routine_runs`, or of `firings`.
#[derive(Clone, FromRow)]
pub(super) struct RunRow {
    pub(super) id: Uuid,
    pub(super) routine_id: RoutineId,
    routine_name: String,
    pub(super) user_id: String,
    trigger_type: String,
    trigger_detail: String,
    due_at: Option<DateTime<Utc>>,
    pub(super) started_at: Option<DateTime<Utc>>,
    completed_at: Option<DateTime<Utc>>,
    pub(super) status: String,
    reason: Option<String>,
    message: Option<String>,
    result_summary: Option<String>,
    result_truncated: bool,
    cut: bool,
    tokens_used: i64,
    cost_usd: Option<f64>,
    pub(super) job_id: Option<JobId>,
    pub(super) attempt: u32,
    not_before: Option<DateTime<Utc>>,
    #[sqlx(default)]
    missed_from: Option<DateTime<Utc>>,
    #[sqlx(default)]
    missed_to: Option<DateTime<Utc>>,
    #[sqlx(default)]
    missed_count: Option<i64>,
    #[sqlx(default)]
    skipped_count: Option<i64>,
    #[sqlx(default)]
    last_at: Option<DateTime<Utc>>,
    #[sqlx(default)]
    last_detail: Option<String>,
    created_at: DateTime<Utc>,
}

impl RunRow {
    pub(super) fn into_run(self) -> Result<RoutineRun, StoreError> {
        let row = RowRef { table: "routine_runs", id: self.id };
        let status = row.known("status", RunStatus::parse(&self.status))?;
        let reason = self.reason.as_deref();
        Ok(RoutineRun {
            id: RunId::from_uuid(self.id),
            routine_id: self.routine_id,
            routine_name: self.routine_name,
            user_id: self.user_id,
            trigger_type: row.known("trigger_type", TriggerType::parse(&self.trigger_type))?,
            trigger_detail: row.json("trigger_detail", &self.trigger_detail)?,
            due_at: self.due_at,
            started_at: self.started_at,
            completed_at: self.completed_at,
            status,
            reason: reason.map(|name| row.known("reason", RunReason::parse(name))).transpose()?,
            message: self.message,
            result_summary: self.result_summary,
            result_truncated: self.result_truncated,
            result: None,
            cut: self.cut,
            tokens_used: count(self.tokens_used),
            cost_usd: self.cost_usd,
            job_id: self.job_id,
            attempt: self.attempt,
            not_before: self.not_before.filter(|_| !status.is_finished()),
            missed_from: self.missed_from,
            missed_to: self.missed_to,
            missed_count: self.missed_count.map(count),
            skipped_count: self.skipped_count.map(count),
            last_skipped_at: self.last_at,
            last_skipped_detail: self.last_detail.map(|text| row.json("last_detail", &text)).transpose()?,
            created_at: self.created_at,
        })
    }
}
