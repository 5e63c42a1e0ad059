//! The routines that an event may fire, in pages. Never compares anything with a pattern.

use protocol::{RoutineId, RoutineTrigger};
use uuid::Uuid;

use super::EventName;
use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, count},
};
use domain::routine::matching::folded;

/// A routine that an event may fire.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRoutine {
    pub id: RoutineId,
    pub rev: u64,
    pub trigger: RoutineTrigger,
}

/// A page of routines that an event may fire.
#[derive(Debug, Default)]
pub struct EventRoutines {
    /// Those that can be read.
    pub routines: Vec<EventRoutine>,
    /// The last of the page; `None` if there are no further ones.
    pub next: Option<RoutineId>,
}

/// A page of routines that are compared with a message. The conditions are those of the index.
const ROUTINES_OF_MESSAGES: &str = "SELECT id, rev, trigger FROM routines INDEXED BY routines_of_messages \
     WHERE user_id = $1 AND id > $2 AND enabled AND trigger_type = 'event' ORDER BY id LIMIT $3";

/// A page of routines that are compared with an event of a system.
const ROUTINES_OF_EVENTS: &str = "SELECT id, rev, trigger FROM routines INDEXED BY routines_of_events \
     WHERE user_id = $1 AND event_source = $2 AND event_type = $3 AND id > $4 AND enabled AND trigger_type = 'system_event' \
     ORDER BY id LIMIT $5";

impl Store {
    /// The enabled routines of a user that an event of this name may fire, after one of them. Those that cannot be read
    /// are logged and left out.
    pub async fn routines_of_event(
        &self,
        user: &str,
        name: &EventName,
        after: Option<RoutineId>,
        limit: u32,
    ) -> Result<EventRoutines, StoreError> {
        let after = *after.unwrap_or(RoutineId::nil()).as_uuid();
        let query = match name {
            EventName::Message { .. } => sqlx::query_as(ROUTINES_OF_MESSAGES).bind(user),
            EventName::System { source, event_type } => {
                sqlx::query_as(ROUTINES_OF_EVENTS).bind(user).bind(folded(source)).bind(folded(event_type))
            }
        };
        let rows: Vec<(Uuid, i64, String)> = query.bind(after).bind(i64::from(limit)).fetch_all(&self.read).await?;
        let is_full = rows.len() >= limit as usize;
        let next = rows.last().filter(|_| is_full).map(|(id, ..)| RoutineId::from_uuid(*id));
        let read = |(id, rev, trigger): (Uuid, i64, String)| {
            let trigger = RowRef { table: "routines", id }.json("trigger", &trigger);
            let trigger =
                trigger.inspect_err(|error| tracing::warn!(%error, "the trigger of a routine cannot be read"));
            Some(EventRoutine { id: RoutineId::from_uuid(id), rev: count(rev), trigger: trigger.ok()? })
        };
        Ok(EventRoutines { routines: rows.into_iter().filter_map(read).collect(), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_of_routines_is_read_in_the_order_of_its_index() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        for (statement, expected) in [
            (ROUTINES_OF_MESSAGES, "SEARCH routines USING INDEX routines_of_messages (user_id=? AND id>?)"),
            (
                ROUTINES_OF_EVENTS,
                "SEARCH routines USING INDEX routines_of_events (user_id=? AND event_source=? AND event_type=? AND id>?)",
            ),
        ] {
            let explain = format!("EXPLAIN QUERY PLAN {statement}");
            let plan: Vec<(i64, i64, i64, String)> =
                sqlx::query_as(sqlx::AssertSqlSafe(explain)).fetch_all(&store.read).await.unwrap();
            let steps: Vec<_> = plan.into_iter().map(|(.., step)| step).collect();
            assert_eq!(steps, [expected]);
        }
        store.close().await;
    }
}
