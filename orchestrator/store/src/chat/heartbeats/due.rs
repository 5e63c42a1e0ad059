//! Which users to poll, with what is decided on, and those that have no heartbeat now.

use chrono::{DateTime, Utc};
use protocol::UserSettings;
use sqlx::FromRow;

use crate::{
    Store, StoreError,
    sqlite::{inconsistent_rows::Row, rows::column},
};

/// A user whose heartbeat may be due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueHeartbeat {
    pub user: String,
    /// The version of what is decided on.
    pub rev: i64,
    /// When the last heartbeat began or, without one, since when there is something to do.
    pub since: Option<DateTime<Utc>>,
    /// When a heartbeat was asked for that has not begun.
    pub requested_at: Option<DateTime<Utc>>,
    /// The user's settings; `None` if they cannot be read.
    pub settings: Option<UserSettings>,
    /// Whether there is a checklist with text, or a line that waits.
    pub has_work: bool,
    /// Whether a turn is in progress, or about to begin, in the main session or in the thread of heartbeats.
    pub is_busy: bool,
}

/// A user who has no heartbeat now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredHeartbeat {
    pub user: String,
    /// The version of what was decided on.
    pub rev: i64,
    /// When to look again; `None` for once something changes.
    pub check_at: Option<DateTime<Utc>>,
    /// Whether there is something to do. Without, what was asked for is forgotten.
    pub has_work: bool,
}

#[derive(FromRow)]
struct DueRow {
    user_id: String,
    rev: i64,
    since: Option<DateTime<Utc>>,
    requested_at: Option<DateTime<Utc>>,
    settings: Option<String>,
    has_work: bool,
    is_busy: bool,
}

impl DueRow {
    fn into_due(self) -> DueHeartbeat {
        let settings = match self.settings {
            Some(settings) => serde_json::from_str(&settings).ok(),
            None => Some(UserSettings::default()),
        };
        DueHeartbeat {
            user: self.user_id,
            rev: self.rev,
            since: self.since,
            requested_at: self.requested_at,
            settings,
            has_work: self.has_work,
            is_busy: self.is_busy,
        }
    }
}

impl Store {
    /// Users whose heartbeat may be due, those that have waited longest first.
    pub async fn due_heartbeats(&self, now: DateTime<Utc>, limit: u32) -> Result<Vec<DueHeartbeat>, StoreError> {
        let rows: Vec<Row<DueRow>> = sqlx::query_as(
            "SELECT h.user_id, h.rev, h.since, h.requested_at, s.settings, \
             (EXISTS (SELECT 1 FROM system_lines l WHERE l.user_id = h.user_id AND l.thread_id IS NULL) \
             OR EXISTS (SELECT 1 FROM memory_documents d JOIN memory_versions v ON v.document_id = d.id AND v.version = d.version \
             WHERE d.user_id = h.user_id AND d.path = 'HEARTBEAT.md' \
             AND trim(v.content, char(9, 10, 13, 32)) <> '')) AS has_work, \
             EXISTS (SELECT 1 FROM chat_threads t WHERE t.user_id = h.user_id AND ((t.key = 'main' AND (t.state = 'processing' \
             OR EXISTS (SELECT 1 FROM chat_messages m WHERE m.thread_id = t.id AND m.seq IS NULL) AND t.state = 'idle')) \
             OR (t.key = 'heartbeat' AND t.state <> 'idle'))) AS is_busy \
             FROM heartbeats h LEFT JOIN user_settings s ON s.user_id = h.user_id \
             WHERE h.check_at <= $1 AND h.turn IS NULL ORDER BY h.check_at LIMIT $2",
        )
        .bind(now)
        .bind(limit)
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_each(rows, |row| Ok(row.into_due()))
    }

    /// Whether an administrator lets main sessions have heartbeats.
    pub async fn heartbeats_enabled(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar("SELECT heartbeats_enabled FROM automation").fetch_one(&self.read).await?)
    }

    /// The earliest time at which a user is to be polled.
    pub async fn next_heartbeat_check(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let next =
            "SELECT check_at FROM heartbeats WHERE check_at IS NOT NULL AND turn IS NULL ORDER BY check_at LIMIT 1";
        Ok(sqlx::query_scalar(next).fetch_optional(&self.read).await?)
    }

    /// Records when to poll users again. Those about whom something has changed meanwhile are left as they are.
    pub async fn defer_heartbeats(
        &self,
        deferred: Vec<DeferredHeartbeat>,
        default_seconds: u64,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            for DeferredHeartbeat { user, rev, check_at, has_work } in &deferred {
                sqlx::query(
                    "UPDATE heartbeats SET check_at = $3, since = CASE WHEN $4 THEN MIN(COALESCE(since, $5), $5) END, \
                     requested_at = CASE WHEN $4 THEN requested_at END, default_seconds = $6 \
                     WHERE user_id = $1 AND rev = $2 AND turn IS NULL",
                )
                .bind(user)
                .bind(rev)
                .bind(check_at)
                .bind(has_work)
                .bind(now)
                .bind(column(default_seconds))
                .execute(&mut tx.db)
                .await?;
            }
            Ok(())
        }))
        .await
    }

    /// Takes note of the operator's interval at the start: users whose time was computed with another are polled again.
    pub async fn sync_default_interval(&self, default_seconds: u64, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| {
            sqlx::query(
                "UPDATE heartbeats SET rev = rev + 1, check_at = $2 WHERE since IS NOT NULL AND default_seconds IS NOT $1",
            )
            .bind(column(default_seconds))
            .bind(now)
            .execute(&mut tx.db)
            .await?;
            Ok(())
        }))
        .await
    }
}
