//! The routines that fire by a schedule until a time, the soonest first.

use chrono::{DateTime, Utc};
use protocol::{Guardrails, RoutineId, RoutineTrigger};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use crate::{
    Store, StoreError,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, count},
    },
};

/// Routines that are counted at most beyond those that are read.
const MAX_COUNTED: u32 = 100_000;

/// A routine with a next time.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledRoutine {
    pub id: RoutineId,
    pub name: String,
    pub user_id: String,
    pub next_fire_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
    /// The runs that count for `max_runs`.
    pub run_count: u64,
    pub trigger: RoutineTrigger,
    pub guardrails: Guardrails,
}

/// The routines that fire until a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduledRoutines {
    /// The soonest, in their order.
    pub routines: Vec<ScheduledRoutine>,
    /// The number of further ones, counted up to 100,000.
    pub further: u64,
}

#[derive(FromRow)]
struct ScheduledRow {
    id: Uuid,
    name: String,
    user_id: String,
    next_fire_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
    run_count: i64,
    trigger: String,
    guardrails: String,
}

impl ScheduledRow {
    fn into_routine(self) -> Result<ScheduledRoutine, StoreError> {
        let row = RowRef { table: "routines", id: self.id };
        Ok(ScheduledRoutine {
            id: RoutineId::from_uuid(self.id),
            name: self.name,
            user_id: self.user_id,
            next_fire_at: self.next_fire_at,
            created_at: self.created_at,
            run_count: count(self.run_count),
            trigger: row.json("trigger", &self.trigger)?,
            guardrails: row.json("guardrails", &self.guardrails)?,
        })
    }
}

impl Store {
    /// The first `limit` routines of a user, or of all, that fire at or before `until`. One that cannot be read is logged
    /// and left out.
    pub async fn scheduled_routines(
        &self,
        user: Option<&str>,
        until: DateTime<Utc>,
        limit: u32,
    ) -> Result<ScheduledRoutines, StoreError> {
        let rows: Vec<Row<ScheduledRow>> =
            scheduled(user, until, limit).build_query_as().fetch_all(&self.search).await?;
        let further: i64 = if rows.len() < limit as usize {
            0
        } else {
            further(user, until, limit).build_query_scalar().fetch_one(&self.search).await?
        };
        let routines = self.inconsistent.read_each(rows, ScheduledRow::into_routine)?;
        Ok(ScheduledRoutines { routines, further: count(further) })
    }
}

fn scheduled(user: Option<&str>, until: DateTime<Utc>, limit: u32) -> QueryBuilder<Sqlite> {
    let mut query =
        QueryBuilder::new("SELECT id, name, user_id, next_fire_at, created_at, run_count, trigger, guardrails");
    push_scheduled(&mut query, user, until);
    query.push(" ORDER BY next_fire_at LIMIT ").push_bind(i64::from(limit));
    query
}

/// The number of those behind the first `limit`.
fn further(user: Option<&str>, until: DateTime<Utc>, limit: u32) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT COUNT(*) FROM (SELECT 1");
    push_scheduled(&mut query, user, until);
    query.push(" ORDER BY next_fire_at LIMIT ").push_bind(i64::from(MAX_COUNTED));
    query.push(" OFFSET ").push_bind(i64::from(limit)).push(")");
    query
}

fn push_scheduled(query: &mut QueryBuilder<Sqlite>, user: Option<&str>, until: DateTime<Utc>) {
    query.push(" FROM routines INDEXED BY ").push(if user.is_some() { "routines_due_of_user" } else { "routines_due" });
    query.push(" WHERE enabled AND next_fire_at <= ").push_bind(until);
    if let Some(user) = user {
        query.push(" AND user_id = ").push_bind(user.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{fresh, plan, raw};

    /// Routine n fires n minutes after 12:00, each third is another user's, and each fifth is disabled.
    const ROUTINES: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 30) \
        INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, notify, session, \
        wake_mode, deliver, post_to_main, persist_payload, next_fire_at, created_at, updated_at) \
        SELECT randomblob(16), iif(n % 3, 'ada', 'eve'), 'r' || n, n % 5 > 0, 'every', \
        iif(n = 1, 'unreadable', '{\"type\":\"every\",\"every_seconds\":3600}'), 'lightweight', '{}', '{}', '{}', 'isolated', \
        'next_heartbeat', FALSE, FALSE, FALSE, printf('2026-11-22T12:%02d:00+00:00', n), '2026-11-22T11:00:00+00:00', \
        '2026-11-22T11:00:00+00:00' FROM n";

    #[tokio::test]
    async fn the_soonest_routines_are_read_and_the_others_counted() {
        let (directory, store) = fresh().await;
        sqlx::query(ROUTINES).execute(&mut raw(&directory).await).await.unwrap();
        let until = "2026-11-22T12:14:00Z".parse().unwrap();
        for (user, limit, expected) in [
            (None, 4, (vec!["r2", "r3", "r4"], 8)),
            (Some("ada"), 3, (vec!["r2", "r4"], 5)),
            (Some("ada"), 50, (vec!["r2", "r4", "r7", "r8", "r11", "r13", "r14"], 0)),
            (Some("bob"), 50, (vec![], 0)),
        ] {
            let found = store.scheduled_routines(user, until, limit).await.unwrap();
            let names: Vec<&str> = found.routines.iter().map(|routine| routine.name.as_str()).collect();
            assert_eq!((names, found.further), expected, "{user:?} {limit}");
        }
        store.close().await;
    }

    #[tokio::test]
    async fn no_routine_is_read_but_those_that_fire_soonest() {
        let (_directory, store) = fresh().await;
        for (user, index) in [
            (None, "routines_due (next_fire_at<?)"),
            (Some("ada"), "routines_due_of_user (user_id=? AND next_fire_at<?)"),
        ] {
            for mut query in [scheduled(user, DateTime::UNIX_EPOCH, 10), further(user, DateTime::UNIX_EPOCH, 10)] {
                let steps = plan(&store, sqlx::Execute::sql(query.build()).as_str()).await;
                let is_bounded = |step: &String| step.contains(index) || step.contains("(subquery-1)");
                assert!(steps.iter().all(is_bounded), "{steps:#?}");
            }
        }
        store.close().await;
    }
}
