//! MCP servers and their tools, as an admin sees them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ApprovalRequirement, names::wire_enum};

/// How an MCP server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum McpTransportKind {
    /// Streamable HTTP.
    Http,
    /// Standard input and output of a program in a container.
    Stdio,
}

wire_enum! {
    /// Whether a tool of an MCP server can be used.
    pub enum McpToolStatus {
        /// Its definition is approved.
        Approved,
        /// The server has changed its definition. An admin can approve it.
        Withheld,
        /// Its name or definition is invalid.
        Refused,
    }
}

/// An MCP server of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpServerSummary {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransportKind,
    /// The URL without its query, or the image.
    pub address: String,
    /// The approval that a call of its tools needs.
    pub requirement: ApprovalRequirement,
    /// Open connections, at most one for each user.
    pub connections: u32,
    /// The last error of a connection, if no connection has succeeded since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of what its program printed to its standard error, without secrets, if it does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Its tools: those that were ever seen, and those that its last answer had and that are refused.
    pub tools: Vec<McpToolSummary>,
}

/// A tool of an MCP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpToolSummary {
    /// The server's own name of the tool, shortened if it is too long.
    pub name: String,
    /// Whether it can be used.
    pub status: McpToolStatus,
    /// Why it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The digest of the definition that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When the server sent this definition for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<DateTime<Utc>>,
    /// When it was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<DateTime<Utc>>,
    /// Who approved it; none for a tool's first definition, which is approved when it is seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// The definition that is withheld, as the server sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
    /// The definition that was approved last, for comparison with the one that is withheld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_definition: Option<Value>,
}

/// `POST /api/admin/mcp/{server}/approve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApproveMcpTool {
    /// The server's own name of the tool.
    pub tool: String,
    /// The digest of the definition to approve, as it was listed.
    pub digest: String,
}
