//! What was accepted before: requests with an idempotency key, deliveries of webhooks, payloads that fired a routine.
//!
//! Guarantees that an entry is written in the transaction of what was accepted, so that a repetition finds it or nothing
//! has happened, and that it is known until its time has passed, whatever is deleted of what it led to. Knows neither
//! what a digest is made of nor how a repetition is answered.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{JobId, RoutineId, RunId};
use sqlx::{Executor, FromRow, Sqlite};

use super::{Connection, Store, StoreError, sqlite::rows::text};

/// How long an idempotency key is honoured (docs/api.md).
const KEY_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// What keys are unique in.
#[derive(Clone, Copy)]
pub(super) enum Scope<'a> {
    /// Idempotency keys of a user.
    Key(&'a str),
    /// Deliveries of a routine's webhook.
    Delivery(RoutineId),
    /// Payloads that fired a routine.
    Payload(RoutineId),
}

impl fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(user) => write!(f, "key:{user}"),
            Self::Delivery(routine) => write!(f, "delivery:{}", routine.as_uuid().simple()),
            Self::Payload(routine) => write!(f, "payload:{}", routine.as_uuid().simple()),
        }
    }
}

/// What was accepted, and what it led to.
#[derive(Debug, Default, FromRow)]
pub(super) struct Accepted {
    /// Digest of what was sent; `None` if the key alone tells whether it is the same.
    pub(super) digest: Option<String>,
    pub(super) status: Option<i64>,
    /// The response, or the id of the routine that was created; `None` if there was none, or the job that it showed was
    /// deleted.
    pub(super) body: Option<String>,
    pub(super) job_id: Option<JobId>,
    pub(super) run_id: Option<RunId>,
}

/// The first entry with one of these keys that was accepted after `since`, if that is given, and has not expired.
pub(super) async fn find<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    scope: Scope<'_>,
    keys: &[&str],
    since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<Option<Accepted>, StoreError> {
    let entry = sqlx::query_as(
        "SELECT digest, status, body, job_id, run_id FROM accepted \
         WHERE scope = $1 AND key IN (SELECT value FROM json_each($2)) AND ($3 IS NULL OR accepted_at > $3) AND until > $4 \
         ORDER BY accepted_at LIMIT 1",
    )
    .bind(scope.to_string())
    .bind(text(&keys)?)
    .bind(since)
    .bind(now);
    Ok(entry.fetch_optional(db).await?)
}

/// Records what was accepted. An expired entry with the key stays until the next sweep, and is replaced.
pub(super) async fn insert(
    db: &mut Connection,
    (scope, key): (Scope<'_>, &str),
    accepted: Accepted,
    now: DateTime<Utc>,
    lifetime: TimeDelta,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT OR REPLACE INTO accepted (scope, key, digest, accepted_at, until, status, body, job_id, run_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(scope.to_string())
    .bind(key)
    .bind(accepted.digest)
    .bind(now)
    .bind(now + lifetime)
    .bind(accepted.status)
    .bind(accepted.body)
    .bind(accepted.job_id)
    .bind(accepted.run_id)
    .execute(db)
    .await?;
    Ok(())
}

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

impl Store {
    /// Looks a key up, before the request is prepared.
    pub async fn idempotency(&self, key: &IdempotencyKey, now: DateTime<Utc>) -> Result<Option<Lookup>, StoreError> {
        lookup(&self.read, Some(key), now).await
    }
}

/// What is recorded of the key of a request, if it has one.
pub(super) async fn lookup<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    key: Option<&IdempotencyKey>,
    now: DateTime<Utc>,
) -> Result<Option<Lookup>, StoreError> {
    let Some(key) = key else { return Ok(None) };
    let known = find(db, Scope::Key(&key.user), &[&key.key], None, now).await?;
    Ok(known.map(|known| {
        if known.digest.is_some_and(|digest| digest != key.digest) {
            return Lookup::KeyMismatch;
        }
        let status = known.status.and_then(|status| u16::try_from(status).ok()).unwrap_or(200);
        known.body.map_or(Lookup::JobDeleted, |body| Lookup::Replayed { status, body })
    }))
}

/// Records the response to a request with an idempotency key.
pub(super) async fn answer(
    db: &mut Connection,
    key: &IdempotencyKey,
    (status, body): (u16, String),
    job: Option<JobId>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let accepted = Accepted {
        digest: Some(key.digest.clone()),
        status: Some(i64::from(status)),
        body: Some(body),
        job_id: job,
        run_id: None,
    };
    insert(db, (Scope::Key(&key.user), &key.key), accepted, now, KEY_LIFETIME).await
}
