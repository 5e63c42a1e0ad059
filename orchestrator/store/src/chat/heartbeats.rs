//! Heartbeats of users' main sessions: which are due, the one in progress, and how it ends.
//!
//! A heartbeat is a turn of the user's thread `heartbeat`, which keeps what it did; what it has to say goes to the main
//! session. Guarantees that a user has at most one at a time, that a decision about facts which have changed is void,
//! and that one which a process leaves in progress is due again. Never decides whether one begins: `domain::heartbeat`
//! does.

mod due;
mod end;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use protocol::{ChatMessage, ThreadId, ThreadState};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

pub use self::{
    due::{DeferredHeartbeat, DueHeartbeat},
    end::{HeartbeatEnd, HeartbeatReply},
};
use super::{MessageRow, message_columns, system_lines};
use crate::{
    Store, StoreError, SystemLine, Turn, TurnKey, TurnRequest, chat,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, count},
        write_tx::WriteTx,
    },
};
use domain::chat::{HEARTBEAT_THREAD, ThreadRef};

/// Title of the thread that keeps what a user's heartbeats did.
const TITLE: &str = "Heartbeat";
/// Entries of the main session that its model has yet to read: the newest of them, for a heartbeat and for a user who
/// is away.
const MAX_DUE_ENTRIES: i64 = 200;

/// A heartbeat that has begun.
#[derive(Debug, Clone, PartialEq)]
pub struct StartedHeartbeat {
    /// Its turn. What the model has read, and has yet to read, is that of the main session.
    pub turn: Turn,
    /// The lines that it has taken, oldest first.
    pub lines: Vec<SystemLine>,
    /// The thread of the main session, if there is one.
    pub main: Option<ThreadId>,
}

/// Notes that the main sessions of users have something to do, and for each whether a heartbeat is asked for at once.
pub(crate) async fn mark_pending(
    tx: &mut WriteTx,
    users: &BTreeMap<&str, bool>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let mut mark = QueryBuilder::<Sqlite>::new("INSERT INTO heartbeats (user_id, check_at, since, requested_at) ");
    mark.push_values(users, |mut row, (user, requested)| {
        row.push_bind((*user).to_owned()).push_bind(now).push_bind(now).push_bind(requested.then_some(now));
    });
    // A user who is to be polled anyway is polled no earlier, so that a flood of lines causes no flood of polls.
    mark.push(
        " ON CONFLICT (user_id) DO UPDATE SET rev = rev + 1, since = COALESCE(since, excluded.since), \
         requested_at = COALESCE(requested_at, excluded.requested_at), \
         check_at = CASE WHEN excluded.requested_at IS NOT NULL AND requested_at IS NULL THEN excluded.check_at \
         ELSE COALESCE(check_at, excluded.check_at) END",
    );
    mark.build().persistent(users.len() == 1).execute(&mut tx.db).await?;
    tx.after_commit(|committed| committed.notifier.heartbeats.notify_one());
    Ok(())
}

/// Makes the heartbeats due again that an earlier process left in progress.
pub(crate) async fn reset_interrupted(tx: &mut WriteTx, now: DateTime<Utc>) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE heartbeats SET rev = rev + 1, requested_at = COALESCE(requested_at, started_at), thread_id = NULL, turn = NULL, \
         started_at = NULL, check_at = $1 \
         WHERE turn IS NOT NULL",
    )
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

impl Store {
    /// Begins a heartbeat that was decided on, and takes the lines that wait. `None`: what the decision knew has
    /// changed.
    pub async fn begin_heartbeat(
        &self,
        user: &str,
        rev: i64,
        now: DateTime<Utc>,
    ) -> Result<Option<StartedHeartbeat>, StoreError> {
        let user = user.to_owned();
        let begun = self.write(transaction!(|tx| begin(tx, user, rev, now).await)).await?;
        let Some(mut started) = begun else { return Ok(None) };
        let Some(main) = started.main else { return Ok(Some(started)) };
        started.turn.transcript = self.chat_transcript(main).await?;
        started.turn.due = self.newest_due_entries(main).await?;
        Ok(Some(started))
    }

    async fn newest_due_entries(&self, thread: ThreadId) -> Result<Vec<ChatMessage>, StoreError> {
        let rows: Vec<Row<MessageRow>> = sqlx::query_as(concat!(
            "SELECT ",
            message_columns!(),
            " FROM chat_messages WHERE thread_id = $1 AND due AND seq IS NOT NULL ORDER BY seq DESC LIMIT $2"
        ))
        .bind(thread)
        .bind(MAX_DUE_ENTRIES)
        .fetch_all(&self.read)
        .await?;
        let mut entries = self.inconsistent.read_each(rows, MessageRow::into_message)?;
        entries.reverse();
        Ok(entries)
    }
}

#[derive(FromRow)]
struct BegunRow {
    id: Uuid,
    turn: i64,
    bytes: Option<i64>,
}

async fn begin(
    tx: &mut WriteTx,
    user: String,
    rev: i64,
    now: DateTime<Utc>,
) -> Result<Option<StartedHeartbeat>, StoreError> {
    let main = chat::find(&mut tx.db, &user, &ThreadRef::main()).await?.map(|owned| owned.thread);
    let is_busy = match &main {
        // A call that waits for a person delays no heartbeat.
        Some(main) => match main.state {
            ThreadState::Idle => has_queued(tx, main.id).await?,
            state => state == ThreadState::Processing,
        },
        None => false,
    };
    let thread = if is_busy { None } else { begin_thread(tx, &user, now).await? };
    let Some(thread) = thread else { return Ok(None) };
    let row_ref = RowRef { table: "chat_threads", id: thread.id };
    let key = TurnKey { thread: ThreadId::from_uuid(thread.id), turn: row_ref.number("turn", thread.turn)? };
    let begun = sqlx::query(
        "UPDATE heartbeats SET thread_id = $3, turn = $4, started_at = $5, requested_at = NULL WHERE user_id = $1 AND rev = $2 AND turn IS NULL",
    )
    .bind(&user)
    .bind(rev)
    .bind(thread.id)
    .bind(thread.turn)
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    if begun.rows_affected() == 0 {
        chat::set_state(tx, key.thread, ThreadState::Idle, now).await?;
        return Ok(None);
    }
    system_lines::take(tx, &user, key).await?;
    let turn = Turn {
        key,
        user,
        title: TITLE.to_owned(),
        remembered: BTreeSet::new(),
        is_autonomous: true,
        request: TurnRequest::Message,
        is_storage_full: tx.user_storage_limit.is_reached(count(thread.bytes.unwrap_or_default())),
        worked: Duration::ZERO,
        transcript: None,
        due: Vec::new(),
    };
    Ok(Some(StartedHeartbeat { turn, lines: system_lines::taken(tx, key).await?, main: main.map(|main| main.id) }))
}

async fn has_queued(tx: &mut WriteTx, thread: ThreadId) -> Result<bool, StoreError> {
    let queued: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM chat_messages WHERE thread_id = $1 AND seq IS NULL LIMIT 1")
            .bind(thread)
            .fetch_optional(&mut tx.db)
            .await?;
    Ok(queued.is_some())
}

/// Begins a turn in the user's thread of heartbeats, which is created where there is none. `None`: it has a turn
/// already.
async fn begin_thread(tx: &mut WriteTx, user: &str, now: DateTime<Utc>) -> Result<Option<BegunRow>, StoreError> {
    sqlx::query(
        "INSERT INTO chat_threads (id, user_id, key, title, state, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, 'idle', $5, $5) ON CONFLICT DO NOTHING",
    )
    .bind(*ThreadId::generate().as_uuid())
    .bind(user)
    .bind(HEARTBEAT_THREAD)
    .bind(TITLE)
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    let begun: Option<BegunRow> = sqlx::query_as(
        "UPDATE chat_threads SET state = 'processing', turn = turn + 1, updated_at = $3 \
         WHERE user_id = $1 AND key = $2 AND state = 'idle' \
         RETURNING id, turn, (SELECT SUM(bytes) FROM user_bytes u WHERE u.user_id = chat_threads.user_id) AS bytes",
    )
    .bind(user)
    .bind(HEARTBEAT_THREAD)
    .bind(now)
    .fetch_optional(&mut tx.db)
    .await?;
    if let Some(begun) = &begun {
        chat::publish_state(tx, user, ThreadId::from_uuid(begun.id), ThreadState::Processing, now).await?;
    }
    Ok(begun)
}

#[cfg(test)]
mod tests;
