//! Routines with a schedule as the calls `cron.*` list them: without whole actions, and with the last run.

use chrono::{DateTime, Utc};
use protocol::{Retry, RoutineActionKind, RoutineId, RoutineSession, RunReason, RunStatus, WakeMode};
use sqlx::FromRow;
use uuid::Uuid;

use crate::{Store, StoreError, routines::runs::list::RunFilter, sqlite::rows::RowRef};
use domain::routine::cron_job::{CronJobFacts, LastRun, MAX_SHOWN_CHARS};

/// Which cron jobs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronJobFilter {
    pub user: String,
    /// Whether disabled ones are listed.
    pub includes_disabled: bool,
    /// Only those older than this one.
    pub before: Option<RoutineId>,
    /// Maximum number of jobs.
    pub limit: u32,
}

#[derive(FromRow)]
struct CronJobRow {
    id: Uuid,
    name: String,
    description: Option<String>,
    enabled: bool,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    trigger: String,
    action_type: String,
    text: Option<String>,
    session: String,
    wake_mode: String,
    deliver: bool,
    target: Option<String>,
    timeout_seconds: Option<i64>,
    max_attempts: Option<i64>,
    backoff_seconds: Option<i64>,
    post_to_main_prefix: Option<String>,
    next_fire_at: Option<DateTime<Utc>>,
    last_run_at: Option<DateTime<Utc>>,
    #[sqlx(flatten)]
    last: LastRunRow,
}

#[derive(FromRow)]
#[expect(clippy::struct_field_names, reason = "columns of a run beside those of its routine")]
struct LastRunRow {
    last_run_status: Option<String>,
    last_run_reason: Option<String>,
    last_run_message: Option<String>,
    last_run_started_at: Option<DateTime<Utc>>,
    last_run_completed_at: Option<DateTime<Utc>>,
}

impl Store {
    /// A user's cron jobs, newest first, at most `limit`; long texts are cut. One that cannot be read is logged and
    /// left out. The second value is where the next page begins, if there is one.
    pub async fn cron_jobs(
        &self,
        filter: &CronJobFilter,
    ) -> Result<(Vec<CronJobFacts>, Option<RoutineId>), StoreError> {
        let shown = i64::try_from(MAX_SHOWN_CHARS + 1).unwrap_or(i64::MAX);
        let mut rows: Vec<CronJobRow> = sqlx::query_as(
            "SELECT routines.id, name, substr(description, 1, $5) AS description, enabled, routines.created_at, updated_at, trigger, \
             action_type, substr(COALESCE(json_extract(action, '$.prompt'), json_extract(action, '$.description'), \
             json_extract(action, '$.text')), 1, $5) AS text, session, wake_mode, deliver, \
             json_extract(notify, '$.webhook_url') AS target, json_extract(guardrails, '$.timeout_seconds') AS timeout_seconds, \
             json_extract(guardrails, '$.retry.max_attempts') AS max_attempts, \
             json_extract(guardrails, '$.retry.backoff_seconds') AS backoff_seconds, post_to_main_prefix, next_fire_at, \
             last_run_at, COALESCE(run.status, firing.status) AS last_run_status, \
             COALESCE(run.reason, firing.reason) AS last_run_reason, run.message AS last_run_message, \
             run.started_at AS last_run_started_at, COALESCE(run.completed_at, firing.created_at) AS last_run_completed_at \
             FROM (SELECT *, (SELECT ended.id FROM routine_runs AS ended \
             WHERE ended.routine_id = routines.id AND ended.status NOT IN ('queued', 'running') UNION ALL \
             SELECT id FROM firings WHERE firings.routine_id = routines.id ORDER BY 1 DESC LIMIT 1) AS last FROM routines) AS routines \
             LEFT JOIN routine_runs AS run ON run.id = last LEFT JOIN firings AS firing ON firing.id = last \
             WHERE routines.user_id = $1 AND routines.trigger_type IN ('at', 'every', 'cron') AND (enabled OR $2) \
             AND ($3 IS NULL OR routines.id < $3) ORDER BY routines.id DESC LIMIT $4",
        )
        .bind(&filter.user)
        .bind(filter.includes_disabled)
        .bind(filter.before)
        .bind(i64::from(filter.limit) + 1)
        .bind(shown)
        .fetch_all(&self.read)
        .await?;
        let has_more = rows.len() > filter.limit as usize;
        rows.truncate(filter.limit as usize);
        let next = rows.last().filter(|_| has_more).map(|row| RoutineId::from_uuid(row.id));
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            match row.into_facts() {
                Ok(facts) => jobs.push(facts),
                Err(error) => tracing::error!(%error, "a list leaves out a cron job that cannot be read"),
            }
        }
        Ok((jobs, next))
    }

    /// The last run of a routine that has ended, or the last firing that led to none.
    pub async fn last_ended_run(&self, routine: RoutineId) -> Result<Option<LastRun>, StoreError> {
        let statuses = RunStatus::ALL.iter().copied().filter(|status| status.is_finished()).collect();
        let filter = RunFilter { routine: Some(routine), statuses, limit: 1, ..RunFilter::default() };
        let (runs, _) = self.runs(&filter).await?;
        Ok(runs.into_iter().next().map(|run| LastRun {
            status: run.status,
            reason: run.reason,
            message: run.message,
            started_at: run.started_at,
            completed_at: run.completed_at,
        }))
    }
}

impl CronJobRow {
    fn into_facts(self) -> Result<CronJobFacts, StoreError> {
        let row = RowRef { table: "routines", id: self.id };
        let default = Retry::default();
        let retry = Retry {
            max_attempts: self
                .max_attempts
                .map_or(Ok(default.max_attempts), |attempts| row.number("guardrails", attempts))?,
            backoff_seconds: self
                .backoff_seconds
                .map_or(Ok(default.backoff_seconds), |seconds| row.number("guardrails", seconds))?,
            ..default
        };
        Ok(CronJobFacts {
            id: RoutineId::from_uuid(self.id),
            name: self.name,
            description: self.description.map(cut),
            enabled: self.enabled,
            created_at: self.created_at,
            updated_at: self.updated_at,
            trigger: row.json("trigger", &self.trigger)?,
            action: row.known("action_type", RoutineActionKind::parse(&self.action_type))?,
            text: cut(self.text.unwrap_or_default()),
            session: row.known("session", RoutineSession::parse(&self.session))?,
            wake_mode: row.known("wake_mode", WakeMode::parse(&self.wake_mode))?,
            deliver: self.deliver,
            to: self.target,
            timeout_seconds: self.timeout_seconds.map(|seconds| row.number("guardrails", seconds)).transpose()?,
            retry,
            post_to_main_prefix: self.post_to_main_prefix,
            next_fire_at: self.next_fire_at,
            last_run_at: self.last_run_at,
            last: self.last.into_run(&row)?,
        })
    }
}

impl LastRunRow {
    fn into_run(self, row: &RowRef) -> Result<Option<LastRun>, StoreError> {
        let Some(status) = self.last_run_status else { return Ok(None) };
        let reason = self.last_run_reason.as_deref();
        Ok(Some(LastRun {
            status: row.known("status", RunStatus::parse(&status))?,
            reason: reason.map(|name| row.known("reason", RunReason::parse(name))).transpose()?,
            message: self.last_run_message,
            started_at: self.last_run_started_at,
            completed_at: self.last_run_completed_at,
        }))
    }
}

/// A text of one character more than is shown was longer.
fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}
