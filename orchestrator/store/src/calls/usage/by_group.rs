//! Sums of a period by one or two groups: days, users, models, and routines or the values of a label.
//!
//! Days, users and models are read from `daily_usage`, routines and labels from `daily_group_usage`; both are counted by
//! triggers and limited by the retention of calls. A chat belongs to no routine and has no labels.

use std::{collections::HashMap, fmt, str::FromStr};

use chrono::NaiveDate;
use protocol::{RoutineId, UsageGroup, UsageLine, UsageSort};
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{SUMS, Totals, day_text, of_user};
use crate::{
    Store, StoreError,
    sqlite::{
        data_migrations::DataMigration,
        rows::{RowRef, text},
    },
};

/// Rows of a period that sums by routine or label read, about a third of a second. There may be as many values of a label
/// as there are jobs.
const MAX_ROWS: u32 = 50_000;

/// Which sums are read: a page of them.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageQuery {
    /// One group or two, as `UsageGroup::parse_list` allows.
    pub groups: Vec<UsageGroup>,
    /// Only usage of this user.
    pub user: Option<String>,
    /// The first day.
    pub since: NaiveDate,
    /// The day after the last one.
    pub until: NaiveDate,
    pub sort: UsageSort,
    /// Only lines after this one.
    pub after: Option<UsagePosition>,
    /// Maximum number of lines.
    pub limit: u32,
}

/// The position of a line in a list of sums, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsagePosition {
    /// The known cost, in a list that is sorted by it.
    pub(super) micro_usd: Option<i64>,
    /// A value of each group.
    pub(super) keys: Vec<String>,
}

impl fmt::Display for UsagePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for UsagePosition {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl UsageQuery {
    /// Whether the position to go on from is one of this list.
    pub fn has_valid_position(&self) -> bool {
        self.after.as_ref().is_none_or(|after| {
            let is_job_list = self.groups == [UsageGroup::Job];
            after.keys.len() == self.groups.len()
                && after.micro_usd.is_some() == (self.sort == UsageSort::Cost)
                && (!is_job_list || after.keys.iter().all(|key| key.parse::<protocol::JobId>().is_ok()))
        })
    }

    /// Whether it may read as many rows as a search.
    pub fn is_search(&self) -> bool {
        match (self.groups.as_slice(), self.sort) {
            ([UsageGroup::Job], sort) => sort == UsageSort::Cost,
            _ => self.user.is_none() || self.dimension().is_some(),
        }
    }

    /// The routines or the label of the sums, as `daily_group_usage` names them.
    fn dimension(&self) -> Option<String> {
        self.groups
            .iter()
            .find(|group| matches!(group, UsageGroup::Routine | UsageGroup::Label(_)))
            .map(ToString::to_string)
    }

    fn has_models(&self) -> bool {
        self.groups.contains(&UsageGroup::Model)
    }
}

impl Store {
    /// A page of sums, each with its position.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<(UsagePosition, UsageLine)>, StoreError> {
        if query.groups == [UsageGroup::Job] {
            return self.usage_by_job(query).await;
        }
        let readers = self.readers_of_sums(query.is_search());
        if query.dimension().is_some() {
            let rows: i64 = number_of_rows(query, MAX_ROWS + 1).build_query_scalar().fetch_one(readers).await?;
            if rows > i64::from(MAX_ROWS) {
                return Err(StoreError::TooManyToCount { max: MAX_ROWS, narrower: "a shorter period" });
            }
        }
        let rows: Vec<SumRow> = sums(query).build_query_as().fetch_all(readers).await?;
        let mut lines = rows.into_iter().map(|row| row.into_line(query)).collect::<Result<Vec<_>, _>>()?;
        self.name_routines(&mut lines).await?;
        Ok(lines)
    }

    async fn name_routines(&self, lines: &mut [(UsagePosition, UsageLine)]) -> Result<(), StoreError> {
        let ids: Vec<RoutineId> = lines.iter().filter_map(|(_, line)| line.routine_id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let names: HashMap<Uuid, Option<String>> =
            sqlx::query_as(ROUTINE_NAMES).bind(text(&ids)?).fetch_all(&self.read).await?.into_iter().collect();
        for (_, line) in lines {
            line.routine_name = line.routine_id.and_then(|id| names.get(id.as_uuid()).cloned().flatten());
        }
        Ok(())
    }
}

/// The names of routines ($1). Those of deleted ones are known from their last run.
const ROUTINE_NAMES: &str = "SELECT asked.id, COALESCE((SELECT name FROM routines WHERE id = asked.id), \
     (SELECT routine_name FROM routine_runs WHERE routine_id = asked.id ORDER BY id DESC LIMIT 1)) \
     FROM (SELECT unhex(value, '-') AS id FROM json_each($1)) AS asked";

fn column(group: &UsageGroup) -> &'static str {
    match group {
        UsageGroup::Day => "day",
        UsageGroup::User => "user_id",
        UsageGroup::Model => "model",
        UsageGroup::Routine | UsageGroup::Label(_) => "value",
        // A line of jobs is not a sum over these tables.
        UsageGroup::Job => "''",
    }
}

/// Appends FROM and the conditions of a query.
fn push_rows(statement: &mut QueryBuilder<Sqlite>, query: &UsageQuery) {
    match query.dimension() {
        Some(dimension) => {
            statement.push(" FROM daily_group_usage WHERE dimension = ").push_bind(dimension).push(" AND");
        }
        None => drop(statement.push(" FROM daily_usage WHERE")),
    }
    statement.push(" day >= ").push_bind(day_text(query.since)).push(" AND day < ").push_bind(day_text(query.until));
    of_user(statement, query.user.as_deref());
}

pub(super) fn number_of_rows(query: &UsageQuery, max: u32) -> QueryBuilder<Sqlite> {
    let mut statement = QueryBuilder::new("SELECT COUNT(*) FROM (SELECT 1");
    push_rows(&mut statement, query);
    statement.push(" LIMIT ").push_bind(i64::from(max)).push(")");
    statement
}

pub(super) fn sums(query: &UsageQuery) -> QueryBuilder<Sqlite> {
    let columns: Vec<&str> = query.groups.iter().map(column).collect();
    let (first, second) = (columns.first().unwrap_or(&"''"), columns.get(1).unwrap_or(&"''"));
    let mut statement = QueryBuilder::new(format!(
        "SELECT {first} AS key, {second} AS second, COALESCE(SUM(cost_micro_usd), 0) AS known_cost, {SUMS}"
    ));
    push_rows(&mut statement, query);
    // A row whose calls were all taken back or belong to another day by now.
    statement.push(" AND (tries > 0 OR tool_calls > 0)");
    // A tool call is one of no model.
    if query.has_models() {
        statement.push(" AND model <> ''");
    }
    statement.push(" GROUP BY ").push(columns.join(", "));
    if let Some(after) = &query.after {
        push_after(&mut statement, query, after);
    }
    let order = query.groups.iter().map(|group| match group {
        UsageGroup::Day => "day DESC",
        other => column(other),
    });
    let by_cost = (query.sort == UsageSort::Cost).then_some("known_cost DESC");
    let order: Vec<&str> = by_cost.into_iter().chain(order).collect();
    statement.push(" ORDER BY ").push(order.join(", ")).push(" LIMIT ").push_bind(i64::from(query.limit));
    statement
}

/// Appends the condition for the lines after a position.
fn push_after(statement: &mut QueryBuilder<Sqlite>, query: &UsageQuery, after: &UsagePosition) {
    statement.push(" HAVING (");
    if let Some(micro_usd) = after.micro_usd {
        statement.push("known_cost < ").push_bind(micro_usd);
        statement.push(" OR (known_cost = ").push_bind(micro_usd).push(" AND (");
    }
    for (number, (group, key)) in query.groups.iter().zip(&after.keys).enumerate() {
        if number > 0 {
            statement.push(" OR (");
            for (group, key) in query.groups.iter().zip(&after.keys).take(number) {
                statement.push(column(group)).push(" = ").push_bind(key.clone()).push(" AND ");
            }
        }
        let is_after = if *group == UsageGroup::Day { " < " } else { " > " };
        statement.push(column(group)).push(is_after).push_bind(key.clone());
        if number > 0 {
            statement.push(")");
        }
    }
    statement.push(if after.micro_usd.is_some() { ")))" } else { ")" });
}

#[derive(FromRow)]
struct SumRow {
    key: String,
    second: String,
    known_cost: i64,
    #[sqlx(flatten)]
    totals: Totals,
}

impl SumRow {
    fn into_line(self, query: &UsageQuery) -> Result<(UsagePosition, UsageLine), StoreError> {
        let row_ref = RowRef { table: "daily_usage", id: Uuid::nil() };
        let mut line = self.totals.line();
        let keys: Vec<String> = [self.key, self.second].into_iter().take(query.groups.len()).collect();
        for (group, key) in query.groups.iter().zip(&keys) {
            match group {
                UsageGroup::Day => line.day = Some(key.parse().map_err(|_| row_ref.invalid("day"))?),
                UsageGroup::User => line.user = Some(key.clone()),
                UsageGroup::Model => line.model = Some(key.clone()),
                UsageGroup::Label(_) => line.label = Some(key.clone()),
                UsageGroup::Routine => {
                    let id = Uuid::try_parse(key).map_err(|_| row_ref.invalid("value"))?;
                    line.routine_id = Some(RoutineId::from_uuid(id));
                }
                UsageGroup::Job => {}
            }
        }
        if query.has_models() {
            line.tool_calls = None;
        }
        let micro_usd = (query.sort == UsageSort::Cost).then_some(self.known_cost);
        Ok((UsagePosition { micro_usd, keys }, line))
    }
}

/// Counts the model calls from before `daily_group_usage`. It runs before the migrations that move calls, which triggers
/// count.
pub(crate) const COUNT_MODEL_CALLS: DataMigration = DataMigration {
    name: "usage_groups_of_model_calls",
    table: "model_calls",
    step: &["INSERT INTO counted_calls SELECT 1, work_id, at, model, input_tokens, output_tokens, cache_read_tokens, \
             cache_write_tokens, cost_micro_usd, tries, 0 \
             FROM model_calls WHERE rowid > ?1 AND rowid <= ?2 AND kind <> 'thread'"],
    finish: &[],
};

/// The same of tool calls.
pub(crate) const COUNT_TOOL_CALLS: DataMigration = DataMigration {
    name: "usage_groups_of_tool_calls",
    table: "tool_calls",
    step: &["INSERT INTO counted_calls SELECT 1, work_id, at, '', 0, 0, 0, 0, 0, 0, 1 \
             FROM tool_calls WHERE rowid > ?1 AND rowid <= ?2 AND kind <> 'thread'"],
    finish: &[],
};
