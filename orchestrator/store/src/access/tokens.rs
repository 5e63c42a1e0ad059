//! User tokens: issued and revoked ones. Never stores a token itself.

use chrono::{DateTime, Utc};
use protocol::AuditOutcome;
use serde::Serialize;
use sqlx::FromRow;

use super::audit;
use crate::{AuditEntry, Store, StoreError, sqlite::inconsistent_rows::Row};

/// One issued token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct TokenRow {
    pub jti: String,
    /// The user it was issued to.
    #[serde(rename = "user")]
    pub user_id: String,
    /// `admin`, `user` or `viewer`.
    pub role: String,
    pub created_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// Records an issued token.
pub async fn insert(store: &Store, token: &TokenRow) -> Result<(), StoreError> {
    let token = token.clone();
    store
        .write(transaction!(|tx| {
            sqlx::query("INSERT INTO tokens (jti, user_id, role, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)")
                .bind(&token.jti)
                .bind(&token.user_id)
                .bind(&token.role)
                .bind(token.created_at)
                .bind(token.expires_at)
                .execute(&mut tx.db)
                .await?;
            let entry = by_operator("token.create", &token.jti, token.created_at);
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
}

/// Issued tokens, newest first.
pub async fn list(store: &Store) -> Result<Vec<TokenRow>, StoreError> {
    let rows: Vec<Row<TokenRow>> = sqlx::query_as(
        "SELECT jti, user_id, role, created_at, expires_at, revoked_at FROM tokens ORDER BY created_at DESC, jti",
    )
    .fetch_all(&store.read)
    .await?;
    store.inconsistent.read_each(rows, Ok)
}

/// The outcome of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// The token was issued here.
    Listed,
    /// The token is unknown. If it was signed elsewhere with this key, it is revoked now.
    Unlisted,
    Already,
}

/// Revokes a token by its id, including tokens that were signed elsewhere with the same key, and ends its sessions.
pub async fn revoke(store: &Store, jti: &str, now: DateTime<Utc>) -> Result<Revoked, StoreError> {
    let jti = jti.to_owned();
    store
        .write(transaction!(|tx| {
            let known: Option<Option<DateTime<Utc>>> =
                sqlx::query_scalar("SELECT revoked_at FROM tokens WHERE jti = $1")
                    .bind(&jti)
                    .fetch_optional(&mut tx.db)
                    .await?;
            let revoked = match known {
                Some(Some(_)) => return Ok(Revoked::Already),
                Some(None) => Revoked::Listed,
                None => Revoked::Unlisted,
            };
            sqlx::query(
                "INSERT INTO tokens (jti, user_id, role, created_at, expires_at, revoked_at) \
                 VALUES ($1, '', '', $2, $2, $2) ON CONFLICT (jti) DO UPDATE SET revoked_at = excluded.revoked_at \
                 WHERE tokens.revoked_at IS NULL",
            )
            .bind(&jti)
            .bind(now)
            .execute(&mut tx.db)
            .await?;
            sqlx::query("DELETE FROM sessions WHERE origin_jti = $1").bind(&jti).execute(&mut tx.db).await?;
            let entry = by_operator("token.revoke", &jti, now);
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            Ok(revoked)
        }))
        .await
}

fn by_operator(action: &str, jti: &str, at: DateTime<Utc>) -> AuditEntry {
    AuditEntry { jti: Some(jti.to_owned()), ..AuditEntry::by_operator(action, at) }
}

/// Whether a token is revoked. A token that is not recorded here is valid by its signature.
pub async fn is_revoked(store: &Store, jti: &str) -> Result<bool, StoreError> {
    let revoked: Option<bool> = sqlx::query_scalar("SELECT revoked_at IS NOT NULL FROM tokens WHERE jti = $1")
        .bind(jti)
        .fetch_optional(&store.read)
        .await?;
    Ok(revoked.unwrap_or(false))
}
