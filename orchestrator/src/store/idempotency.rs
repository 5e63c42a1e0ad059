//! Idempotency keys: the first answer, kept for 24 hours per user.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Executor, Sqlite};

use super::{Connection, QueueFull, Store, StoreError};

/// How long a key is honoured (contract: api, "honoured for 24 h per user").
const KEPT: TimeDelta = TimeDelta::hours(24);

/// An idempotency key, bound to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The user who sent it; keys of different users are different.
    pub user: String,
    /// As sent.
    pub key: String,
    /// Digest of the operation and the body that it was sent with.
    pub digest: String,
}

/// What a key says of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Not seen before: what was to be done is done.
    New,
    /// Seen with the same request: its answer.
    Replayed {
        /// The status then.
        status: u16,
        /// The body then.
        body: String,
    },
    /// Seen with another request.
    Mismatch,
    /// Not seen before, and not done: as many jobs wait as may.
    QueueFull(QueueFull),
}

impl Store {
    /// What is known of a key, before anything is prepared.
    pub async fn idempotency(&self, key: &IdempotencyKey, now: DateTime<Utc>) -> Result<Option<Claim>, StoreError> {
        lookup(&self.read, key, now).await
    }
}

pub(super) async fn lookup<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    key: &IdempotencyKey,
    now: DateTime<Utc>,
) -> Result<Option<Claim>, StoreError> {
    let known: Option<(String, i64, String)> = sqlx::query_as(
        "SELECT digest, status, body FROM idempotency_keys WHERE user_id = $1 AND key = $2 AND created_at > $3",
    )
    .bind(&key.user)
    .bind(&key.key)
    .bind(now - KEPT)
    .fetch_optional(db)
    .await?;
    Ok(known.map(|(digest, status, body)| {
        if digest == key.digest {
            Claim::Replayed { status: u16::try_from(status).unwrap_or(200), body }
        } else {
            Claim::Mismatch
        }
    }))
}

pub(super) async fn insert(
    tx: &mut Connection,
    key: &IdempotencyKey,
    now: DateTime<Utc>,
    (status, body): (u16, &str),
) -> Result<(), StoreError> {
    // One of the same name that is over may be there until the next sweep takes it.
    sqlx::query(
        "INSERT INTO idempotency_keys (user_id, key, digest, created_at, status, body) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (user_id, key) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at, \
         status = excluded.status, body = excluded.body",
    )
    .bind(&key.user)
    .bind(&key.key)
    .bind(&key.digest)
    .bind(now)
    .bind(i64::from(status))
    .bind(body)
    .execute(tx)
    .await?;
    Ok(())
}
