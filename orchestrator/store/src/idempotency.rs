//! Idempotency keys: the first response to a request, kept for 24 hours per user.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Executor, Sqlite};

use super::{Connection, QueueFull, Store, StoreError};
use domain::job::ChildRefused;

/// How long a key of a user is honoured (docs/api.md).
pub(super) const LIFETIME: TimeDelta = TimeDelta::hours(24);

/// The status of a recorded response whose job was deleted.
pub(super) const DELETED_STATUS: u16 = 410;
/// The beginning of a recorded response that has the id of the job that was created.
pub(super) const ID_WITHIN_CHARS: i64 = 64;

/// An idempotency key, bound to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The user who sent it; keys of different users are different.
    pub user: String,
    pub key: String,
    /// Digest of the operation and the body that it was sent with.
    pub digest: String,
}

/// What is recorded of an idempotency key that was seen before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// Seen with the same request: the first response.
    Replayed { status: u16, body: String },
    /// Seen with another request.
    KeyMismatch,
    /// The job that the first request created was deleted.
    JobDeleted,
}

/// The outcome of creating a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateOutcome {
    Created,
    /// The idempotency key was seen before with the same request; nothing is stored. The first response.
    Replayed {
        status: u16,
        body: String,
    },
    /// The idempotency key was seen before with another request; nothing is stored.
    KeyMismatch,
    /// The idempotency key was seen before, and the job that it created was deleted; nothing is stored.
    JobDeleted,
    /// Nothing is stored because the queue is full.
    QueueFull(QueueFull),
    /// Nothing is stored because the job's parent may not create another child.
    ChildRefused(ChildRefused),
    /// Nothing is stored because the run that the job is for no longer waits.
    RunGone,
}

impl From<Lookup> for CreateOutcome {
    fn from(lookup: Lookup) -> Self {
        match lookup {
            Lookup::Replayed { status, body } => Self::Replayed { status, body },
            Lookup::KeyMismatch => Self::KeyMismatch,
            Lookup::JobDeleted => Self::JobDeleted,
        }
    }
}

/// The response that a repeated request gets again.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordedResponse<'a> {
    pub(super) status: u16,
    pub(super) body: &'a str,
}

impl Store {
    /// Looks a key up, before the request is prepared.
    pub async fn idempotency(&self, key: &IdempotencyKey, now: DateTime<Utc>) -> Result<Option<Lookup>, StoreError> {
        lookup(&self.read, key, now).await
    }
}

pub(super) async fn lookup<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    key: &IdempotencyKey,
    now: DateTime<Utc>,
) -> Result<Option<Lookup>, StoreError> {
    let known: Option<(String, i64, String)> = sqlx::query_as(
        "SELECT digest, status, body FROM idempotency_keys WHERE user_id = $1 AND key = $2 AND created_at > $3",
    )
    .bind(&key.user)
    .bind(&key.key)
    .bind(now - LIFETIME)
    .fetch_optional(db)
    .await?;
    Ok(known.map(|(digest, status, body)| {
        if digest != key.digest {
            Lookup::KeyMismatch
        } else if status == i64::from(DELETED_STATUS) {
            Lookup::JobDeleted
        } else {
            Lookup::Replayed { status: u16::try_from(status).unwrap_or(200), body }
        }
    }))
}

pub(super) async fn insert(
    tx: &mut Connection,
    key: &IdempotencyKey,
    now: DateTime<Utc>,
    response: RecordedResponse<'_>,
) -> Result<(), StoreError> {
    // An expired key of the same name stays until the next retention sweep.
    sqlx::query(
        "INSERT INTO idempotency_keys (user_id, key, digest, created_at, status, body) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (user_id, key) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at, \
         status = excluded.status, body = excluded.body",
    )
    .bind(&key.user)
    .bind(&key.key)
    .bind(&key.digest)
    .bind(now)
    .bind(i64::from(response.status))
    .bind(response.body)
    .execute(tx)
    .await?;
    Ok(())
}
