//! Sessions of browsers, and the codes that open them once. A session is a row of `tokens`, so that the check of every request is
//! that of a token; revoking the token that it comes from ends it.
//!
//! Never stores a code, a key or a cookie: their SHA-256 only.

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::audit;
use crate::{AuditEntry, Store, StoreError, sqlite::inconsistent_rows::Row};
use protocol::AuditOutcome;

/// Maximum number of open sessions of a user; a further one ends that which was not used for longest.
pub const MAX_SESSIONS_PER_USER: i64 = 64;
/// Maximum number of unused codes of a user; a further one replaces the oldest.
const MAX_CODES_PER_USER: i64 = 16;

/// A code that opens a session.
#[derive(Debug, Clone)]
pub struct NewCode {
    pub digest: String,
    pub user: String,
    pub role: String,
    /// The token that it was made with; none if an operator made it.
    pub origin_jti: Option<String>,
    pub created_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    /// The end of its session, at the latest.
    pub session_expires_at: DateTime<Utc>,
}

/// Whose session it is.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct SessionOwner {
    pub user_id: String,
    pub role: String,
    pub origin_jti: Option<String>,
    #[sqlx(rename = "session_expires_at")]
    pub expires_at: DateTime<Utc>,
}

/// A session that opens.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub jti: String,
    pub key_digest: String,
    pub created_at: DateTime<Utc>,
    /// The address of the browser.
    pub address: Option<String>,
    /// The browser's `User-Agent`.
    pub agent: Option<String>,
}

/// What opens a session.
#[derive(Debug, Clone)]
pub enum Opening {
    /// A code, by its digest.
    Code(String),
    /// A token that was verified.
    Token(SessionOwner),
}

/// An open session.
#[derive(Debug, Clone, FromRow)]
pub struct SessionRow {
    pub jti: String,
    pub created_at: DateTime<Utc>,
    pub last_used_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    pub address: Option<String>,
    pub agent: Option<String>,
}

/// Stores a code.
pub async fn insert_code(store: &Store, code: NewCode, entry: AuditEntry) -> Result<(), StoreError> {
    store
        .write(transaction!(|tx| {
            sqlx::query("DELETE FROM session_codes WHERE user_id = $1 AND expires_at <= $2")
                .bind(&code.user)
                .bind(code.created_at)
                .execute(&mut tx.db)
                .await?;
            sqlx::query(
                "DELETE FROM session_codes WHERE digest IN (SELECT digest FROM session_codes WHERE user_id = $1 \
                 ORDER BY created_at DESC LIMIT -1 OFFSET $2)",
            )
            .bind(&code.user)
            .bind(MAX_CODES_PER_USER - 1)
            .execute(&mut tx.db)
            .await?;
            sqlx::query(
                "INSERT INTO session_codes (digest, user_id, role, origin_jti, created_at, expires_at, session_expires_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
            )
            .bind(&code.digest)
            .bind(&code.user)
            .bind(&code.role)
            .bind(&code.origin_jti)
            .bind(code.created_at)
            .bind(code.expires_at)
            .bind(code.session_expires_at)
            .execute(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
}

/// Opens a session. None if the code is unknown, was used or has expired, or if the token that it comes from is revoked.
pub async fn open(
    store: &Store,
    opening: Opening,
    session: NewSession,
    entry: impl Fn(&SessionOwner) -> AuditEntry + Send + Sync + 'static,
) -> Result<Option<SessionOwner>, StoreError> {
    store
        .write(transaction!(|tx| {
            let owner = match &opening {
                Opening::Token(owner) => Some(owner.clone()),
                Opening::Code(digest) => {
                    sqlx::query_as(
                        "DELETE FROM session_codes WHERE digest = $1 AND expires_at > $2 \
                         RETURNING user_id, role, origin_jti, session_expires_at",
                    )
                    .bind(digest)
                    .bind(session.created_at)
                    .fetch_optional(&mut tx.db)
                    .await?
                }
            };
            let Some(owner) = owner else { return Ok(None) };
            let is_revoked: Option<bool> = sqlx::query_scalar("SELECT revoked_at IS NOT NULL FROM tokens WHERE jti = $1")
                .bind(&owner.origin_jti)
                .fetch_optional(&mut tx.db)
                .await?;
            if is_revoked == Some(true) || owner.expires_at <= session.created_at {
                return Ok(None);
            }
            make_room(&mut tx.db, &owner.user_id, session.created_at).await?;
            sqlx::query(
                "INSERT INTO tokens (jti, user_id, role, created_at, expires_at, origin_jti, key_digest, last_used_at, address, agent) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $4, $8, $9)",
            )
            .bind(&session.jti)
            .bind(&owner.user_id)
            .bind(&owner.role)
            .bind(session.created_at)
            .bind(owner.expires_at)
            .bind(&owner.origin_jti)
            .bind(&session.key_digest)
            .bind(&session.address)
            .bind(&session.agent)
            .execute(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &entry(&owner), AuditOutcome::Done, None).await?;
            Ok(Some(owner))
        }))
        .await
}

/// Deletes the user's sessions that have ended, and those over the maximum number less one. A deleted row would make its cookie
/// valid by its signature, so the cookie's own end is checked first, and an open one is revoked instead.
async fn make_room(db: &mut sqlx::SqliteConnection, user: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM tokens WHERE key_digest IS NOT NULL AND user_id = $1 AND expires_at <= $2")
        .bind(user)
        .bind(now)
        .execute(&mut *db)
        .await?;
    sqlx::query(
        "UPDATE tokens SET revoked_at = $2 WHERE jti IN (SELECT jti FROM tokens WHERE key_digest IS NOT NULL AND user_id = $1 \
         AND revoked_at IS NULL ORDER BY last_used_at DESC LIMIT -1 OFFSET $3)",
    )
    .bind(user)
    .bind(now)
    .bind(MAX_SESSIONS_PER_USER - 1)
    .execute(&mut *db)
    .await?;
    Ok(())
}

/// The open sessions of a user, the last used first.
pub async fn list(store: &Store, user: &str, now: DateTime<Utc>) -> Result<Vec<SessionRow>, StoreError> {
    let rows: Vec<Row<SessionRow>> = sqlx::query_as(
        "SELECT jti, created_at, last_used_at, expires_at, address, agent FROM tokens \
         WHERE key_digest IS NOT NULL AND user_id = $1 AND revoked_at IS NULL AND expires_at > $2 \
         ORDER BY last_used_at DESC, jti LIMIT $3",
    )
    .bind(user)
    .bind(now)
    .bind(MAX_SESSIONS_PER_USER)
    .fetch_all(&store.read)
    .await?;
    store.inconsistent.read_each(rows, Ok)
}

/// An open session. None if the token is no session's.
pub async fn find(store: &Store, jti: &str) -> Result<Option<SessionRow>, StoreError> {
    let found = sqlx::query_as(
        "SELECT jti, created_at, last_used_at, expires_at, address, agent FROM tokens \
         WHERE jti = $1 AND key_digest IS NOT NULL AND revoked_at IS NULL",
    )
    .bind(jti)
    .fetch_optional(&store.read)
    .await?;
    Ok(found)
}

/// Whether an open session has the key with this digest.
pub async fn has_key(store: &Store, jti: &str, key_digest: &str) -> Result<bool, StoreError> {
    let has: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM tokens WHERE jti = $1 AND key_digest = $2 AND revoked_at IS NULL)",
    )
    .bind(jti)
    .bind(key_digest)
    .fetch_one(&store.read)
    .await?;
    Ok(has)
}

/// Notes that a session is used.
pub async fn touch(store: &Store, jti: &str, address: Option<String>, now: DateTime<Utc>) -> Result<(), StoreError> {
    let jti = jti.to_owned();
    store
        .write(transaction!(|tx| {
            sqlx::query("UPDATE tokens SET last_used_at = $2, address = coalesce($3, address) WHERE jti = $1")
                .bind(&jti)
                .bind(now)
                .bind(&address)
                .execute(&mut tx.db)
                .await?;
            Ok(())
        }))
        .await
}

/// Ends an open session of a user. False if there is none.
pub async fn end(store: &Store, user: &str, jti: &str, entry: AuditEntry) -> Result<bool, StoreError> {
    let (user, jti) = (user.to_owned(), jti.to_owned());
    store
        .write(transaction!(|tx| {
            let ended = sqlx::query(
                "UPDATE tokens SET revoked_at = $3 WHERE jti = $2 AND user_id = $1 AND key_digest IS NOT NULL AND revoked_at IS NULL",
            )
            .bind(&user)
            .bind(&jti)
            .bind(entry.at)
            .execute(&mut tx.db)
            .await?
            .rows_affected();
            if ended > 0 {
                audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            }
            Ok(ended > 0)
        }))
        .await
}
