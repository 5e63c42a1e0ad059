//! `/api/admin/mcp`: the MCP servers. Contents only.

pub(super) mod approve;
pub(super) mod list;
