//! The servers and their tools as an admin sees them, and the approval of changed definitions.

use std::collections::BTreeMap;

use protocol::{ApproveMcpTool, McpServerSummary, McpToolStatus, McpToolSummary};
use serde_json::Value;

use super::McpTools;
use store::{AuditEntry, DefinitionApproval, StoreError, StoredDefinition};

/// Why a tool is withheld.
const CHANGED: &str = "the server has changed its definition";

impl McpTools {
    /// Every server of the configuration with its tools, ordered by name.
    pub async fn overview(&self) -> Result<Vec<McpServerSummary>, StoreError> {
        let mut stored: BTreeMap<String, Vec<StoredDefinition>> = BTreeMap::new();
        for row in self.store.mcp_definitions().await? {
            stored.entry(row.server.clone()).or_default().push(row);
        }
        let servers = self.catalog.client.servers();
        let views = servers.map(|server| {
            let status = self.catalog.client.status(&server.name);
            let refused = self.catalog.refused(&server.name);
            let refused = refused.iter().map(|tool| McpToolSummary {
                reason: Some(tool.reason.clone()),
                ..tool_view(tool.name.clone(), McpToolStatus::Refused)
            });
            McpServerSummary {
                name: server.name.clone(),
                transport: server.kind,
                address: server.address.clone(),
                requirement: server.requirement,
                connections: status.connections,
                error: status.error,
                stderr: status.stderr.filter(|stderr| !stderr.is_empty()),
                tools: known_tools(stored.remove(&server.name).unwrap_or_default()).chain(refused).collect(),
            }
        });
        Ok(views.collect())
    }

    /// Approves a definition that is withheld; false if the server's tool has no such definition.
    pub async fn approve(&self, server: &str, what: &ApproveMcpTool, entry: AuditEntry) -> Result<bool, StoreError> {
        let ApproveMcpTool { tool, digest } = what;
        match self.store.approve_mcp_definition((server, tool), digest, entry).await? {
            DefinitionApproval::Approved => {
                self.catalog.approved(server);
                Ok(true)
            }
            DefinitionApproval::NotFound => Ok(false),
        }
    }
}

/// One view for each tool: its withheld definition if it has one, otherwise the one that was approved last.
fn known_tools(rows: Vec<StoredDefinition>) -> impl Iterator<Item = McpToolSummary> {
    let mut tools: BTreeMap<String, (Option<StoredDefinition>, Option<StoredDefinition>)> = BTreeMap::new();
    for row in rows {
        let (approved, withheld) = tools.entry(row.tool.clone()).or_default();
        if row.approved_at.is_none() {
            *withheld = Some(row);
        } else if approved.as_ref().is_none_or(|earlier| earlier.approved_at <= row.approved_at) {
            *approved = Some(row);
        }
    }
    tools.into_values().filter_map(|(approved, withheld)| match (approved, withheld) {
        (approved, Some(withheld)) => Some(McpToolSummary {
            reason: Some(CHANGED.to_owned()),
            definition: parsed(&withheld.definition),
            approved_definition: approved.and_then(|approved| parsed(&approved.definition)),
            ..of_row(withheld, McpToolStatus::Withheld)
        }),
        (Some(approved), None) => Some(of_row(approved, McpToolStatus::Approved)),
        (None, None) => None,
    })
}

fn of_row(row: StoredDefinition, status: McpToolStatus) -> McpToolSummary {
    McpToolSummary {
        digest: Some(row.digest),
        first_seen_at: Some(row.first_seen_at),
        approved_at: row.approved_at,
        approved_by: row.approved_by,
        ..tool_view(row.tool, status)
    }
}

const fn tool_view(name: String, status: McpToolStatus) -> McpToolSummary {
    McpToolSummary {
        name,
        status,
        reason: None,
        digest: None,
        first_seen_at: None,
        approved_at: None,
        approved_by: None,
        definition: None,
        approved_definition: None,
    }
}

fn parsed(definition: &str) -> Option<Value> {
    serde_json::from_str(definition).ok()
}
