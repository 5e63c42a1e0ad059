//! Sessions of browsers, and the codes that open them once. Revoking the token that a session comes from ends it.
//!
//! Never stores a code, a key or a cookie, only the SHA-256 of codes and keys.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;

use super::audit;
use crate::{AuditEntry, Store, StoreError, sqlite::inconsistent_rows::Row};
use base::digest::sha256_hex;
use protocol::{AuditOutcome, SessionCode};

/// How long a code can be used.
const CODE_TTL: TimeDelta = TimeDelta::minutes(10);
/// Maximum number of open sessions of a user; a further one ends the one that was not used for longest.
pub const MAX_SESSIONS_PER_USER: i64 = 64;
/// Maximum number of unused codes of a user; a further one replaces the oldest.
const MAX_CODES_PER_USER: i64 = 16;

/// The user and role that a session has, where it comes from and when it ends at the latest.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct SessionGrant {
    pub user_id: String,
    pub role: String,
    /// The token that it comes from; none if an operator made its code.
    pub origin_jti: Option<String>,
    pub expires_at: DateTime<Utc>,
}

/// A session to open.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: String,
    /// The SHA-256 of the key that its changes are sent with.
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
    Code(String),
    /// A token that was verified.
    Token(SessionGrant),
}

/// An open session.
#[derive(Debug, Clone, FromRow)]
pub struct Session {
    pub id: String,
    pub origin_jti: Option<String>,
    pub key_digest: String,
    pub created_at: DateTime<Utc>,
    pub last_used_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    pub address: Option<String>,
    pub agent: Option<String>,
}

/// Stores a code that opens a session. One that a session makes is refused after its end.
pub async fn create_code(
    store: &Store,
    code: String,
    (grant, session_id): (SessionGrant, Option<String>),
    now: DateTime<Utc>,
    entry: AuditEntry,
) -> Result<SessionCode, StoreError> {
    let expires_at = now + CODE_TTL;
    let digest = sha256_hex(code.as_bytes());
    let stored = store.write(transaction!(|tx| {
        sqlx::query(
            "DELETE FROM session_codes WHERE digest IN (SELECT digest FROM session_codes WHERE user_id = $1 \
             ORDER BY created_at DESC LIMIT -1 OFFSET $2)",
        )
        .bind(&grant.user_id)
        .bind(MAX_CODES_PER_USER - 1)
        .execute(&mut tx.db)
        .await?;
        sqlx::query(
            "INSERT INTO session_codes \
             (digest, user_id, role, origin_jti, created_at, expires_at, session_expires_at, session_id) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&digest)
        .bind(&grant.user_id)
        .bind(&grant.role)
        .bind(&grant.origin_jti)
        .bind(now)
        .bind(expires_at)
        .bind(grant.expires_at)
        .bind(&session_id)
        .execute(&mut tx.db)
        .await?;
        audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
    }));
    stored.await?;
    Ok(SessionCode { code, expires_at })
}

/// Whether a code can be used. Those that cannot shall not cost a write.
async fn is_usable(store: &Store, digest: &str, now: DateTime<Utc>) -> Result<bool, StoreError> {
    let exists =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM session_codes WHERE digest = $1 AND expires_at > $2)")
            .bind(digest)
            .bind(now)
            .fetch_one(&store.read)
            .await?;
    Ok(exists)
}

/// Opens a session. None if the code is unknown, was used or has expired, if the session that made it has ended, or if the
/// token that it comes from is revoked.
pub async fn open(
    store: &Store,
    opening: Opening,
    session: NewSession,
    entry: impl Fn(&SessionGrant) -> AuditEntry + Send + Sync + 'static,
) -> Result<Option<SessionGrant>, StoreError> {
    let (digest, granted) = match opening {
        Opening::Code(code) => (sha256_hex(code.as_bytes()), None),
        Opening::Token(grant) => (String::new(), Some(grant)),
    };
    if granted.is_none() && !is_usable(store, &digest, session.created_at).await? {
        return Ok(None);
    }
    store
        .write(transaction!(|tx| {
            let grant = match &granted {
                Some(grant) => Some(grant.clone()),
                None => {
                    sqlx::query_as(
                        "DELETE FROM session_codes WHERE digest = $1 AND expires_at > $2 \
                         AND (session_id IS NULL OR session_id IN (SELECT id FROM sessions)) \
                         RETURNING user_id, role, origin_jti, session_expires_at AS expires_at",
                    )
                    .bind(&digest)
                    .bind(session.created_at)
                    .fetch_optional(&mut tx.db)
                    .await?
                }
            };
            let Some(grant) = grant else { return Ok(None) };
            let is_revoked: Option<bool> =
                sqlx::query_scalar("SELECT revoked_at IS NOT NULL FROM tokens WHERE jti = $1")
                    .bind(&grant.origin_jti)
                    .fetch_optional(&mut tx.db)
                    .await?;
            if is_revoked == Some(true) || grant.expires_at <= session.created_at {
                return Ok(None);
            }
            insert(&mut tx.db, &session, &grant).await?;
            audit::insert(&mut tx.db, &entry(&grant), AuditOutcome::Done, None).await?;
            Ok(Some(grant))
        }))
        .await
}

/// Inserts a session in place of those over the maximum number.
async fn insert(db: &mut sqlx::SqliteConnection, session: &NewSession, grant: &SessionGrant) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE user_id = $1 ORDER BY last_used_at DESC LIMIT -1 OFFSET $2)",
    )
    .bind(&grant.user_id)
    .bind(MAX_SESSIONS_PER_USER - 1)
    .execute(&mut *db)
    .await?;
    sqlx::query(
        "INSERT INTO sessions (id, user_id, role, origin_jti, key_digest, created_at, last_used_at, expires_at, address, agent) \
         VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9)",
    )
    .bind(&session.id)
    .bind(&grant.user_id)
    .bind(&grant.role)
    .bind(&grant.origin_jti)
    .bind(&session.key_digest)
    .bind(session.created_at)
    .bind(grant.expires_at)
    .bind(&session.address)
    .bind(&session.agent)
    .execute(&mut *db)
    .await?;
    Ok(())
}

/// The open sessions of a user that were used after `used_after`, the last used first.
pub async fn list(
    store: &Store,
    user: &str,
    used_after: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<Vec<Session>, StoreError> {
    let rows: Vec<Row<Session>> = sqlx::query_as(
        "SELECT id, origin_jti, key_digest, created_at, last_used_at, expires_at, address, agent FROM sessions \
         WHERE user_id = $1 AND last_used_at > $2 AND expires_at > $3 ORDER BY last_used_at DESC, id LIMIT $4",
    )
    .bind(user)
    .bind(used_after)
    .bind(now)
    .bind(MAX_SESSIONS_PER_USER)
    .fetch_all(&store.read)
    .await?;
    store.inconsistent.read_each(rows, Ok)
}

/// An open session. Whether its time is over is the cookie's part.
pub async fn find(store: &Store, id: &str) -> Result<Option<Session>, StoreError> {
    let found = sqlx::query_as(
        "SELECT id, origin_jti, key_digest, created_at, last_used_at, expires_at, address, agent FROM sessions WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(&store.read)
    .await?;
    Ok(found)
}

/// Records that a session is used.
pub async fn touch(store: &Store, id: &str, address: Option<String>, now: DateTime<Utc>) -> Result<(), StoreError> {
    let id = id.to_owned();
    store
        .write(transaction!(|tx| {
            sqlx::query("UPDATE sessions SET last_used_at = $2, address = coalesce($3, address) WHERE id = $1")
                .bind(&id)
                .bind(now)
                .bind(&address)
                .execute(&mut tx.db)
                .await?;
            Ok(())
        }))
        .await
}

/// Ends an open session of a user. False if there is none.
pub async fn end(store: &Store, user: &str, id: &str, entry: AuditEntry) -> Result<bool, StoreError> {
    let (user, id) = (user.to_owned(), id.to_owned());
    store
        .write(transaction!(|tx| {
            let ended = sqlx::query("DELETE FROM sessions WHERE id = $2 AND user_id = $1")
                .bind(&user)
                .bind(&id)
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
