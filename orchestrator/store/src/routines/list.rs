//! Routines and runs as lists show them.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{
    Routine, RoutineActionKind, RoutineId, RoutineRun, RoutineStatus, RoutineSummary, RunId, RunStatus, TriggerType,
};
use serde_json::Value;
use sqlx::{QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    super::{Store, StoreError, sqlite::rows::count},
    rows::{RoutineRow, RunRow, is_running, routine_columns, run_columns},
};

/// Bytes of definitions at which a page ends.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutineFilter {
    /// Only those of this user.
    pub user: Option<String>,
    /// Only those that are enabled, or disabled.
    pub enabled: Option<bool>,
    /// Only those with one of these triggers; all if empty.
    pub triggers: Vec<TriggerType>,
    /// Only those with one of these actions; all if empty.
    pub actions: Vec<RoutineActionKind>,
    /// Only those with one of these statuses; all if empty.
    pub statuses: Vec<RoutineStatus>,
    /// Only the one with this name.
    pub name: Option<String>,
    /// Only those whose name or description contains this text, without regard to case.
    pub text: Option<String>,
    /// Only those whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only those older than this one.
    pub before: Option<RoutineId>,
    /// Maximum number of routines.
    pub limit: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only those of this user.
    pub user: Option<String>,
    /// Only those of this routine.
    pub routine: Option<RoutineId>,
    /// Only those with one of these statuses; all if empty.
    pub statuses: Vec<RunStatus>,
    /// Only those whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only those with one of these triggers; all if empty.
    pub triggers: Vec<TriggerType>,
    /// Only those that were recorded at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Only those that were recorded before this time.
    pub until: Option<DateTime<Utc>>,
    /// Only those older than this one.
    pub before: Option<RunId>,
    /// Maximum number of runs.
    pub limit: u32,
}

/// The numbers of [`RoutineSummary`]: routines, enabled ones, running, failing and unverified ones, runs since $1, and
/// the earliest time at which one fires.
type SummaryRow = (i64, i64, i64, i64, i64, i64, Option<DateTime<Utc>>);

/// Ids of runs have the time of their creation, by a clock that may since have been corrected by up to this much.
const ID_TOLERANCE: TimeDelta = TimeDelta::days(1);

macro_rules! summary {
    ($running:literal, $runs:literal, $of:literal) => {
        concat!(
            "SELECT COUNT(*), COALESCE(SUM(enabled), 0), ",
            $running,
            ", COALESCE(SUM(enabled AND consecutive_failures > 0), 0), COALESCE(SUM(enabled AND NOT verified), 0), \
             (SELECT COUNT(*) FROM routine_runs INDEXED BY ",
            $runs,
            "), MIN(CASE WHEN enabled THEN next_fire_at END) FROM routines INDEXED BY routines_summary",
            $of
        )
    };
}

/// The numbers of a user's routines. Reads nothing of another user's, nor runs from before the day.
const SUMMARY_OF_USER: &str = summary!(
    "COALESCE(SUM(EXISTS (SELECT 1 FROM routine_runs AS live INDEXED BY routine_runs_live WHERE live.routine_id = routines.id \
     AND live.status = 'running' AND live.status IN ('queued', 'running'))), 0)",
    "routine_runs_by_user WHERE user_id = $2 AND id >= $3 AND created_at >= $1",
    " WHERE user_id = $2"
);

/// The numbers of all routines.
const SUMMARY_OF_ALL: &str = summary!(
    "(SELECT COUNT(DISTINCT routine_id) FROM routine_runs INDEXED BY routine_runs_running WHERE status = 'running')",
    "routine_runs_by_time WHERE created_at >= $1",
    ""
);
/// Runs as [`RunRow`]s.
const RUNS: &str = concat!(
    "SELECT ",
    run_columns!(),
    ", NULL AS missed_from, NULL AS missed_to, NULL AS missed_count, NULL AS skipped_count, NULL AS last_at, \
     NULL AS last_detail FROM routine_runs WHERE TRUE"
);
/// Continues [`RUNS`] with firings that led to none.
const FIRINGS: &str = " UNION ALL SELECT id, routine_id, routine_name, user_id, trigger_type, detail, due_at, NULL, created_at, \
     status, reason, NULL, NULL, 0, 0.0, NULL, 1, NULL, created_at, missed_from, missed_to, missed_count, skipped_count, last_at, \
     last_detail FROM firings WHERE TRUE";

impl Store {
    /// Routines, newest first. One that cannot be read is logged and left out. The page ends early where definitions
    /// are large: then there are more although there are fewer than `limit`, which the flag says.
    pub async fn routines(&self, filter: &RoutineFilter) -> Result<(Vec<Routine>, bool), StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM (SELECT ");
        query.push(routine_columns!());
        query.push(
            ", SUM(length(action) + length(trigger) + length(notify)) OVER (ORDER BY routines.id DESC) AS bytes, ",
        );
        query.push("ROW_NUMBER() OVER (ORDER BY routines.id DESC) AS place FROM routines WHERE TRUE");
        push_routine_conditions(&mut query, filter);
        if let Some(before) = filter.before {
            query.push(" AND routines.id < ").push_bind(before);
        }
        query.push(" ORDER BY routines.id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
        query.push(") WHERE place = 1 OR bytes <= ").push_bind(i64::try_from(MAX_PAGE_BYTES).unwrap_or(i64::MAX));
        let rows: Vec<RoutineRow> = query.build_query_as().fetch_all(&self.read).await?;
        let has_more = rows.len() > filter.limit as usize || self.has_routines_after(filter, rows.last()).await?;
        let mut routines = Vec::with_capacity(rows.len());
        for row in rows.into_iter().take(filter.limit as usize) {
            routines.extend(self.inconsistent.skip(row.into_routine())?);
        }
        Ok((routines, has_more))
    }

    async fn has_routines_after(&self, filter: &RoutineFilter, last: Option<&RoutineRow>) -> Result<bool, StoreError> {
        let Some(last) = last else { return Ok(false) };
        let mut query = QueryBuilder::<Sqlite>::new("SELECT EXISTS (SELECT 1 FROM routines WHERE id < ");
        query.push_bind(last.id);
        push_routine_conditions(&mut query, filter);
        query.push(")");
        Ok(query.build_query_scalar().fetch_one(&self.read).await?)
    }

    /// The number of routines, and the earliest time at which one of them fires.
    pub async fn count_routines(&self, filter: &RoutineFilter) -> Result<(u64, Option<DateTime<Utc>>), StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT COUNT(*), MIN(CASE WHEN enabled THEN next_fire_at END) FROM routines WHERE TRUE",
        );
        push_routine_conditions(&mut query, filter);
        let (rows, next): (i64, Option<DateTime<Utc>>) = query.build_query_as().fetch_one(&self.read).await?;
        Ok((count(rows), next))
    }

    /// Numbers of a user's routines, or of all.
    pub async fn routine_summary(
        &self,
        user: Option<&str>,
        midnight: DateTime<Utc>,
    ) -> Result<RoutineSummary, StoreError> {
        let query = match user {
            Some(user) => {
                sqlx::query_as(SUMMARY_OF_USER).bind(midnight).bind(user).bind(first_id_after(midnight - ID_TOLERANCE))
            }
            None => sqlx::query_as(SUMMARY_OF_ALL).bind(midnight),
        };
        let (total, enabled, running, failing, unverified, runs_today, next_fire_at): SummaryRow =
            query.fetch_one(&self.read).await?;
        Ok(RoutineSummary {
            total: count(total),
            enabled: count(enabled),
            disabled: count(total - enabled),
            running: count(running),
            failing: count(failing),
            unverified: count(unverified),
            runs_today: count(runs_today),
            next_fire_at,
        })
    }

    /// Runs, and firings that were skipped or missed, newest first. One that cannot be read is logged and left out.
    pub async fn runs(&self, filter: &RunFilter) -> Result<(Vec<RoutineRun>, bool), StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(RUNS);
        push_run_conditions(&mut query, filter);
        // The other table is not searched for statuses that none of its rows has.
        let leads_to_no_run = |status: &RunStatus| matches!(status, RunStatus::Skipped | RunStatus::Missed);
        if filter.statuses.is_empty() || filter.statuses.iter().any(leads_to_no_run) {
            query.push(FIRINGS);
            push_run_conditions(&mut query, filter);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
        let rows: Vec<RunRow> = query.build_query_as().fetch_all(&self.read).await?;
        let has_more = rows.len() > filter.limit as usize;
        let mut runs = Vec::with_capacity(rows.len());
        for row in rows.into_iter().take(filter.limit as usize) {
            runs.extend(self.inconsistent.skip(row.into_run())?);
        }
        Ok((runs, has_more))
    }

    /// One run, or firings that were skipped or missed. If it has ended and its routine keeps payloads, its details have the payload.
    pub async fn routine_run(&self, run: RunId) -> Result<Option<RoutineRun>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(RUNS);
        query.push(" AND id = ").push_bind(run).push(FIRINGS).push(" AND id = ").push_bind(run);
        let row: Option<RunRow> = query.build_query_as().fetch_optional(&self.read).await?;
        let Some(mut run) = row.map(RunRow::into_run).transpose()? else { return Ok(None) };
        if let (true, Some(detail)) = (run.status.is_finished(), run.trigger_detail.as_object_mut()) {
            let kept: Option<Option<String>> = sqlx::query_scalar("SELECT payload FROM routine_runs WHERE id = $1")
                .bind(run.id)
                .fetch_optional(&self.read)
                .await?;
            if let Some(payload) = kept.flatten() {
                let payload = serde_json::from_str(&payload).unwrap_or(Value::String(payload));
                detail.insert("payload".to_owned(), payload);
            }
        }
        Ok(Some(run))
    }
}

fn push_run_conditions(query: &mut QueryBuilder<Sqlite>, filter: &RunFilter) {
    if let Some(user) = &filter.user {
        query.push(" AND user_id = ").push_bind(user.clone());
    }
    if let Some(routine) = filter.routine {
        query.push(" AND routine_id = ").push_bind(routine);
    }
    push_names(query, " AND status IN (", filter.statuses.iter().map(|status| status.as_str()));
    push_names(query, " AND trigger_type IN (", filter.triggers.iter().map(|trigger| trigger.as_str()));
    if let Some(since) = filter.since {
        query.push(" AND created_at >= ").push_bind(since);
    }
    if let Some(until) = filter.until {
        query.push(" AND created_at < ").push_bind(until);
    }
    push_id_part(query, filter.id_part.as_ref());
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before);
    }
}

fn push_routine_conditions(query: &mut QueryBuilder<Sqlite>, filter: &RoutineFilter) {
    if let Some(user) = &filter.user {
        query.push(" AND user_id = ").push_bind(user.clone());
    }
    if let Some(enabled) = filter.enabled {
        query.push(" AND enabled = ").push_bind(enabled);
    }
    push_names(query, " AND trigger_type IN (", filter.triggers.iter().map(|trigger| trigger.as_str()));
    push_names(query, " AND action_type IN (", filter.actions.iter().map(|action| action.as_str()));
    if !filter.statuses.is_empty() {
        query.push(" AND (");
        let mut conditions = query.separated(" OR ");
        for status in &filter.statuses {
            conditions.push(condition_of(*status));
        }
        query.push(")");
    }
    if let Some(name) = &filter.name {
        query.push(" AND name = ").push_bind(name.clone());
    }
    if let Some(text) = &filter.text {
        query.push(" AND (instr(lower(name), lower(").push_bind(text.clone());
        query.push(")) OR instr(lower(COALESCE(description, '')), lower(").push_bind(text.clone()).push(")))");
    }
    push_id_part(query, filter.id_part.as_ref());
}

/// Restricts a column to names; does nothing if there are none. `condition` ends with the opening bracket of the list.
fn push_names(
    query: &mut QueryBuilder<Sqlite>,
    condition: &'static str,
    names: impl ExactSizeIterator<Item = &'static str>,
) {
    if names.len() == 0 {
        return;
    }
    query.push(condition);
    let mut list = query.separated(", ");
    for name in names {
        list.push_bind(name);
    }
    query.push(")");
}

fn push_id_part(query: &mut QueryBuilder<Sqlite>, part: Option<&String>) {
    if let Some(part) = part {
        query.push(" AND (lower(hex(id)) LIKE ").push_bind(format!("{part}%"));
        query.push(" OR lower(hex(id)) LIKE ").push_bind(format!("%{part}")).push(")");
    }
}

/// The id that a run has at least, if it was created at this time or later.
fn first_id_after(at: DateTime<Utc>) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or_default();
    Uuid::from_u128(millis << 80)
}

/// The condition for a status (`domain::routine::outcome::routine_status`).
const fn condition_of(status: RoutineStatus) -> &'static str {
    match status {
        RoutineStatus::Disabled => "NOT enabled",
        RoutineStatus::Running => concat!("(enabled AND ", is_running!(), ")"),
        RoutineStatus::Unverified => concat!("(enabled AND NOT ", is_running!(), " AND NOT verified)"),
        RoutineStatus::Failing => {
            concat!("(enabled AND NOT ", is_running!(), " AND verified AND consecutive_failures > 0)")
        }
        RoutineStatus::Attention => concat!(
            "(enabled AND NOT ",
            is_running!(),
            " AND verified AND consecutive_failures = 0 AND last_status = 'attention')"
        ),
        RoutineStatus::Active => concat!(
            "(enabled AND NOT ",
            is_running!(),
            " AND verified AND consecutive_failures = 0 AND last_status IS NOT 'attention')"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{plan, walks};

    #[tokio::test]
    async fn the_numbers_of_a_user_are_read_from_the_users_rows() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        assert_eq!(walks(&store, SUMMARY_OF_USER, &[]).await, Vec::<String>::new());
        for index in ["routines_summary (user_id=?)", "routine_runs_by_user (user_id=? AND id>?)", "live (routine_id=?"]
        {
            let steps = plan(&store, SUMMARY_OF_USER).await;
            assert!(steps.iter().any(|step| step.contains(index)), "{index} in {steps:#?}");
        }
        let of_all = ["COVERING INDEX routines_summary", "routine_runs_running"];
        assert_eq!(walks(&store, SUMMARY_OF_ALL, &of_all).await, Vec::<String>::new());
        store.close().await;
    }
}
