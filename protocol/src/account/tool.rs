//! The tools of a user and the decisions about them: permissions and the operator's policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ToolDomain, names::wire_enum};

wire_enum! {
    /// Whether and how a user lets a tool run.
    #[derive(Default)]
    pub enum PermissionState {
        /// The tool's approval requirement decides.
        #[default]
        Default,
        /// In chat, calls run without asking, except those that always require approval.
        AlwaysAllow,
        /// In chat, every call asks.
        AskEachTime,
        /// Every call is refused.
        Disabled,
    }
}

wire_enum! {
    /// Whether a call needs a person's approval.
    pub enum ApprovalRequirement {
        /// The call runs.
        Never,
        /// In chat the call waits for approval unless the user always allows the tool; in an autonomous context it
        /// runs.
        UnlessAutoApproved,
        /// In chat every call waits for approval; in an autonomous context it runs only if the context names the tool.
        Always,
    }
}

/// A tool as its user sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolSummary {
    /// The tool's name.
    pub name: String,
    /// A description of the tool.
    pub description: String,
    /// Where the tool runs.
    pub domain: ToolDomain,
    /// The approval that a call needs; some parameters may require more.
    pub requirement: ApprovalRequirement,
    /// The user's permission.
    pub permission: PermissionState,
    /// JSON Schema of the parameters.
    pub parameters: Value,
    /// Where the tool comes from: `builtin`, or `mcp:` and the server's name.
    pub source: String,
}

/// `GET /api/tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolPage {
    /// The tools, ordered by name.
    pub items: Vec<ToolSummary>,
    /// Always `null`: all tools are in one page.
    pub next_cursor: Option<String>,
    /// MCP servers and single tools of them that are not available to the user now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<UnavailableMcpTools>,
}

/// Tools of an MCP server that are not available to a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnavailableMcpTools {
    /// The server's name.
    pub server: String,
    /// The tool, as the server names it, whose definition cannot be used; absent where none of the server's tools is available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Why, and what the user can do about it.
    pub reason: String,
}

/// `PUT /api/tools/{name}/permission`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetPermission {
    /// The new permission.
    pub permission: PermissionState,
}

/// The operator's policy about tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AdminToolPolicy {
    /// Tools that are disabled for all users.
    #[serde(default)]
    pub disabled_tools: Vec<String>,
    /// Tools that are disabled for single users, by user.
    #[serde(default)]
    pub user_disabled_tools: BTreeMap<String, Vec<String>>,
}
