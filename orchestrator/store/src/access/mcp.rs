//! The definitions of MCP servers' tools that were seen, and which of them are approved.
//!
//! Guarantees that a first definition is approved when it is seen, that a later one is not, and that a server cannot
//! fill the table.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use protocol::AuditOutcome;

use super::audit;
use crate::{AuditEntry, Connection, Store, StoreError};

/// Tools of one server that are known. A server that changes its tools' names has no more of them.
const MAX_TOOLS: usize = 1_024;
/// Approved definitions of one tool that are kept, the latest ones.
const MAX_APPROVED: i64 = 8;

/// A definition that a server has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDefinition {
    /// The server's own name of the tool.
    pub tool: String,
    pub digest: String,
    pub definition: String,
}

/// Whether a definition may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionStatus {
    /// It is the tool's first one, or an admin has approved it.
    Approved,
    /// It differs from those that are approved.
    Withheld,
    /// The server has too many tools.
    TooMany,
}

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredDefinition {
    pub server: String,
    /// The server's own name of the tool.
    pub tool: String,
    pub digest: String,
    pub definition: String,
    /// When the server sent it for the first time.
    pub first_seen_at: DateTime<Utc>,
    pub approved_at: Option<DateTime<Utc>>,
    /// The admin who approved it; none for a tool's first definition.
    pub approved_by: Option<String>,
}

/// The outcome of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionApproval {
    Approved,
    /// The server's tool has no such definition, or no longer.
    NotFound,
}

impl Store {
    /// All stored definitions, ordered by server and tool, the latest ones of a tool last.
    pub async fn mcp_definitions(&self) -> Result<Vec<StoredDefinition>, StoreError> {
        let rows = sqlx::query_as(
            "SELECT server, tool, digest, definition, first_seen_at, approved_at, approved_by FROM mcp_definitions \
             ORDER BY server, tool, first_seen_at, digest",
        );
        Ok(rows.fetch_all(&self.read).await?)
    }

    /// The approved definitions of a server's tools that no user's calls can have led to: those of the first list that
    /// was read of it, before any call, and those that an admin has approved. The latest one of each tool, with the
    /// tool's name.
    pub async fn shared_mcp_definitions(&self, server: &str) -> Result<Vec<(String, String)>, StoreError> {
        let rows = sqlx::query_as(
            "SELECT tool, definition FROM mcp_definitions AS one WHERE server = $1 AND approved_at IS NOT NULL \
             AND (approved_by IS NOT NULL OR first_seen_at = (SELECT min(first_seen_at) FROM mcp_definitions WHERE server = $1)) \
             AND NOT EXISTS (SELECT 1 FROM mcp_definitions AS later WHERE later.server = $1 AND later.tool = one.tool \
             AND later.approved_at > one.approved_at) ORDER BY tool",
        );
        Ok(rows.bind(server).fetch_all(&self.read).await?)
    }

    /// Whether each of these definitions may be used, in their order. Those that are new are recorded.
    pub async fn see_mcp_definitions(
        &self,
        server: &str,
        seen: Vec<SeenDefinition>,
        at: DateTime<Utc>,
    ) -> Result<Vec<DefinitionStatus>, StoreError> {
        let known: Vec<(String, String, bool)> =
            sqlx::query_as("SELECT tool, digest, approved_at IS NOT NULL FROM mcp_definitions WHERE server = $1")
                .bind(server)
                .fetch_all(&self.read)
                .await?;
        let known: HashMap<(&str, &str), bool> =
            known.iter().map(|(tool, digest, approved)| ((tool.as_str(), digest.as_str()), *approved)).collect();
        let status = |one: &SeenDefinition| known.get(&(one.tool.as_str(), one.digest.as_str())).copied();
        if let Some(all) = seen.iter().map(status).collect::<Option<Vec<_>>>() {
            return Ok(all.into_iter().map(of_approval).collect());
        }
        let server = server.to_owned();
        self.write(transaction!(|tx| record(&mut tx.db, &server, &seen, at).await)).await
    }

    /// Approves a definition of a tool.
    pub async fn approve_mcp_definition(
        &self,
        (server, tool): (&str, &str),
        digest: &str,
        entry: AuditEntry,
    ) -> Result<DefinitionApproval, StoreError> {
        let (server, tool, digest) = (server.to_owned(), tool.to_owned(), digest.to_owned());
        self.write(transaction!(|tx| {
            let changed = sqlx::query(
                "UPDATE mcp_definitions SET approved_by = CASE WHEN approved_at IS NULL THEN $1 ELSE approved_by END, \
                 approved_at = coalesce(approved_at, $2) WHERE server = $3 AND tool = $4 AND digest = $5",
            )
            .bind(&entry.user)
            .bind(entry.at)
            .bind(&server)
            .bind(&tool)
            .bind(&digest)
            .execute(&mut tx.db)
            .await?;
            if changed.rows_affected() == 0 {
                return Ok(DefinitionApproval::NotFound);
            }
            sqlx::query(
                "DELETE FROM mcp_definitions WHERE server = $1 AND tool = $2 AND approved_at IS NOT NULL AND digest NOT IN \
                 (SELECT digest FROM mcp_definitions WHERE server = $1 AND tool = $2 AND approved_at IS NOT NULL \
                 ORDER BY approved_at DESC LIMIT $3)",
            )
            .bind(&server)
            .bind(&tool)
            .bind(MAX_APPROVED)
            .execute(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            Ok(DefinitionApproval::Approved)
        }))
        .await
    }
}

const fn of_approval(is_approved: bool) -> DefinitionStatus {
    if is_approved { DefinitionStatus::Approved } else { DefinitionStatus::Withheld }
}

async fn record(
    db: &mut Connection,
    server: &str,
    seen: &[SeenDefinition],
    at: DateTime<Utc>,
) -> Result<Vec<DefinitionStatus>, StoreError> {
    let known: Vec<(String, String, bool)> =
        sqlx::query_as("SELECT tool, digest, approved_at IS NOT NULL FROM mcp_definitions WHERE server = $1")
            .bind(server)
            .fetch_all(&mut *db)
            .await?;
    let mut tools: HashSet<&str> = known.iter().map(|(tool, _, _)| tool.as_str()).collect();
    let mut statuses = Vec::with_capacity(seen.len());
    for one in seen {
        let same = known.iter().find(|(tool, digest, _)| *tool == one.tool && *digest == one.digest);
        let is_first = !tools.contains(one.tool.as_str());
        statuses.push(match same {
            Some((_, _, is_approved)) => of_approval(*is_approved),
            None if is_first && tools.len() >= MAX_TOOLS => DefinitionStatus::TooMany,
            None => {
                tools.insert(&one.tool);
                insert(db, server, one, (at, is_first)).await?;
                of_approval(is_first)
            }
        });
    }
    Ok(statuses)
}

async fn insert(
    db: &mut Connection,
    server: &str,
    seen: &SeenDefinition,
    (at, is_first): (DateTime<Utc>, bool),
) -> Result<(), StoreError> {
    // Only the last definition that waits for an approval is kept.
    sqlx::query("DELETE FROM mcp_definitions WHERE server = $1 AND tool = $2 AND approved_at IS NULL")
        .bind(server)
        .bind(&seen.tool)
        .execute(&mut *db)
        .await?;
    sqlx::query(
        "INSERT INTO mcp_definitions (server, tool, digest, definition, first_seen_at, approved_at) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(server)
    .bind(&seen.tool)
    .bind(&seen.digest)
    .bind(&seen.definition)
    .bind(at)
    .bind(is_first.then_some(at))
    .execute(db)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests;
