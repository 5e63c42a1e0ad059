//! Memory: documents of users with their last versions.
//!
//! Guarantees that a write is one transaction: the version, the index of its words and the audit entry. Triggers
//! count what the user stores. Every statement names the user, so a document of another user is a missing one.

mod rows;
mod search;
#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};
use protocol::{AuditOutcome, MemoryAuthor, MemoryDocument, MemoryEntry, MemoryVersion};

use self::rows::{EntryRow, OwnerRow, VersionRow, ensure_owner, find, index, insert_version, remove_before, upsert};
use super::{
    AuditEntry, Connection, Store, StoreError,
    access::audit,
    routines::events::own_events,
    sqlite::{
        inconsistent_rows::{Keyed, Row},
        rows::{column, count},
    },
    users::user_storage,
};
use domain::{
    ExpectedVersion,
    memory::{IndexOwner, MAX_DOCUMENTS, MAX_MEMORY_DOCUMENT_BYTES, MAX_VERSIONS, MemoryPath, appended, index_terms},
};

/// Concurrent writes, one for each user: to split a document of the maximum size into words and to write its index
/// takes tens of milliseconds each, and so only two of them delay others at a time.
pub(super) const MAX_WRITES: usize = 2;
/// Texts over this size are split into words off the runtime's threads: 64 KiB take about 1 ms.
const MAX_INLINE_BYTES: usize = 64 * 1024;

/// A new version of a document, which may not exist yet.
#[derive(Debug, Clone)]
pub struct MemoryWrite {
    pub user: String,
    pub path: MemoryPath,
    pub text: MemoryText,
    pub author: MemoryAuthor,
    /// The version that the caller has seen, if it must be the current one.
    pub expected: Option<ExpectedVersion>,
    /// The entry of the change; its time is that of the version.
    pub audit: AuditEntry,
}

/// The text of a new version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryText {
    Replace(String),
    /// Text to add at the end of the current version.
    Append(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryWriteOutcome {
    Stored {
        entry: MemoryEntry,
        /// Whether the document is new.
        is_new: bool,
    },
    /// The document has another version, or does not exist.
    VersionMismatch { current: Option<u64> },
    /// The text would exceed the maximum size of a document.
    TooLarge { bytes: usize },
    /// The user has the maximum number of documents.
    TooManyDocuments,
}

/// A document to delete, with all its versions.
#[derive(Debug, Clone)]
pub struct MemoryDeletion {
    pub user: String,
    pub path: MemoryPath,
    /// The version that the caller has seen, if it must be the current one.
    pub expected: Option<ExpectedVersion>,
    /// The entry of the change.
    pub audit: AuditEntry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryDeleteOutcome {
    Deleted,
    /// The document has another version.
    VersionMismatch {
        current: u64,
    },
    /// No such document.
    Missing,
}

impl Store {
    /// Writes a new version of a document, and deletes the versions over the limit.
    pub async fn write_memory(&self, write: MemoryWrite) -> Result<MemoryWriteOutcome, StoreError> {
        let _permit = self.memory_writes.acquire(&write.user).await.map_err(|_| StoreError::Closed)?;
        let owner = self.index_owner(&write.user).await?;
        loop {
            let text = match self.new_text(&write, owner).await? {
                Ok(text) => text,
                Err(bytes) => return Ok(MemoryWriteOutcome::TooLarge { bytes }),
            };
            let write = write.clone();
            let stored = self.write(transaction!(|tx| {
                let (user, author, now) = (write.user.clone(), write.author.clone(), write.audit.at);
                user_storage::ensure_room(tx, &user).await?;
                let Some(outcome) = put(&mut tx.db, write, text).await? else { return Ok(None) };
                if let MemoryWriteOutcome::Stored { entry, .. } = &outcome {
                    let version = (entry.path.as_str(), entry.version);
                    own_events::memory_written(tx, &user, version, &author, now).await?;
                }
                Ok(Some(outcome))
            }));
            // Else the document has changed since it was read, and the text is added to what it is now.
            if let Some(outcome) = stored.await? {
                return Ok(outcome);
            }
        }
    }

    /// The number of a user in the index. It never changes, so that texts can be split before their transaction.
    async fn index_owner(&self, user: &str) -> Result<IndexOwner, StoreError> {
        let known: Option<i64> = sqlx::query_scalar("SELECT number FROM memory_users WHERE user_id = $1")
            .bind(user)
            .fetch_optional(&self.read)
            .await?;
        if let Some(number) = known {
            return Ok(IndexOwner(number));
        }
        let user = user.to_owned();
        let owner = self.write(transaction!(|tx| ensure_owner(&mut tx.db, &user).await)).await?;
        Ok(IndexOwner(owner.number))
    }

    /// The whole text of the new version with its terms, or its size if it is too large.
    async fn new_text(&self, write: &MemoryWrite, owner: IndexOwner) -> Result<Result<NewText, usize>, StoreError> {
        let (content, added_to) = match &write.text {
            MemoryText::Replace(content) => (content.clone(), None),
            MemoryText::Append(added) => match self.memory_document(&write.user, &write.path, None).await? {
                Some(current) => (appended(current.content, added), Some(current.version)),
                None => (added.clone(), Some(0)),
            },
        };
        if content.len() > MAX_MEMORY_DOCUMENT_BYTES {
            return Ok(Err(content.len()));
        }
        let path_terms = index_terms(owner, write.path.as_str());
        let (content, content_terms) = terms(owner, content).await?;
        Ok(Ok(NewText { content, content_terms, path_terms, added_to }))
    }

    /// Deletes a document with its versions.
    pub async fn delete_memory(&self, deletion: MemoryDeletion) -> Result<MemoryDeleteOutcome, StoreError> {
        self.write(transaction!(|tx| delete(&mut tx.db, deletion).await)).await
    }

    /// A version of a document, by default the current one.
    pub async fn memory_document(
        &self,
        user: &str,
        path: &MemoryPath,
        version: Option<u64>,
    ) -> Result<Option<MemoryDocument>, StoreError> {
        let row: Option<(String, i64, DateTime<Utc>)> = sqlx::query_as(
            "SELECT v.content, v.version, v.created_at FROM memory_documents AS d \
             JOIN memory_versions AS v ON v.document_id = d.id AND v.version = COALESCE($3, d.version) \
             WHERE d.user_id = $1 AND d.path = $2",
        )
        .bind(user)
        .bind(path.as_str())
        .bind(version.map(column))
        .fetch_optional(&self.read)
        .await?;
        Ok(row.map(|(content, version, updated_at)| MemoryDocument {
            path: path.as_str().to_owned(),
            content,
            version: count(version),
            updated_at,
        }))
    }

    /// The kept versions of a document, newest first. `None` if it does not exist.
    pub async fn memory_versions(
        &self,
        user: &str,
        path: &MemoryPath,
    ) -> Result<Option<Vec<MemoryVersion>>, StoreError> {
        let rows: Vec<Row<VersionRow>> = sqlx::query_as(
            "SELECT v.document_id, v.version, v.bytes, v.created_at, v.author FROM memory_documents AS d \
             JOIN memory_versions AS v ON v.document_id = d.id WHERE d.user_id = $1 AND d.path = $2 \
             ORDER BY v.version DESC",
        )
        .bind(user)
        .bind(path.as_str())
        .fetch_all(&self.read)
        .await?;
        if rows.is_empty() {
            return Ok(None);
        }
        self.inconsistent.read_each(rows, VersionRow::into_version).map(Some)
    }

    /// The documents in a directory and below it, or all, by path, after a path, each with its path.
    pub async fn memory_tree(
        &self,
        user: &str,
        directory: Option<&MemoryPath>,
        after: &str,
        limit: u32,
    ) -> Result<Vec<(String, Option<MemoryEntry>)>, StoreError> {
        // The paths below `a` are those from `a/` to before `a0`: `0` follows `/`.
        let rows: Vec<Keyed<EntryRow, String>> = sqlx::query_as(
            "SELECT path AS id, path, version, bytes, updated_at FROM memory_documents \
             WHERE user_id = $1 AND path > $2 AND ($3 IS NULL OR path = $3 OR (path > $3 || '/' AND path < $3 || '0')) \
             ORDER BY path LIMIT $4",
        )
        .bind(user)
        .bind(after)
        .bind(directory.map(MemoryPath::as_str))
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        let entry = |EntryRow { path, version, bytes, updated_at }| {
            Ok(MemoryEntry { path, version: count(version), bytes: count(bytes), updated_at })
        };
        self.inconsistent.read_page(rows, entry)
    }

    /// What is directly in a directory, by path: documents, and directories, which end in `/`, with the number of
    /// documents below each.
    pub async fn memory_directory(
        &self,
        user: &str,
        directory: Option<&MemoryPath>,
        limit: u32,
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let prefix = directory.map_or_else(String::new, |directory| format!("{}/", directory.as_str()));
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT $2 || CASE WHEN instr(rest, '/') = 0 THEN rest ELSE substr(rest, 1, instr(rest, '/')) END AS name, \
             COUNT(*) FROM (SELECT substr(path, length($2) + 1) AS rest FROM memory_documents \
             WHERE user_id = $1 AND substr(path, 1, length($2)) = $2) GROUP BY name ORDER BY name LIMIT $3",
        )
        .bind(user)
        .bind(prefix)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        Ok(rows.into_iter().map(|(name, documents)| (name, count(documents))).collect())
    }
}

/// The text of a new version, split into terms.
struct NewText {
    content: String,
    content_terms: String,
    path_terms: String,
    /// The version that it was added to, 0 for a document that did not exist; `None` if it replaces any.
    added_to: Option<u64>,
}

async fn terms(owner: IndexOwner, text: String) -> Result<(String, String), StoreError> {
    if text.len() <= MAX_INLINE_BYTES {
        let terms = index_terms(owner, &text);
        return Ok((text, terms));
    }
    let split = tokio::task::spawn_blocking(move || {
        let terms = index_terms(owner, &text);
        (text, terms)
    });
    split.await.map_err(|_| StoreError::WriterFailed)
}

/// Stores a new version. `None`: it was added to a version that is no longer the current one.
async fn put(tx: &mut Connection, write: MemoryWrite, text: NewText) -> Result<Option<MemoryWriteOutcome>, StoreError> {
    let MemoryWrite { user, path, author, expected, audit, .. } = write;
    let owner = ensure_owner(tx, &user).await?;
    let current = find(tx, &user, &path).await?;
    let version = current.map(|(_, version)| version);
    if expected.is_some_and(|expected| !expected.allows(version)) {
        return Ok(Some(MemoryWriteOutcome::VersionMismatch { current: version }));
    }
    if text.added_to.is_some_and(|added_to| added_to != version.unwrap_or(0)) {
        return Ok(None);
    }
    let bytes = text.content.len();
    if current.is_none() && count(owner.documents) >= MAX_DOCUMENTS {
        return Ok(Some(MemoryWriteOutcome::TooManyDocuments));
    }
    let next = version.unwrap_or(0) + 1;
    let oldest_kept = next.saturating_sub(MAX_VERSIONS) + 1;
    let entry =
        MemoryEntry { path: path.as_str().to_owned(), version: next, bytes: bytes as u64, updated_at: audit.at };
    let id = upsert(tx, &user, &entry).await?;
    remove_before(tx, id, oldest_kept).await?;
    insert_version(tx, id, &entry, &author.to_string(), &text.content).await?;
    index(tx, id, &text.path_terms, &text.content_terms).await?;
    audit::insert(tx, &audit, AuditOutcome::Done, None).await?;
    Ok(Some(MemoryWriteOutcome::Stored { entry, is_new: current.is_none() }))
}

async fn delete(tx: &mut Connection, deletion: MemoryDeletion) -> Result<MemoryDeleteOutcome, StoreError> {
    let MemoryDeletion { user, path, expected, audit } = deletion;
    let Some((id, version)) = find(tx, &user, &path).await? else { return Ok(MemoryDeleteOutcome::Missing) };
    if expected.is_some_and(|expected| !expected.allows(Some(version))) {
        return Ok(MemoryDeleteOutcome::VersionMismatch { current: version });
    }
    remove_before(tx, id, version + 1).await?;
    sqlx::query("DELETE FROM memory_documents WHERE id = $1").bind(id).execute(&mut *tx).await?;
    sqlx::query("DELETE FROM memory_index WHERE rowid = $1").bind(id).execute(&mut *tx).await?;
    audit::insert(tx, &audit, AuditOutcome::Done, None).await?;
    Ok(MemoryDeleteOutcome::Deleted)
}
