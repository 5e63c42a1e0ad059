//! Users' secrets, sealed. Never sees a value.

use chrono::{DateTime, Utc};
use protocol::{
    AuditOutcome, SecretSummary,
    limits::{MAX_SECRETS, MAX_SECRETS_TOTAL_BYTES},
};
use sqlx::{FromRow, types::Json};

use super::audit;
use crate::{
    AuditEntry, Connection, Store, StoreError,
    sqlite::{inconsistent_rows::Keyed, rows::column},
};

/// Rows that are sealed again at a time.
const ROWS_PER_BATCH: i64 = 100;

/// A sealed value with what is needed to open it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct SealedValue {
    /// The id of the key that it is sealed with.
    pub key_id: String,
    pub nonce: Vec<u8>,
    /// The encrypted value with its authentication tag.
    pub ciphertext: Vec<u8>,
}

/// Length of the authentication tag at the end of a ciphertext; the rest is as long as the value.
const TAG_BYTES: i64 = 16;

#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct SealedSecret {
    #[sqlx(rename = "user_id")]
    pub owner: String,
    pub name: String,
    #[sqlx(flatten)]
    pub sealed: SealedValue,
    /// The hosts that it may be sent to; empty: any host. Stored with `None`, it keeps those that it has.
    #[sqlx(json(nullable))]
    pub hosts: Option<Vec<String>>,
}

/// The outcome of storing a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretStored {
    Done(SecretSummary),
    /// Nothing is stored: the user has [`MAX_SECRETS`] others.
    LimitReached,
    /// Nothing is stored: the values would have more than [`MAX_SECRETS_TOTAL_BYTES`].
    TotalTooLarge {
        /// The size of the user's other values, in bytes.
        others: u64,
    },
}

/// What is done with a secret while all are sealed with another key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resealed {
    With(SealedValue),
    Deleted,
    /// It does not open, so no secret is changed.
    Unreadable,
}

/// How many secrets were changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResealCounts {
    /// Secrets that were sealed with another key.
    pub resealed: u64,
    pub deleted: u64,
}

impl Store {
    /// A user's secrets in the order of their names, after one of this name, each with its name.
    pub async fn secrets(
        &self,
        user: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(String, Option<SecretSummary>)>, StoreError> {
        let rows: Vec<Keyed<SecretSummary, String>> = sqlx::query_as(
            "SELECT name AS id, name, created_at, updated_at, hosts FROM secrets WHERE user_id = $1 AND name > $2 AND name NOT LIKE 'routine/%' \
             ORDER BY name LIMIT $3",
        )
        .bind(user)
        .bind(after.unwrap_or_default())
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_page(rows, Ok)
    }

    /// The secrets that a user has set, in the order of their names. Those of routines are not among them: they reach
    /// neither a prompt nor a tool, and their number is limited with the routines only.
    pub async fn sealed_secrets(&self, user: &str) -> Result<Vec<SealedSecret>, StoreError> {
        Ok(sqlx::query_as(
            "SELECT user_id, name, key_id, nonce, ciphertext, hosts FROM secrets WHERE user_id = $1 AND name NOT LIKE 'routine/%' \
             ORDER BY name",
        )
        .bind(user)
        .fetch_all(&self.read)
        .await?)
    }

    /// One secret of a user, also of a routine.
    pub async fn sealed_secret(&self, user: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        let query =
            "SELECT user_id, name, key_id, nonce, ciphertext, hosts FROM secrets WHERE user_id = $1 AND name = $2";
        Ok(sqlx::query_as(query).bind(user).bind(name).fetch_optional(&self.read).await?)
    }

    /// One secret of any user.
    pub async fn any_sealed_secret(&self) -> Result<Option<SealedSecret>, StoreError> {
        let query = "SELECT user_id, name, key_id, nonce, ciphertext, hosts FROM secrets LIMIT 1";
        Ok(sqlx::query_as(query).fetch_optional(&self.read).await?)
    }

    /// The ids of the keys that secrets are sealed with.
    pub async fn secret_key_ids(&self) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar("SELECT DISTINCT key_id FROM secrets ORDER BY key_id").fetch_all(&self.read).await?)
    }

    /// Creates or replaces a secret, and calls `committed` once that is committed.
    pub async fn put_secret(
        &self,
        secret: SealedSecret,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<SecretStored, StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            if let Some(refused) = exceeded_limit(&mut tx.db, &secret).await? {
                return Ok(refused);
            }
            let row = upsert(&mut tx.db, &secret, entry.at).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            tx.after_commit(move |_| committed());
            Ok(SecretStored::Done(row))
        }))
        .await
    }

    /// Deletes a secret, and calls `committed` once that is committed; false if there is none of this name.
    pub async fn delete_secret(
        &self,
        user: &str,
        name: &str,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<bool, StoreError> {
        let (user, name, entry) = (user.to_owned(), name.to_owned(), entry.clone());
        self.write(transaction!(|tx| {
            let deleted = sqlx::query("DELETE FROM secrets WHERE user_id = $1 AND name = $2")
                .bind(user)
                .bind(name)
                .execute(&mut tx.db)
                .await?;
            if deleted.rows_affected() == 0 {
                return Ok(false);
            }
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            tx.after_commit(move |_| committed());
            Ok(true)
        }))
        .await
    }

    /// Changes every secret in one transaction as `reseal` decides. Changes none if one of them does not open.
    pub async fn reseal_secrets(
        &self,
        mut reseal: impl FnMut(&SealedSecret) -> Resealed + Send + 'static,
        entry: &AuditEntry,
    ) -> Result<ResealCounts, StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            let (mut counts, mut last) = (ResealCounts::default(), (String::new(), String::new()));
            loop {
                let batch: Vec<SealedSecret> = sqlx::query_as(
                    "SELECT user_id, name, key_id, nonce, ciphertext, hosts FROM secrets WHERE (user_id, name) > ($1, $2) \
                     ORDER BY user_id, name LIMIT $3",
                )
                .bind(&last.0)
                .bind(&last.1)
                .bind(ROWS_PER_BATCH)
                .fetch_all(&mut tx.db)
                .await?;
                let Some(end) = batch.last() else { break };
                last = (end.owner.clone(), end.name.clone());
                for secret in &batch {
                    apply(&mut tx.db, secret, reseal(secret), &mut counts).await?;
                }
            }
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            Ok(counts)
        }))
        .await
    }
}

/// Creates or replaces a secret, in the transaction of what it belongs to.
pub(crate) async fn upsert(
    tx: &mut Connection,
    secret: &SealedSecret,
    at: DateTime<Utc>,
) -> Result<SecretSummary, StoreError> {
    Ok(sqlx::query_as(
        "INSERT INTO secrets (user_id, name, key_id, nonce, ciphertext, created_at, updated_at, hosts) \
         VALUES ($1, $2, $3, $4, $5, $6, $6, COALESCE($7, '[]')) ON CONFLICT (user_id, name) DO UPDATE SET \
         key_id = excluded.key_id, nonce = excluded.nonce, ciphertext = excluded.ciphertext, \
         updated_at = excluded.updated_at, hosts = COALESCE($7, secrets.hosts) \
         RETURNING name, created_at, updated_at, hosts",
    )
    .bind(&secret.owner)
    .bind(&secret.name)
    .bind(&secret.sealed.key_id)
    .bind(&secret.sealed.nonce)
    .bind(&secret.sealed.ciphertext)
    .bind(at)
    .bind(secret.hosts.as_ref().map(Json))
    .fetch_one(tx)
    .await?)
}

/// Whether a user's secret would exceed a limit. Those of routines are limited with the routines.
async fn exceeded_limit(tx: &mut Connection, secret: &SealedSecret) -> Result<Option<SecretStored>, StoreError> {
    let (others, others_bytes): (i64, i64) = sqlx::query_as(
        "SELECT COUNT(*), COALESCE(SUM(LENGTH(ciphertext) - $3), 0) FROM secrets WHERE user_id = $1 AND name <> $2 \
         AND name NOT LIKE 'routine/%'",
    )
    .bind(&secret.owner)
    .bind(&secret.name)
    .bind(TAG_BYTES)
    .fetch_one(tx)
    .await?;
    if others >= i64::from(MAX_SECRETS) {
        return Ok(Some(SecretStored::LimitReached));
    }
    let bytes = column(secret.sealed.ciphertext.len() as u64) - TAG_BYTES;
    let others = others_bytes.unsigned_abs();
    let is_too_large = others_bytes + bytes > column(MAX_SECRETS_TOTAL_BYTES as u64);
    Ok(is_too_large.then_some(SecretStored::TotalTooLarge { others }))
}

async fn apply(
    tx: &mut Connection,
    secret: &SealedSecret,
    resealed: Resealed,
    counts: &mut ResealCounts,
) -> Result<(), StoreError> {
    match resealed {
        Resealed::With(SealedValue { key_id, nonce, ciphertext }) => {
            sqlx::query("UPDATE secrets SET key_id = $3, nonce = $4, ciphertext = $5 WHERE user_id = $1 AND name = $2")
                .bind(&secret.owner)
                .bind(&secret.name)
                .bind(key_id)
                .bind(nonce)
                .bind(ciphertext)
                .execute(tx)
                .await?;
            counts.resealed += 1;
        }
        Resealed::Deleted => {
            sqlx::query("DELETE FROM secrets WHERE user_id = $1 AND name = $2")
                .bind(&secret.owner)
                .bind(&secret.name)
                .execute(tx)
                .await?;
            counts.deleted += 1;
        }
        Resealed::Unreadable => {
            let id = format!("{} of {}", secret.name, secret.owner);
            return Err(StoreError::Inconsistent { table: "secrets", column: "ciphertext", id });
        }
    }
    Ok(())
}
