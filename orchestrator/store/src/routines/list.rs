//! Routines as lists show them, and their numbers.

use chrono::{DateTime, Utc};
use protocol::{Routine, RoutineActionKind, RoutineId, RoutineStatus, RoutineSummary, TriggerType};
use sqlx::{QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    super::{
        Store, StoreError,
        sqlite::{
            inconsistent_rows::Row,
            list_walks::{ID_TOLERANCE, Ids, first_id_after},
            rows::{count, text},
            search::Search,
        },
    },
    rows::{RoutineRow, routine_columns},
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

/// The numbers of [`RoutineSummary`]: routines, enabled ones, running, failing and unverified ones, runs since $1, and
/// the earliest time at which one fires.
type SummaryRow = (i64, i64, i64, i64, i64, i64, Option<DateTime<Utc>>);

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

/// The numbers of a user's routines. Reads nothing of another user's except the runs in progress, which are few, nor runs
/// from before the day.
const SUMMARY_OF_USER: &str = summary!(
    "(SELECT COUNT(DISTINCT routine_id) FROM routine_runs INDEXED BY routine_runs_running WHERE status = 'running' \
     AND user_id = $2 AND EXISTS (SELECT 1 FROM routines AS r WHERE r.id = routine_id))",
    "routine_runs_by_user WHERE user_id = $2 AND id >= $3 AND created_at >= $1",
    " WHERE user_id = $2"
);

/// The numbers of all routines.
const SUMMARY_OF_ALL: &str = summary!(
    "(SELECT COUNT(DISTINCT routine_id) FROM routine_runs INDEXED BY routine_runs_running WHERE status = 'running' \
     AND EXISTS (SELECT 1 FROM routines AS r WHERE r.id = routine_id))",
    "routine_runs_by_time WHERE created_at >= $1",
    ""
);
impl RoutineFilter {
    /// Whether a page reads routines that it does not show.
    pub fn is_search(&self) -> bool {
        self.text.is_some()
    }
}

/// What narrows a search.
const NARROWER: &str = "user=, trigger= or status=";

/// The routines of a page ($1), newest first, as far as their definitions have at most $2 bytes; the first in any case.
const PAGE: &str = concat!(
    "SELECT * FROM (SELECT ",
    routine_columns!(),
    ", SUM(length(action) + length(trigger) + length(notify)) OVER (ORDER BY routines.id DESC) AS bytes, \
     ROW_NUMBER() OVER (ORDER BY routines.id DESC) AS place FROM routines \
     WHERE routines.id IN (SELECT unhex(value, '-') FROM json_each($1))) WHERE place = 1 OR bytes <= $2 ORDER BY id DESC"
);

/// Selects the ids of the next `rows` routines, newest first, each with whether it has the text that is searched for.
/// What the others are filtered by is read from an index.
fn walk(filter: &RoutineFilter, rows: u32) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::<Sqlite>::new("");
    for (number, ids) in Ids::walks(filter.id_part.as_deref()).into_iter().enumerate() {
        query.push(if number == 0 { "SELECT id, " } else { " UNION ALL SELECT id, " });
        match &filter.text {
            Some(text) => {
                query.push("(instr(lower(name), lower(").push_bind(text.clone());
                query
                    .push(")) OR instr(lower(COALESCE(description, '')), lower(")
                    .push_bind(text.clone())
                    .push("))) > 0");
            }
            None => drop(query.push("TRUE")),
        }
        let in_order = if filter.user.is_some() { "routines_by_user" } else { "routines_in_order" };
        let index = ids.index("routines_by_id_end").unwrap_or(in_order);
        query.push(" FROM routines");
        // The routine of a user that has a name is found by both.
        if filter.user.is_none() || filter.name.is_none() || matches!(ids, Ids::EndWith(_)) {
            query.push(" INDEXED BY ").push(index);
        }
        query.push(" WHERE TRUE");
        push_routine_conditions(&mut query, filter);
        ids.push(&mut query);
        if let Some(before) = filter.before {
            query.push(" AND id < ").push_bind(before);
        }
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(rows));
    query
}

impl Store {
    /// Routines, newest first, with where the next page begins. One that cannot be read is logged and left out. The
    /// page ends early where definitions are large, and a page of a search when its time is over.
    pub async fn routines(&self, filter: &RoutineFilter) -> Result<(Vec<Routine>, Option<RoutineId>), StoreError> {
        self.routines_within(filter, Search::of(filter.user.as_deref())).await
    }

    async fn routines_within(
        &self,
        filter: &RoutineFilter,
        search: Search,
    ) -> Result<(Vec<Routine>, Option<RoutineId>), StoreError> {
        let (mut ids, ended_at) = self.listed_ids(filter, search).await?;
        let has_more = ids.len() > filter.limit as usize;
        ids.truncate(filter.limit as usize);
        let rows: Vec<Row<RoutineRow>> = sqlx::query_as(PAGE)
            .bind(text(&ids)?)
            .bind(i64::try_from(MAX_PAGE_BYTES).unwrap_or(i64::MAX))
            .fetch_all(&self.read)
            .await?;
        let is_cut = rows.len() < ids.len();
        ids.truncate(rows.len());
        let last = if has_more || is_cut { ids.last().copied() } else { ended_at };
        Ok((self.inconsistent.read_each(rows, RoutineRow::into_routine)?, last.map(RoutineId::from_uuid)))
    }

    /// The ids of a page's routines and one more, and the last one that was read if the page ends before it is full.
    async fn listed_ids(
        &self,
        filter: &RoutineFilter,
        mut search: Search,
    ) -> Result<(Vec<Uuid>, Option<Uuid>), StoreError> {
        let limit = filter.limit as usize + 1;
        let is_search = filter.is_search();
        let rows = if is_search { search.rows_per_step } else { filter.limit + 1 };
        let readers = if is_search { &self.search } else { &self.read };
        let (mut ids, mut filter) = (Vec::new(), filter.clone());
        loop {
            let read: Vec<(Uuid, bool)> = walk(&filter, rows).build_query_as().fetch_all(readers).await?;
            ids.extend(read.iter().filter(|(_, is_match)| *is_match).map(|(id, _)| *id));
            ids.truncate(limit);
            let last = read.last().map(|(id, _)| *id);
            if !is_search || ids.len() == limit || read.len() < rows as usize {
                return Ok((ids, None));
            }
            if search.ends(read.len(), ids.len(), NARROWER)? {
                return Ok((ids, last));
            }
            filter.before = last.map(RoutineId::from_uuid);
        }
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
}

/// Restricts a column to names; does nothing if there are none. `condition` ends with the opening bracket of the list.
pub(super) fn push_names(
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

/// The routines with a run in progress, which are few.
macro_rules! running {
    () => {
        "id IN (SELECT routine_id FROM routine_runs INDEXED BY routine_runs_running WHERE status = 'running')"
    };
}

/// The condition for a status (`domain::routine::outcome::routine_status`).
const fn condition_of(status: RoutineStatus) -> &'static str {
    match status {
        RoutineStatus::Disabled => "NOT enabled",
        RoutineStatus::Running => concat!("(enabled AND ", running!(), ")"),
        RoutineStatus::Unverified => concat!("(enabled AND NOT ", running!(), " AND NOT verified)"),
        RoutineStatus::Failing => {
            concat!("(enabled AND NOT ", running!(), " AND verified AND consecutive_failures > 0)")
        }
        RoutineStatus::Attention => concat!(
            "(enabled AND NOT ",
            running!(),
            " AND verified AND consecutive_failures = 0 AND last_status = 'attention')"
        ),
        RoutineStatus::Active => concat!(
            "(enabled AND NOT ",
            running!(),
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
        assert_eq!(walks(&store, SUMMARY_OF_USER, &["routine_runs_running"]).await, Vec::<String>::new());
        for index in
            ["routines_summary (user_id=?)", "routine_runs_by_user (user_id=? AND id>?)", "routine_runs_running"]
        {
            let steps = plan(&store, SUMMARY_OF_USER).await;
            assert!(steps.iter().any(|step| step.contains(index)), "{index} in {steps:#?}");
        }
        let of_all = ["COVERING INDEX routines_summary", "routine_runs_running"];
        assert_eq!(walks(&store, SUMMARY_OF_ALL, &of_all).await, Vec::<String>::new());
        store.close().await;
    }

    #[tokio::test]
    async fn routines_are_filtered_and_searched_in_pages() {
        let (directory, store) = crate::tests::fresh().await;
        let rows = "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 11) \
                    INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, \
                    notify, session, wake_mode, deliver, post_to_main, persist_payload, created_at, updated_at) \
                    SELECT unhex(printf('%032x', n)), iif(n % 2, 'eve', 'ada'), 'Routine ' || n, n % 4 > 0, \
                    iif(n % 3, 'manual', 'event'), '{\"type\":\"manual\"}', 'lightweight', \
                    '{\"type\":\"lightweight\",\"prompt\":\"p\"}', '{}', '{}', 'isolated', 'next_heartbeat', FALSE, FALSE, FALSE, \
                    '2026-11-22T12:00:00+00:00', '2026-11-22T12:00:00+00:00' FROM n";
        sqlx::query(rows).execute(&mut crate::tests::raw(&directory).await).await.unwrap();
        let pages = async |filter: &RoutineFilter, time| {
            let (mut names, mut number, mut before) = (Vec::new(), 0, None);
            loop {
                let search = Search::within(filter.user.as_deref(), 1, time);
                let filter = RoutineFilter { before, limit: 2, ..filter.clone() };
                let (page, next) = store.routines_within(&filter, search).await?;
                names.extend(page.into_iter().map(|routine| routine.name));
                (before, number) = (next, number + 1);
                if next.is_none() {
                    return Ok::<_, StoreError>((names, number));
                }
            }
        };
        let (none, long) = (std::time::Duration::ZERO, std::time::Duration::from_hours(1));
        let ada = || Some("ada".to_owned());
        let text = |text: &str| Some(text.to_owned());
        for (filter, expected) in [
            (
                RoutineFilter { enabled: Some(false), ..RoutineFilter::default() },
                vec!["Routine 8", "Routine 4", "Routine 0"],
            ),
            (RoutineFilter { name: text("Routine 7"), ..RoutineFilter::default() }, vec!["Routine 7"]),
            (RoutineFilter { name: text("Routine 8"), user: ada(), ..RoutineFilter::default() }, vec!["Routine 8"]),
            (RoutineFilter { id_part: text("000a"), ..RoutineFilter::default() }, vec!["Routine 10"]),
            (
                RoutineFilter { triggers: vec![TriggerType::Event], user: ada(), ..RoutineFilter::default() },
                vec!["Routine 6", "Routine 0"],
            ),
            (
                RoutineFilter {
                    statuses: vec![RoutineStatus::Disabled, RoutineStatus::Running],
                    user: ada(),
                    ..RoutineFilter::default()
                },
                vec!["Routine 8", "Routine 4", "Routine 0"],
            ),
            (
                RoutineFilter { text: text("ROUTINE 1"), ..RoutineFilter::default() },
                vec!["Routine 11", "Routine 10", "Routine 1"],
            ),
        ] {
            assert_eq!(pages(&filter, long).await.unwrap().0, expected, "{filter:?}");
        }
        let search = RoutineFilter { text: text("routine 4"), user: ada(), ..RoutineFilter::default() };
        assert_eq!(pages(&search, none).await.unwrap(), (vec!["Routine 4".to_owned()], 7), "one row a page");
        let refused = pages(&RoutineFilter { user: None, ..search }, none).await;
        assert!(matches!(refused, Err(StoreError::QueryTooBroad { rows: 1, .. })), "{refused:?}");
        store.close().await;
    }
}
