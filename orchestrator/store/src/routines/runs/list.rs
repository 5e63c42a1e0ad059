//! Runs, and firings that led to none, as lists show them.
//!
//! A list is a merge of walks, each over an index that has the rows in the order of the list, so that a page reads no
//! more than it shows: one walk for each table, trigger and status, and each way in which an id is found.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{RoutineId, RoutineRun, RunId, RunStatus, TriggerType};
use serde_json::Value;
use sqlx::{QueryBuilder, Sqlite};

use crate::{
    Store, StoreError,
    routines::{
        list::push_names,
        rows::{RunRow, run_columns},
    },
    sqlite::{
        inconsistent_rows::Keyed,
        list_walks::{ID_TOLERANCE, Ids, first_id_after},
        rows::text,
    },
};

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

/// Runs of a page whose results are read: with those of the longest ones, 4 MB.
const MAX_RESULTS: usize = 40;

/// Runs as [`RunRow`]s.
const RUNS: &str = concat!(
    "SELECT ",
    run_columns!(),
    ", NULL AS missed_from, NULL AS missed_to, NULL AS missed_count, NULL AS skipped_count, NULL AS last_at, \
     NULL AS last_detail FROM routine_runs WHERE id "
);
/// Continues [`RUNS`] with firings that led to none.
const FIRINGS: &str = " UNION ALL SELECT id, routine_id, routine_name, user_id, trigger_type, detail, due_at, NULL, created_at, \
     status, reason, NULL, NULL, FALSE, FALSE, 0, 0.0, NULL, 1, NULL, created_at, missed_from, missed_to, missed_count, skipped_count, last_at, \
     last_detail FROM firings WHERE id ";

impl Store {
    /// Runs, and firings that were skipped or missed, newest first. One that cannot be read is logged and left out.
    /// With it comes the position of the next page, if there is one.
    pub async fn runs(&self, filter: &RunFilter) -> Result<(Vec<RoutineRun>, Option<RunId>), StoreError> {
        let mut rows: Vec<Keyed<RunRow, RunId>> = list(filter).build_query_as().fetch_all(&self.read).await?;
        let has_more = rows.len() > filter.limit as usize;
        rows.truncate(filter.limit as usize);
        let rows = self.inconsistent.read_page(rows, RunRow::into_run)?;
        let next = rows.last().filter(|_| has_more).map(|(id, _)| *id);
        Ok((rows.into_iter().filter_map(|(_, run)| run).collect(), next))
    }

    /// Adds the results to runs, of those that are longer than their summary to the first 40 only.
    pub async fn add_results(&self, runs: &mut [RoutineRun]) -> Result<(), StoreError> {
        let longer: Vec<RunId> =
            runs.iter().filter(|run| run.result_truncated).map(|run| run.id).take(MAX_RESULTS).collect();
        let mut results: HashMap<RunId, String> = HashMap::new();
        if !longer.is_empty() {
            let rows: Vec<(RunId, String)> = sqlx::query_as(
                "SELECT id, result FROM routine_runs WHERE id IN (SELECT unhex(value, '-') FROM json_each($1)) AND result IS NOT NULL",
            )
            .bind(text(&longer)?)
            .fetch_all(&self.read)
            .await?;
            results.extend(rows);
        }
        for run in runs {
            run.result = if run.result_truncated { results.remove(&run.id) } else { run.result_summary.clone() };
        }
        Ok(())
    }

    /// One run with its result, or firings that were skipped or missed. If it has ended and its routine keeps payloads, its details
    /// have the payload.
    pub async fn routine_run(&self, run: RunId) -> Result<Option<RoutineRun>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(RUNS);
        query.push(" = ").push_bind(run).push(FIRINGS).push(" = ").push_bind(run);
        let row: Option<RunRow> = query.build_query_as().fetch_optional(&self.read).await?;
        let Some(mut run) = row.map(RunRow::into_run).transpose()? else { return Ok(None) };
        self.add_results(std::slice::from_mut(&mut run)).await?;
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

/// Selects the rows of a page and one more, to know whether there is a next page.
fn list(filter: &RunFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::<Sqlite>::new("WITH walked (id) AS MATERIALIZED (");
    push_walks(&mut query, filter, &RUN_WALKS);
    // The other table is not searched for statuses that none of its rows has.
    if filter.statuses.is_empty() || filter.statuses.iter().any(|status| FIRING_WALKS.statuses.contains(status)) {
        query.push(" UNION ALL ");
        push_walks(&mut query, filter, &FIRING_WALKS);
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1).push(") ");
    query.push(RUNS).push(" IN (SELECT id FROM walked)").push(FIRINGS).push(" IN (SELECT id FROM walked)");
    query.push(" ORDER BY id DESC");
    query
}

/// How a table is walked.
struct Walks {
    from: &'static str,
    of_routine: &'static str,
    by_trigger: &'static str,
    by_user_trigger: &'static str,
    by_id_end: &'static str,
    /// The statuses that its rows have.
    statuses: &'static [RunStatus],
}

const RUN_WALKS: Walks = Walks {
    from: "SELECT id FROM routine_runs",
    of_routine: "routine_runs_by_routine",
    by_trigger: "routine_runs_by_trigger",
    by_user_trigger: "routine_runs_by_user_trigger",
    by_id_end: "routine_runs_by_id_end",
    statuses: RunStatus::ALL,
};
const FIRING_WALKS: Walks = Walks {
    from: "SELECT id FROM firings",
    of_routine: "firings_by_routine",
    by_trigger: "firings_by_trigger",
    by_user_trigger: "firings_by_user_trigger",
    by_id_end: "firings_by_id_end",
    statuses: &[RunStatus::Skipped, RunStatus::Missed],
};

fn push_walks(query: &mut QueryBuilder<Sqlite>, filter: &RunFilter, walks: &Walks) {
    // A routine has a bounded number of runs; they are filtered as they are read. So are those that an end of an id
    // finds.
    let is_by_trigger = filter.routine.is_none() && !(filter.statuses.is_empty() && filter.triggers.is_empty());
    let mut is_first = true;
    for ids in Ids::walks(filter.id_part.as_deref()) {
        let by_end = ids.index(walks.by_id_end);
        if by_end.is_some() || !is_by_trigger {
            push_walk(query, filter, (walks, by_end, ids), &mut is_first);
            push_names(query, " AND status IN (", filter.statuses.iter().map(|status| status.as_str()));
            push_names(query, " AND trigger_type IN (", filter.triggers.iter().map(|trigger| trigger.as_str()));
            continue;
        }
        let triggers = if filter.triggers.is_empty() { TriggerType::ALL } else { &filter.triggers };
        let is_asked = |status: &&RunStatus| filter.statuses.is_empty() || filter.statuses.contains(status);
        let index = if filter.user.is_some() { walks.by_user_trigger } else { walks.by_trigger };
        for status in walks.statuses.iter().filter(is_asked) {
            for trigger in triggers {
                push_walk(query, filter, (walks, Some(index), ids), &mut is_first);
                query.push(" AND trigger_type = ").push_bind(trigger.as_str());
                query.push(" AND status = ").push_bind(status.as_str());
            }
        }
    }
}

fn push_walk(
    query: &mut QueryBuilder<Sqlite>,
    filter: &RunFilter,
    (walks, index, ids): (&Walks, Option<&'static str>, Ids<'_>),
    is_first: &mut bool,
) {
    query.push(if std::mem::take(is_first) { "" } else { " UNION ALL " }).push(walks.from);
    if let Some(index) = index.or(filter.routine.map(|_| walks.of_routine)) {
        query.push(" INDEXED BY ").push(index);
    }
    query.push(" WHERE TRUE");
    if let Some(user) = &filter.user {
        query.push(" AND user_id = ").push_bind(user.clone());
    }
    if let Some(routine) = filter.routine {
        query.push(" AND routine_id = ").push_bind(routine);
    }
    if let Some(since) = filter.since {
        query.push(" AND id >= ").push_bind(first_id_after(since.checked_sub_signed(ID_TOLERANCE).unwrap_or(since)));
        query.push(" AND created_at >= ").push_bind(since);
    }
    if let Some(until) = filter.until {
        query.push(" AND id < ").push_bind(first_id_after(until.checked_add_signed(ID_TOLERANCE).unwrap_or(until)));
        query.push(" AND created_at < ").push_bind(until);
    }
    ids.push(query);
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before);
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::tests::{fresh, plan, raw};

    const RUNS_OF_TWO: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 120) \
        INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, \
        routine_rev, status, created_at) SELECT unhex(printf('%012x7000%016x', 1790000000000 + n * 60000, n * 7919)), \
        unhex(printf('%032x', n % 3)), iif(n % 3 = 0, 'eve', 'ada'), 'r', 'i' || n, 'lightweight', \
        CASE n % 5 WHEN 0 THEN 'webhook' WHEN 1 THEN 'manual' ELSE 'every' END, '{}', 1, \
        CASE n % 7 WHEN 0 THEN 'failed' WHEN 1 THEN 'attention' WHEN 2 THEN 'skipped' ELSE 'ok' END, \
        strftime('%Y-%m-%dT%H:%M:%f+00:00', 1790000000 + n * 60, 'unixepoch') FROM n";
    const FIRINGS_OF_TWO: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 60) \
        INSERT INTO firings (id, routine_id, user_id, routine_name, status, reason, trigger_type, detail, created_at) \
        SELECT unhex(printf('%012x7000%016x', 1790000030000 + n * 120000, n * 104729)), unhex(printf('%032x', n % 3)), \
        iif(n % 3 = 0, 'eve', 'ada'), 'r', iif(n % 2, 'missed', 'skipped'), 'cooldown', iif(n % 4, 'every', 'webhook'), '{}', \
        strftime('%Y-%m-%dT%H:%M:%f+00:00', 1790000030 + n * 120, 'unixepoch') FROM n";

    async fn pages(store: &Store, filter: &RunFilter) -> Vec<RoutineRun> {
        let (mut runs, mut before) = (Vec::new(), None);
        loop {
            let (page, next) = store.runs(&RunFilter { before, ..filter.clone() }).await.unwrap();
            before = next;
            runs.extend(page);
            if before.is_none() {
                return runs;
            }
        }
    }

    #[tokio::test]
    async fn each_filter_finds_what_it_says_in_the_order_of_the_list() {
        let (directory, store) = fresh().await;
        for statement in [RUNS_OF_TWO, FIRINGS_OF_TWO] {
            sqlx::query(statement).execute(&mut raw(&directory).await).await.unwrap();
        }
        let all = pages(&store, &RunFilter { limit: 200, ..RunFilter::default() }).await;
        assert_eq!(all.len(), 180);
        assert!(all.is_sorted_by(|a, b| a.id > b.id));
        let (half, run) = (all[90].created_at, all[33].id.as_uuid().simple().to_string());
        let base = RunFilter { limit: 7, ..RunFilter::default() };
        let statuses = vec![RunStatus::Failed, RunStatus::Skipped];
        let triggers = vec![TriggerType::Webhook, TriggerType::Manual];
        let id_part = |part: &str| Some(part.to_owned());
        let filters = [
            base.clone(),
            RunFilter { statuses: statuses.clone(), ..base.clone() },
            RunFilter { statuses: vec![RunStatus::Queued], ..base.clone() },
            RunFilter { triggers: triggers.clone(), ..base.clone() },
            RunFilter { triggers: triggers.clone(), statuses: statuses.clone(), since: Some(half), ..base.clone() },
            RunFilter { statuses: vec![RunStatus::Missed], until: Some(half), ..base.clone() },
            RunFilter { id_part: id_part(&run[..4]), statuses, ..base.clone() },
            RunFilter { id_part: id_part(&run[28..]), ..base.clone() },
            RunFilter { id_part: id_part(&run[26..]), triggers, ..base.clone() },
            RunFilter {
                since: Some(half - TimeDelta::days(100_000)),
                until: Some(half + TimeDelta::days(1_000_000)),
                ..base
            },
        ];
        for filter in filters {
            for user in [None, Some("ada")] {
                for routine in [None, Some(RoutineId::from_uuid(Uuid::from_u128(1)))] {
                    let filter = RunFilter { user: user.map(str::to_owned), routine, ..filter.clone() };
                    let is_found = |run: &&RoutineRun| {
                        let id = run.id.as_uuid().simple().to_string();
                        filter.user.as_ref().is_none_or(|user| *user == run.user_id)
                            && filter.routine.is_none_or(|routine| routine == run.routine_id)
                            && (filter.statuses.is_empty() || filter.statuses.contains(&run.status))
                            && (filter.triggers.is_empty() || filter.triggers.contains(&run.trigger_type))
                            && filter.since.is_none_or(|since| run.created_at >= since)
                            && filter.until.is_none_or(|until| run.created_at < until)
                            && filter.id_part.as_ref().is_none_or(|part| id.starts_with(part) || id.ends_with(part))
                    };
                    let expected: Vec<RunId> = all.iter().filter(is_found).map(|run| run.id).collect();
                    let found: Vec<RunId> = pages(&store, &filter).await.iter().map(|run| run.id).collect();
                    assert_eq!(found, expected, "{filter:?}");
                }
            }
        }
        store.close().await;
    }

    #[tokio::test]
    async fn a_page_whose_runs_cannot_be_read_is_followed_by_the_next() {
        let (directory, store) = fresh().await;
        sqlx::query(RUNS_OF_TWO).execute(&mut raw(&directory).await).await.unwrap();
        let unreadable = "UPDATE routine_runs SET created_at = 'never' WHERE identity BETWEEN 'i50' AND 'i59'";
        sqlx::query(unreadable).execute(&mut raw(&directory).await).await.unwrap();
        let readable = pages(&store, &RunFilter { limit: 3, ..RunFilter::default() }).await;
        assert_eq!(readable.len(), 110);
        store.close().await;
    }

    #[tokio::test]
    async fn a_page_sorts_no_rows_but_those_that_an_end_of_an_id_finds() {
        let (_directory, store) = fresh().await;
        for user in [None, Some("ada".to_owned())] {
            for statuses in [vec![], vec![RunStatus::Failed, RunStatus::Missed]] {
                for triggers in [vec![], vec![TriggerType::Webhook]] {
                    let filter = RunFilter {
                        user: user.clone(),
                        statuses: statuses.clone(),
                        triggers,
                        limit: 50,
                        ..RunFilter::default()
                    };
                    let mut query = list(&filter);
                    let steps = plan(&store, sqlx::Execute::sql(query.build()).as_str()).await;
                    // The page itself, of two tables, is sorted.
                    let walk: Vec<&String> = steps.iter().take_while(|step| !step.contains("(id=?)")).collect();
                    assert!(!walk.iter().any(|step| step.contains("TEMP B-TREE")), "{filter:?}: {steps:#?}");
                }
            }
        }
        store.close().await;
    }
}
