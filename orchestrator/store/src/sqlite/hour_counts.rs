//! Rows counted by the hour in which they were created and by their state.
//!
//! Owns the bound: more rows than that are counted for no caller, and are refused before they are read a second time.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use protocol::RoutineId;
use sqlx::{QueryBuilder, Sqlite};

use super::{
    list_walks::{push_created, push_names},
    rows::count,
};
use crate::{Store, StoreError};

/// Rows that are counted at most: some 20 ms of reading an index.
const MAX_ROWS: u32 = 200_000;
/// How the column `created_hour` spells an hour.
const HOUR: &str = "%Y-%m-%dT%H";
/// What narrows a count.
const NARROWER: &str = "a later since=";

/// Which rows are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HourFilter {
    /// Only those of this user; `None` for all users.
    pub user: Option<String>,
    /// The beginning of the first hour.
    pub since: DateTime<Utc>,
    /// The end of the last hour.
    pub until: DateTime<Utc>,
}

/// Numbers of rows by state. Those that no row has are left out.
pub type StatesOfHours = BTreeMap<DateTime<Utc>, BTreeMap<String, u64>>;

/// A table of which rows are counted.
pub(crate) struct HourWalk<'a> {
    pub(crate) table: &'static str,
    /// The column of the state.
    pub(crate) state: &'static str,
    /// The states that are counted; none for all.
    pub(crate) states: Vec<&'static str>,
    /// An index that has the user if there is one, the hour and the state, or else the routine.
    pub(crate) index: &'static str,
    /// Only rows of this routine.
    pub(crate) routine: Option<RoutineId>,
    pub(crate) filter: &'a HourFilter,
}

impl HourWalk<'_> {
    fn push(&self, query: &mut QueryBuilder<Sqlite>) {
        query.push(" FROM ").push(self.table).push(" INDEXED BY ").push(self.index).push(" WHERE TRUE");
        if let Some(user) = &self.filter.user {
            query.push(" AND user_id = ").push_bind(user.clone());
        }
        if let Some(routine) = self.routine {
            query.push(" AND routine_id = ").push_bind(routine);
            push_created(query, Some(self.filter.since), Some(self.filter.until));
        } else {
            query.push(" AND created_hour >= ").push_bind(self.filter.since.format(HOUR).to_string());
            query.push(" AND created_hour < ").push_bind(self.filter.until.format(HOUR).to_string());
        }
        let condition = format!(" AND {} IN (", self.state);
        push_names(query, &condition, self.states.iter().copied());
    }

    /// The number of rows, as far as it matters.
    pub(crate) fn rows(&self) -> QueryBuilder<Sqlite> {
        let mut query = QueryBuilder::new("SELECT COUNT(*) FROM (SELECT 1");
        self.push(&mut query);
        query.push(" LIMIT ").push_bind(i64::from(MAX_ROWS) + 1).push(")");
        query
    }

    /// The number of rows of each hour and state.
    pub(crate) fn counts(&self) -> QueryBuilder<Sqlite> {
        let mut query = QueryBuilder::new("SELECT created_hour, ");
        query.push(self.state).push(", COUNT(*)");
        self.push(&mut query);
        query.push(" GROUP BY created_hour, ").push(self.state);
        query
    }
}

#[cfg(test)]
impl HourWalk<'_> {
    /// The steps in which both statements are run.
    pub(crate) async fn plan(&self, store: &Store) -> Vec<String> {
        let mut steps = vec![];
        for query in [&mut self.rows(), &mut self.counts()] {
            let statement = sqlx::Execute::sql(query.build()).as_str().to_owned();
            steps.extend(crate::tests::plan(store, &statement).await);
        }
        steps
    }
}

impl Store {
    /// The numbers of the rows of tables together.
    pub(crate) async fn counted_by_hour(&self, walks: &[HourWalk<'_>]) -> Result<StatesOfHours, StoreError> {
        let mut rows = 0;
        for walk in walks {
            rows += walk.rows().build_query_scalar::<i64>().fetch_one(&self.search).await?;
        }
        if rows > i64::from(MAX_ROWS) {
            return Err(StoreError::TooManyToCount { max: MAX_ROWS, narrower: NARROWER });
        }
        let mut hours = StatesOfHours::new();
        for walk in walks {
            let counts: Vec<(String, String, i64)> = walk.counts().build_query_as().fetch_all(&self.search).await?;
            for (hour, state, rows) in counts {
                let Ok(begin) = format!("{hour}:00:00Z").parse() else {
                    tracing::error!(hour, rows, "counts leave out rows without a time");
                    continue;
                };
                *hours.entry(begin).or_default().entry(state).or_default() += count(rows);
            }
        }
        Ok(hours)
    }
}
