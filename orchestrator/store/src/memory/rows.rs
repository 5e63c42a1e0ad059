//! The rows of memory and the statements that read and change them, each within a transaction of its caller.

use chrono::{DateTime, Utc};
use protocol::{MemoryEntry, MemoryVersion};
use sqlx::FromRow;

use super::super::{
    Connection, StoreError,
    sqlite::rows::{column, count},
};
use domain::memory::MemoryPath;

/// The user's number and documents; a user without documents gets a number.
pub(super) async fn ensure_owner(tx: &mut Connection, user: &str) -> Result<OwnerRow, StoreError> {
    sqlx::query("INSERT INTO memory_users (user_id) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(user)
        .execute(&mut *tx)
        .await?;
    Ok(sqlx::query_as("SELECT number, documents FROM memory_users WHERE user_id = $1").bind(user).fetch_one(tx).await?)
}

/// The id and the version of a document.
pub(super) async fn find(tx: &mut Connection, user: &str, path: &MemoryPath) -> Result<Option<(i64, u64)>, StoreError> {
    let row: Option<(i64, i64)> =
        sqlx::query_as("SELECT id, version FROM memory_documents WHERE user_id = $1 AND path = $2")
            .bind(user)
            .bind(path.as_str())
            .fetch_optional(tx)
            .await?;
    Ok(row.map(|(id, version)| (id, count(version))))
}

/// Deletes the versions before this one.
pub(super) async fn remove_before(tx: &mut Connection, document: i64, version: u64) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM memory_versions WHERE document_id = $1 AND version < $2")
        .bind(document)
        .bind(column(version))
        .execute(tx)
        .await?;
    Ok(())
}

pub(super) async fn upsert(tx: &mut Connection, user: &str, entry: &MemoryEntry) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar(
        "INSERT INTO memory_documents (user_id, path, version, bytes, updated_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (user_id, path) DO UPDATE SET version = excluded.version, bytes = excluded.bytes, \
         updated_at = excluded.updated_at RETURNING id",
    )
    .bind(user)
    .bind(&entry.path)
    .bind(column(entry.version))
    .bind(column(entry.bytes))
    .bind(entry.updated_at)
    .fetch_one(tx)
    .await?)
}

pub(super) async fn insert_version(
    tx: &mut Connection,
    document: i64,
    entry: &MemoryEntry,
    author: &str,
    content: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO memory_versions (document_id, version, bytes, created_at, author, content) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(document)
    .bind(column(entry.version))
    .bind(column(entry.bytes))
    .bind(entry.updated_at)
    .bind(author)
    .bind(content)
    .execute(tx)
    .await?;
    Ok(())
}

/// Replaces the document's terms in the index.
pub(super) async fn index(tx: &mut Connection, document: i64, path: &str, content: &str) -> Result<(), StoreError> {
    sqlx::query("INSERT OR REPLACE INTO memory_index (rowid, path, content) VALUES ($1, $2, $3)")
        .bind(document)
        .bind(path)
        .bind(content)
        .execute(tx)
        .await?;
    Ok(())
}

#[derive(FromRow)]
pub(super) struct OwnerRow {
    pub(super) number: i64,
    pub(super) documents: i64,
}

#[derive(FromRow)]
pub(super) struct EntryRow {
    pub(super) path: String,
    pub(super) version: i64,
    pub(super) bytes: i64,
    pub(super) updated_at: DateTime<Utc>,
}

#[derive(FromRow)]
pub(super) struct VersionRow {
    pub(super) document_id: i64,
    pub(super) version: i64,
    pub(super) bytes: i64,
    pub(super) created_at: DateTime<Utc>,
    pub(super) author: String,
}

impl VersionRow {
    pub(super) fn into_version(self) -> Result<MemoryVersion, StoreError> {
        let by = self.author.parse().map_err(|_| StoreError::Inconsistent {
            table: "memory_versions",
            column: "author",
            id: self.document_id.to_string(),
        })?;
        let (version, bytes) = (count(self.version), count(self.bytes));
        Ok(MemoryVersion { version, bytes, created_at: self.created_at, by })
    }
}
