//! Retention of chats: old entries of threads in which nothing happens, and the chats of the largest user when the
//! database is too large.
//!
//! Never deletes a thread, or anything of one with a turn, a call that waits or a queued message.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::super::{Store, StoreError, events::instance_events, sqlite::write_tx::WriteTx};

/// Entries in one transaction, so that other writes do not wait long; one has at most 256 KiB.
const ENTRIES_PER_BATCH: i64 = 200;
/// Threads in one transaction.
const THREADS_PER_BATCH: i64 = 20;

/// What is left of threads once nothing in them is kept: entries that the model has yet to read, and what it has read.
const EMPTY_THREAD: [&str; 2] = [
    "DELETE FROM chat_messages WHERE thread_id = $1 AND seq IS NOT NULL",
    "DELETE FROM chat_transcripts WHERE thread_id = $1",
];

impl Store {
    /// Deletes some entries from before a time of idle threads, then what the model has read in some threads that were
    /// last used before it. Returns how many entries or threads.
    pub(crate) async fn trim_chats(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        match self.trim_chat_entries(before).await? {
            0 => self.empty_unused_threads(before).await,
            entries => Ok(entries),
        }
    }

    async fn trim_chat_entries(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let entries = sqlx::query(
                "DELETE FROM chat_messages WHERE id IN (SELECT m.id FROM chat_messages m \
                 JOIN chat_threads t ON t.id = m.thread_id WHERE m.at < $1 AND m.seq IS NOT NULL AND NOT m.due \
                 AND t.state = 'idle' ORDER BY m.at LIMIT $2)",
            );
            let deleted = entries.bind(before).bind(ENTRIES_PER_BATCH).execute(&mut tx.db).await?;
            Ok(deleted.rows_affected())
        }))
        .await
    }

    async fn empty_unused_threads(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write(transaction!(|tx| {
            let threads: Vec<Uuid> = sqlx::query_scalar(
                "SELECT id FROM chat_threads WHERE state = 'idle' AND bytes > 0 AND updated_at < $1 \
                 AND (id IN (SELECT thread_id FROM chat_transcripts) \
                 OR EXISTS (SELECT 1 FROM chat_messages WHERE thread_id = chat_threads.id AND seq IS NOT NULL)) \
                 ORDER BY updated_at LIMIT $2",
            )
            .bind(before)
            .bind(THREADS_PER_BATCH)
            .fetch_all(&mut tx.db)
            .await?;
            for thread in &threads {
                empty(tx, *thread).await?;
            }
            Ok(threads.len() as u64)
        }))
        .await
    }

    /// Deletes a batch of the oldest entries, from before a time, of the user whose chats are the largest, with the
    /// events and tool calls of that time, if they have more than `bytes`. Returns how many rows.
    pub(crate) async fn trim_largest_chats(&self, bytes: u64, before: DateTime<Utc>) -> Result<u64, StoreError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.write(transaction!(|tx| trim_largest(tx, bytes, before).await)).await
    }
}

async fn trim_largest(tx: &mut WriteTx, bytes: i64, before: DateTime<Utc>) -> Result<u64, StoreError> {
    // The thread that was not used for longest. Users first, by a join that SQLite does not reorder.
    let thread: Option<Uuid> = sqlx::query_scalar(
        "SELECT t.id FROM user_bytes AS u CROSS JOIN chat_threads AS t ON t.user_id = u.user_id \
         WHERE u.kind = 'chats' AND u.bytes > $1 AND t.state = 'idle' \
         AND (EXISTS (SELECT 1 FROM chat_messages WHERE thread_id = t.id AND seq IS NOT NULL AND NOT due AND at < $2) \
         OR (t.updated_at < $2 AND (t.id IN (SELECT thread_id FROM chat_transcripts) \
         OR EXISTS (SELECT 1 FROM chat_messages WHERE thread_id = t.id AND seq IS NOT NULL) \
         OR EXISTS (SELECT 1 FROM tool_calls WHERE work_id = t.id AND reply IS NOT NULL)))) \
         ORDER BY u.bytes DESC, t.updated_at LIMIT 1",
    )
    .bind(bytes)
    .bind(before)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(thread) = thread else { return Ok(0) };
    let entries: Vec<DateTime<Utc>> = sqlx::query_scalar(
        "DELETE FROM chat_messages WHERE id IN (SELECT id FROM chat_messages WHERE thread_id = $1 AND seq IS NOT NULL \
         AND NOT due AND at < $2 ORDER BY seq LIMIT $3) RETURNING at",
    )
    .bind(thread)
    .bind(before)
    .bind(ENTRIES_PER_BATCH)
    .fetch_all(&mut tx.db)
    .await?;
    let mut rows = entries.len() as u64;
    let until = entries.into_iter().max();
    if until.is_none() {
        rows += empty(tx, thread).await?;
    }
    let calls = sqlx::query(
        "DELETE FROM tool_calls WHERE rowid IN (SELECT rowid FROM tool_calls WHERE work_id = $1 \
         AND ($2 IS NULL OR at <= $2) AND reply IS NOT NULL LIMIT $3)",
    );
    rows += calls.bind(thread).bind(until).bind(ENTRIES_PER_BATCH).execute(&mut tx.db).await?.rows_affected();
    rows += instance_events::trim_of_thread(tx, thread, until).await?;
    Ok(rows)
}

/// Deletes what is left of an idle thread. Returns how many rows.
async fn empty(tx: &mut WriteTx, thread: Uuid) -> Result<u64, StoreError> {
    let mut rows = 0;
    for statement in EMPTY_THREAD {
        rows += sqlx::query(statement).bind(thread).execute(&mut tx.db).await?.rows_affected();
    }
    Ok(rows)
}
