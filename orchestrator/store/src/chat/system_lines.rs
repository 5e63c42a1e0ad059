//! Lines for the main sessions of users: queued until a turn has read them.
//!
//! Guarantees that a user has a limited number of waiting lines, and that a line waits again when the turn that read it
//! fails. Decides nothing about when a turn begins.

use std::collections::{BTreeMap, HashMap};

use agent::elide;
use chrono::{DateTime, Utc};
pub use protocol::LineOrigin;
use protocol::{AuditOutcome, ChatContent, ThreadId, WakeMode};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{NewMessage, heartbeats};
use crate::{
    AuditEntry, Store, StoreError, TurnKey,
    access::audit,
    chat,
    sqlite::{inconsistent_rows::Row, rows::text, write_tx::WriteTx},
};

/// Maximum number of waiting lines of one user; the oldest are dropped.
pub(crate) const MAX_SYSTEM_LINES: u32 = 100;
/// Maximum size of a line; a longer one is shortened.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// A line that is about to be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSystemLine {
    pub user: String,
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
        let (user, text) = (user.to_owned(), text.to_owned());
        let line = NewSystemLine { user, text, origin: LineOrigin::Owner, wake: mode, depth: 0 };
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            append(tx, &[line], entry.at).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
    }
}

/// Queues lines for the main sessions of their users. Returns how many lines of users were dropped, the oldest ones,
/// since their queues were full.
pub(crate) async fn append(
    tx: &mut WriteTx,
    lines: &[NewSystemLine],
    now: DateTime<Utc>,
) -> Result<HashMap<String, usize>, StoreError> {
    let mut users: BTreeMap<&str, bool> = BTreeMap::new();
    for line in lines {
        *users.entry(&line.user).or_default() |= line.wake == WakeMode::Now;
    }
    if users.is_empty() {
        return Ok(HashMap::new());
    }
    let mut insert =
        QueryBuilder::<Sqlite>::new("INSERT INTO system_lines (user_id, text, origin, wake, depth, created_at) ");
    insert.push_values(lines, |mut row, line| {
        row.push_bind(line.user.clone())
            .push_bind(elide(&line.text, MAX_LINE_BYTES))
            .push_bind(line.origin.as_str())
            .push_bind(line.wake.as_str())
            .push_bind(i64::from(line.depth))
            .push_bind(now);
    });
    insert.build().persistent(lines.len() == 1).execute(&mut tx.db).await?;
    let dropped: Vec<String> = sqlx::query_scalar(
        "DELETE FROM system_lines WHERE id IN (SELECT l.id \
         FROM json_each($1) AS u CROSS JOIN system_lines AS l ON l.user_id = u.value AND l.thread_id IS NULL AND l.id <= ( \
         SELECT id FROM system_lines WHERE user_id = u.value AND thread_id IS NULL ORDER BY id DESC LIMIT 1 OFFSET $2)) \
         RETURNING user_id",
    )
    .bind(text(&users.keys().collect::<Vec<_>>())?)
    .bind(i64::from(MAX_SYSTEM_LINES))
    .fetch_all(&mut tx.db)
    .await?;
    heartbeats::mark_pending(tx, &users, now).await?;
    let mut counts = HashMap::new();
    for user in dropped {
        *counts.entry(user).or_default() += 1;
    }
    Ok(counts)
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

/// Appends the lines that a turn has taken to a thread that does not show them yet. `due`: for the model to read there.
pub(crate) async fn show(
    tx: &mut WriteTx,
    key: TurnKey,
    thread: ThreadId,
    due: bool,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let turn = (thread == key.thread).then_some(key.turn);
    for row in rows(tx, key).await? {
        if row.shown_in == Some(*thread.as_uuid()) {
            continue;
        }
        let content = ChatContent::System { origin: Some(row.origin()), content: row.text };
        chat::append(tx, thread, NewMessage { content, turn, due, at }).await?;
        sqlx::query("UPDATE system_lines SET shown_in = $2 WHERE id = $1")
            .bind(row.id)
            .bind(thread)
            .execute(&mut tx.db)
            .await?;
    }
    Ok(())
}

/// The lines that a turn has taken. One that cannot be read is logged and left out, so that the turn can begin.
async fn rows(tx: &mut WriteTx, key: TurnKey) -> Result<Vec<LineRow>, StoreError> {
    let rows: Vec<Row<LineRow>> = sqlx::query_as(
        "SELECT id, text, origin, created_at, shown_in FROM system_lines WHERE thread_id = $1 AND turn = $2 ORDER BY id",
    )
    .bind(key.thread)
    .bind(i64::from(key.turn))
    .fetch_all(&mut tx.db)
    .await?;
    let mut lines = Vec::with_capacity(rows.len());
    for row in rows {
        match row.get() {
            Err(error) if error.concerns_one_row() => {
                tracing::error!(error = &error as &dyn std::error::Error, "a line of a main session cannot be read");
            }
            row => lines.push(row?),
        }
    }
    Ok(lines)
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
        Some(user) => heartbeats::mark_pending(tx, &BTreeMap::from([(user.as_str(), false)]), at).await,
        None => Ok(()),
    }
}
