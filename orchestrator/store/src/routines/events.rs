//! Messages and events of systems that may fire routines: those that wait, and their firings.
//!
//! Guarantees that an event waits from the transaction that causes it until the transaction that fires its routines, that
//! a user has a limited number of waiting events, and the depth of an event: the firings of routines that led to it. A user without a routine that an event could fire pays for one read of an index. Never compares
//! anything with a pattern.

pub(super) mod event_routines;
pub(crate) mod own_events;

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{EventReceipt, JobId, NotificationKind, RoutineEventId, RoutineId, WorkId};
use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    super::{
        Connection, NewNotification, Store, StoreError, Topic,
        accepted::{self, IdempotencyKey, Lookup},
        notifications,
        sqlite::{
            rows::{RowRef, text},
            write_tx::WriteTx,
        },
    },
    firings::firing::{FireOutcome, Firing, fire_all},
};
use base::failpoint;
use domain::routine::matching::folded;

/// Events of one user that wait. Further ones are dropped, and the user is notified.
const MAX_WAITING_PER_USER: i64 = 1_000;
/// How often a user is notified of dropped events.
const DROPS_NOTICE: TimeDelta = TimeDelta::days(1);
/// How many jobs above a job are searched for the run that caused it.
const MAX_ANCESTORS: i64 = 8;

/// What an event is compared with first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventName {
    /// A message of the owner.
    Message {
        channel: Option<String>,
    },
    System {
        source: String,
        event_type: String,
    },
}

impl EventName {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::System { .. } => "system",
        }
    }

    fn columns(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::Message { channel } => (channel.as_deref(), None),
            Self::System { source, event_type } => (Some(source), Some(event_type)),
        }
    }
}

/// An event that is about to wait.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRoutineEvent {
    /// Whose routines it may fire.
    pub user: String,
    pub name: EventName,
    /// The text of a message as `content`, or the payload of an event of a system.
    pub payload: Value,
    /// Whose agent caused it; `None`: a person or a program.
    pub cause: Option<WorkId>,
}

/// An event that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingEvent {
    pub id: RoutineEventId,
    /// Whose routines it may fire.
    pub user: String,
    pub name: EventName,
    /// As in [`NewRoutineEvent`].
    pub payload: Value,
    /// Firings by routines that led to it.
    pub depth: u32,
    /// Rounds in which it was compared with some of the user's routines.
    pub rounds: u32,
    /// The last routine that it was compared with.
    pub compared_to: Option<RoutineId>,
}

/// The answer to an event that was posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventAnswer {
    Fired(EventReceipt),
    /// The idempotency key was seen before. Nothing was written.
    Known(Lookup),
}

/// The status of the response to an event that was posted.
const ACCEPTED: u16 = 202;

impl Store {
    /// Has an event wait, unless no routine could be fired by it. False: it was dropped, since too many wait.
    pub async fn emit_routine_event(&self, event: NewRoutineEvent, now: DateTime<Utc>) -> Result<bool, StoreError> {
        self.write(transaction!(|tx| enqueue(tx, &event, now).await)).await
    }

    /// Events that wait, the oldest of each user: of users after `after`, in their order.
    pub async fn pending_events(
        &self,
        after: &str,
        users: u32,
        per_user: u32,
    ) -> Result<Vec<(RoutineEventId, String)>, StoreError> {
        Ok(sqlx::query_as(concat!(
            // The condition of each step is the last user alone: SQLite would seek by `$1`.
            "WITH RECURSIVE users (user_id) AS (SELECT MIN(user_id) FROM routine_events WHERE user_id > $1 UNION ALL \
             SELECT (SELECT MIN(user_id) FROM routine_events WHERE user_id > users.user_id) FROM users \
             WHERE user_id IS NOT NULL) ",
            "SELECT e.id, e.user_id FROM (SELECT user_id FROM users WHERE user_id IS NOT NULL LIMIT $2) AS u \
             CROSS JOIN routine_events AS e ON e.id IN (SELECT id FROM routine_events WHERE user_id = u.user_id ORDER BY id LIMIT $3) \
             ORDER BY e.user_id, e.id"
        ))
        .bind(after)
        .bind(i64::from(users))
        .bind(i64::from(per_user))
        .fetch_all(&self.read)
        .await?)
    }

    pub async fn waiting_event(&self, id: RoutineEventId) -> Result<Option<PendingEvent>, StoreError> {
        let row: Option<EventRow> = sqlx::query_as(
            "SELECT id, user_id, kind, source, event_type, payload, depth, rounds, compared_to FROM routine_events \
             WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&self.read)
        .await?;
        row.map(EventRow::into_event).transpose()
    }

    /// Fires different routines for an event that was posted, and records the answer if it has a key, in one transaction.
    pub async fn fire_event(
        &self,
        id: String,
        key: Option<IdempotencyKey>,
        firings: Vec<Firing>,
        now: DateTime<Utc>,
    ) -> Result<EventAnswer, StoreError> {
        if key.is_none() && firings.is_empty() {
            return Ok(EventAnswer::Fired(EventReceipt { id, run_ids: Vec::new() }));
        }
        let answer = self
            .write(transaction!(|tx| {
                if let Some(known) = accepted::lookup(&mut tx.db, key.as_ref(), now).await? {
                    return Ok(EventAnswer::Known(known));
                }
                let run_of = |outcome| if let FireOutcome::Fired(run) = outcome { Some(run) } else { None };
                let run_ids = fire_all(tx, firings, now).await?.into_iter().filter_map(run_of).collect();
                let receipt = EventReceipt { id, run_ids };
                if let Some(key) = &key {
                    accepted::answer(&mut tx.db, key, (ACCEPTED, text(&receipt)?), None, now).await?;
                }
                Ok(EventAnswer::Fired(receipt))
            }))
            .await?;
        failpoint::reach("routine.after_fire");
        Ok(answer)
    }

    /// Fires different routines that an event matched in a round, and has it wait for the next one, in one transaction.
    /// One that does not wait any more fires none.
    pub async fn postpone_event(
        &self,
        event: RoutineEventId,
        firings: Vec<Firing>,
        compared_to: Option<RoutineId>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            let next = "UPDATE routine_events SET rounds = rounds + 1, compared_to = $2 WHERE id = $1";
            let updated = sqlx::query(next).bind(event).bind(compared_to);
            if updated.execute(&mut tx.db).await?.rows_affected() > 0 {
                fire_all(tx, firings, now).await?;
            }
            Ok(())
        }))
        .await?;
        failpoint::reach("routine.after_fire");
        Ok(())
    }

    /// Fires different routines for an event that waits, and ends its waiting, in one transaction. One that does not wait
    /// any more fires none.
    pub async fn complete_event(
        &self,
        event: RoutineEventId,
        firings: Vec<Firing>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            let deleted = sqlx::query("DELETE FROM routine_events WHERE id = $1").bind(event);
            if deleted.execute(&mut tx.db).await?.rows_affected() > 0 {
                fire_all(tx, firings, now).await?;
            }
            Ok(())
        }))
        .await?;
        failpoint::reach("routine.after_fire");
        Ok(())
    }
}

/// Has an event wait, in the transaction that causes it, unless no routine could be fired by it. False: it was dropped.
pub(crate) async fn enqueue(tx: &mut WriteTx, event: &NewRoutineEvent, now: DateTime<Utc>) -> Result<bool, StoreError> {
    if users_listening(tx, &[&event.user], &event.name).await?.is_empty() {
        return Ok(true);
    }
    let waiting: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM routine_events WHERE user_id = $1")
        .bind(&event.user)
        .fetch_one(&mut tx.db)
        .await?;
    if waiting >= MAX_WAITING_PER_USER {
        record_drop(tx, &event.user, now).await?;
        return Ok(false);
    }
    let depth = depth_of(tx, event.cause).await?;
    let (source, event_type) = event.name.columns();
    sqlx::query(
        "INSERT INTO routine_events (id, user_id, kind, source, event_type, payload, depth, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(*RoutineEventId::generate().as_uuid())
    .bind(&event.user)
    .bind(event.name.kind())
    .bind(source)
    .bind(event_type)
    .bind(text(&event.payload)?)
    .bind(i64::from(depth))
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    tx.notify(Topic::RoutineEvents);
    Ok(true)
}

/// Which of these users have an enabled routine that an event of this name may fire.
async fn users_listening(tx: &mut WriteTx, users: &[&str], name: &EventName) -> Result<HashSet<String>, StoreError> {
    let query = match name {
        EventName::Message { .. } => sqlx::query_scalar(
            "SELECT value FROM json_each($1) WHERE EXISTS (SELECT 1 FROM routines WHERE user_id = value AND enabled \
             AND trigger_type = 'event')",
        )
        .bind(text(&users)?),
        EventName::System { source, event_type } => sqlx::query_scalar(
            "SELECT value FROM json_each($1) WHERE EXISTS (SELECT 1 FROM routines WHERE user_id = value AND event_source = $2 \
             AND event_type = $3 AND enabled AND trigger_type = 'system_event')",
        )
        .bind(text(&users)?)
        .bind(folded(source))
        .bind(folded(event_type)),
    };
    Ok(query.fetch_all(&mut tx.db).await?.into_iter().collect())
}

/// The firings of routines that led to what is caused now.
async fn depth_of(tx: &mut WriteTx, cause: Option<WorkId>) -> Result<u32, StoreError> {
    let depth = match cause {
        None => None,
        Some(WorkId::Job(job)) => depth_of_job(&mut tx.db, job).await?,
        Some(WorkId::Run(run)) => {
            sqlx::query_scalar("SELECT depth + 1 FROM routine_runs WHERE id = $1")
                .bind(run)
                .fetch_optional(&mut tx.db)
                .await?
        }
        // The lines that its turn reads, some of which routines have written.
        Some(WorkId::Thread(thread)) => {
            sqlx::query_scalar("SELECT MAX(depth) + 1 FROM system_lines WHERE thread_id = $1")
                .bind(thread)
                .fetch_one(&mut tx.db)
                .await?
        }
    };
    Ok(depth.map_or(0, |depth: i64| u32::try_from(depth).unwrap_or(u32::MAX)))
}

/// One more than the depth of the run whose job this is, or whose job created it.
async fn depth_of_job(db: &mut Connection, job: JobId) -> Result<Option<i64>, StoreError> {
    Ok(sqlx::query_scalar(
        "WITH RECURSIVE above (id, parent_id, run_id, level) AS ( \
         SELECT id, parent_id, run_id, 0 FROM jobs WHERE id = $1 UNION ALL \
         SELECT jobs.id, jobs.parent_id, jobs.run_id, level + 1 FROM above JOIN jobs ON jobs.id = above.parent_id \
         WHERE above.run_id IS NULL AND level < $2) \
         SELECT depth + 1 FROM above JOIN routine_runs ON routine_runs.id = above.run_id LIMIT 1",
    )
    .bind(job)
    .bind(MAX_ANCESTORS)
    .fetch_optional(db)
    .await?)
}

/// Counts a dropped event, and tells the user about it once a day.
async fn record_drop(tx: &mut WriteTx, user: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
    let dropped: i64 = sqlx::query_scalar(
        "INSERT INTO routine_event_drops (user_id, dropped, notified_at) VALUES ($1, 1, $2) \
         ON CONFLICT (user_id) DO UPDATE SET dropped = CASE WHEN notified_at < $3 THEN 1 ELSE dropped + 1 END, \
         notified_at = CASE WHEN notified_at < $3 THEN $2 ELSE notified_at END RETURNING dropped",
    )
    .bind(user)
    .bind(now)
    .bind(now - DROPS_NOTICE)
    .fetch_one(&mut tx.db)
    .await?;
    let of_log = user.to_owned();
    tx.after_commit(move |_| {
        tracing::warn!(user = of_log, dropped, "an event was dropped: too many wait for routines");
    });
    if dropped > 1 {
        return Ok(());
    }
    let text = format!(
        "{MAX_WAITING_PER_USER} events wait for your routines, which is the maximum. Further ones are dropped until some \
         have been handled."
    );
    let title = "Events were dropped".to_owned();
    notifications::insert(tx, NewNotification::new(user, NotificationKind::Message, title, text), now).await
}

#[derive(FromRow)]
struct EventRow {
    id: Uuid,
    user_id: String,
    kind: String,
    source: Option<String>,
    event_type: Option<String>,
    payload: String,
    depth: i64,
    rounds: i64,
    compared_to: Option<Uuid>,
}

impl EventRow {
    fn into_event(self) -> Result<PendingEvent, StoreError> {
        let row = RowRef { table: "routine_events", id: self.id };
        let name = match self.kind.as_str() {
            "message" => EventName::Message { channel: self.source },
            "system" => EventName::System {
                source: row.known("source", self.source)?,
                event_type: row.known("event_type", self.event_type)?,
            },
            _ => return Err(row.invalid("kind")),
        };
        Ok(PendingEvent {
            id: RoutineEventId::from_uuid(self.id),
            user: self.user_id,
            name,
            payload: row.json("payload", &self.payload)?,
            depth: row.number("depth", self.depth)?,
            rounds: row.number("rounds", self.rounds)?,
            compared_to: self.compared_to.map(RoutineId::from_uuid),
        })
    }
}
