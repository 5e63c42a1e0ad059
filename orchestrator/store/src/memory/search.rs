//! Full-text search in a user's documents.
//!
//! Owns the order of the results. The index has no text of the documents: snippets are cut from the documents
//! themselves.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use protocol::MemoryMatch;

use super::{MAX_INLINE_BYTES, OwnerRow};
use domain::memory::{IndexOwner, MemoryQuery, Phrase, snippet};

use crate::{Connection, Store, StoreError};

/// Ranked by bm25, where a word of the path counts as much as four of the text. The best has the lowest value.
const RANKED: &str = "SELECT d.path, v.content, -m.cost AS score FROM \
     (SELECT rowid AS id, bm25(memory_index, 4.0, 1.0) AS cost FROM memory_index WHERE memory_index MATCH $1 \
      ORDER BY cost LIMIT $2) AS m \
     JOIN memory_documents AS d ON d.id = m.id AND d.user_id = $3 \
     JOIN memory_versions AS v ON v.document_id = d.id AND v.version = d.version \
     ORDER BY m.cost, d.path";

/// Documents that a word of a query may have before it is left out where not every word must match: to rank this many
/// takes about 5 ms.
const MAX_RANKED: i64 = 1_000;

impl Store {
    /// The documents with all words of the query, best first. If there are none: those with any of its words.
    pub async fn search_memory(
        &self,
        user: &str,
        query: MemoryQuery,
        limit: u32,
    ) -> Result<Vec<MemoryMatch>, StoreError> {
        let mut reader = self.read.acquire().await?;
        let found = search(reader.connection()?, user, &Arc::new(query), limit).await;
        let error = match &found {
            Err(StoreError::Database(error)) => Some(error),
            _ => None,
        };
        reader.release(error);
        found
    }
}

async fn search(
    db: &mut Connection,
    user: &str,
    query: &Arc<MemoryQuery>,
    limit: u32,
) -> Result<Vec<MemoryMatch>, StoreError> {
    let owner: Option<OwnerRow> = sqlx::query_as("SELECT number, documents FROM memory_users WHERE user_id = $1")
        .bind(user)
        .fetch_optional(&mut *db)
        .await?;
    let Some(OwnerRow { number, documents }) = owner else { return Ok(vec![]) };
    let number = IndexOwner(number);
    let Some(all) = query.all(number) else { return Ok(vec![]) };
    let found = ranked(db, user, query, &all, limit).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let terms = telling_terms(db, number, query, documents).await?;
    match MemoryQuery::any(number, &terms) {
        Some(any) => ranked(db, user, query, &any, limit).await,
        None => Ok(found),
    }
}

/// The terms that some documents have. Those that most documents have, or very many, are left out if there are others:
/// they tell few documents from the others, and ranking by them takes longest.
async fn telling_terms(
    db: &mut Connection,
    owner: IndexOwner,
    query: &MemoryQuery,
    documents: i64,
) -> Result<Vec<Phrase>, StoreError> {
    let (mut rare, mut common) = (vec![], vec![]);
    for term in &query.terms {
        let found: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM memory_index WHERE memory_index MATCH $1")
            .bind(term.expression(owner))
            .fetch_one(&mut *db)
            .await?;
        match found {
            0 => {}
            _ if found > MAX_RANKED.min(documents / 2) => common.push(term.clone()),
            _ => rare.push(term.clone()),
        }
    }
    Ok(if rare.is_empty() { common } else { rare })
}

async fn ranked(
    db: &mut Connection,
    user: &str,
    query: &Arc<MemoryQuery>,
    expression: &str,
    limit: u32,
) -> Result<Vec<MemoryMatch>, StoreError> {
    let rows = sqlx::query_as::<_, (String, String, f64)>(RANKED);
    let mut rows = rows.bind(expression).bind(i64::from(limit)).bind(user).fetch(db);
    let mut found = vec![];
    // One document at a time: together they may be large.
    while let Some((path, content, score)) = rows.try_next().await? {
        found.push(MemoryMatch { path, snippet: snippet_of(content, query).await, score });
    }
    Ok(found)
}

async fn snippet_of(content: String, query: &Arc<MemoryQuery>) -> String {
    if content.len() <= MAX_INLINE_BYTES {
        return snippet(&content, query);
    }
    let query = Arc::clone(query);
    // A result without a snippet is better than none; a panic is logged by its hook.
    tokio::task::spawn_blocking(move || snippet(&content, &query)).await.unwrap_or_default()
}
