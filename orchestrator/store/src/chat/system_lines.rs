//! Lines for the main sessions of users: queued until a turn has read them.
//!
//! Guarantees that a user has a limited number of waiting lines, and that a line waits again when the turn that read it
//! fails. Decides nothing about when a turn begins.

use agent::elide;
use chrono::{DateTime, Utc};
pub use protocol::LineOrigin;
use protocol::{AuditOutcome, ChatContent, ThreadId, WakeMode};
use sqlx::FromRow;
use uuid::Uuid;

use super::{NewMessage, heartbeats};
use crate::{AuditEntry, Store, StoreError, TurnKey, access::audit, chat, sqlite::write_tx::WriteTx};

/// Maximum number of waiting lines of one user; the oldest are dropped.
pub(crate) const MAX_SYSTEM_LINES: u32 = 100;
/// Maximum size of a line; a longer one is shortened.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// A line that is about to be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSystemLine {
    pub text: String,
    pub origin: LineOrigin,
    /// Whether it asks for a heartbeat at once.
    pub wake: WakeMode,
    /// Firings by routines that led to it.
    pub depth: u32,
}

/// A line that a turn reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemLine {
    pub text: String,
    pub origin: LineOrigin,
    pub at: DateTime<Utc>,
}

impl Store {
    /// Queues a text of the user for their main session, and asks for a heartbeat at once in mode `now`.
    pub async fn wake(&self, user: &str, text: &str, mode: WakeMode, entry: &AuditEntry) -> Result<(), StoreError> {
        let line = NewSystemLine { text: text.to_owned(), origin: LineOrigin::Owner, wake: mode, depth: 0 };
        let (user, entry) = (user.to_owned(), entry.clone());
        self.write(transaction!(|tx| {
            append(tx, &user, &line, entry.at).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
    }
}

/// Queues a line for the user's main session. False: the queue was full, so its oldest line was dropped.
pub(crate) async fn append(
    tx: &mut WriteTx,
    user: &str,
    line: &NewSystemLine,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    sqlx::query(
        "INSERT INTO system_lines (user_id, text, origin, wake, depth, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(user)
    .bind(elide(&line.text, MAX_LINE_BYTES))
    .bind(line.origin.as_str())
    .bind(line.wake.as_str())
    .bind(i64::from(line.depth))
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    let dropped = sqlx::query(
        "DELETE FROM system_lines WHERE id IN (SELECT id FROM system_lines WHERE user_id = $1 AND thread_id IS NULL \
         ORDER BY id DESC LIMIT -1 OFFSET $2)",
    )
    .bind(user)
    .bind(i64::from(MAX_SYSTEM_LINES))
    .execute(&mut tx.db)
    .await?;
    heartbeats::mark_pending(tx, user, line.wake == WakeMode::Now, now).await?;
    Ok(dropped.rows_affected() == 0)
}

/// Takes the lines of a user that wait for a turn, which begins. They are the turn's until [`settle`].
pub(crate) async fn take(tx: &mut WriteTx, user: &str, key: TurnKey) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE system_lines SET thread_id = $2, turn = $3 WHERE user_id = $1 AND (thread_id IS NULL OR thread_id = $2)",
    )
    .bind(user)
    .bind(key.thread)
    .bind(i64::from(key.turn))
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct LineRow {
    id: i64,
    text: String,
    origin: String,
    created_at: DateTime<Utc>,
    shown_in: Option<Uuid>,
}

impl LineRow {
    /// A line whose origin is not known is from outside.
    fn origin(&self) -> LineOrigin {
        LineOrigin::parse(&self.origin).unwrap_or(LineOrigin::External)
    }
}

/// The lines that a turn has taken, oldest first.
pub(crate) async fn taken(tx: &mut WriteTx, key: TurnKey) -> Result<Vec<SystemLine>, StoreError> {
    let rows = rows(tx, key).await?;
    let line = |row: LineRow| SystemLine { origin: row.origin(), at: row.created_at, text: row.text };
    Ok(rows.into_iter().map(line).collect())
}

/// Appends the lines that a turn has taken to a thread that does not show them yet, for the model to read there.
pub(crate) async fn show(
    tx: &mut WriteTx,
    key: TurnKey,
    thread: ThreadId,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let turn = (thread == key.thread).then_some(key.turn);
    for row in rows(tx, key).await? {
        if row.shown_in == Some(*thread.as_uuid()) {
            continue;
        }
        let content = ChatContent::System { origin: Some(row.origin()), content: row.text };
        chat::append(tx, thread, NewMessage { content, turn, due: true, at }).await?;
        sqlx::query("UPDATE system_lines SET shown_in = $2 WHERE id = $1")
            .bind(row.id)
            .bind(thread)
            .execute(&mut tx.db)
            .await?;
    }
    Ok(())
}

async fn rows(tx: &mut WriteTx, key: TurnKey) -> Result<Vec<LineRow>, StoreError> {
    let rows = sqlx::query_as(
        "SELECT id, text, origin, created_at, shown_in FROM system_lines WHERE thread_id = $1 AND turn = $2 ORDER BY id",
    );
    Ok(rows.bind(key.thread).bind(i64::from(key.turn)).fetch_all(&mut tx.db).await?)
}

/// Ends a turn's hold on its lines: they are deleted once it has read them, else they wait again.
pub(crate) async fn settle(tx: &mut WriteTx, key: TurnKey, read: bool, at: DateTime<Utc>) -> Result<(), StoreError> {
    let settle = if read {
        "DELETE FROM system_lines WHERE thread_id = $1 AND turn = $2 RETURNING user_id"
    } else {
        "UPDATE system_lines SET thread_id = NULL, turn = NULL WHERE thread_id = $1 AND turn = $2 RETURNING user_id"
    };
    let users: Vec<String> =
        sqlx::query_scalar(settle).bind(key.thread).bind(i64::from(key.turn)).fetch_all(&mut tx.db).await?;
    match users.first().filter(|_| !read) {
        Some(user) => heartbeats::mark_pending(tx, user, false, at).await,
        None => Ok(()),
    }
}
