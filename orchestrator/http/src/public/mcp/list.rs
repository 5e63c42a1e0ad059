//! `GET /api/admin/mcp`: the MCP servers and their tools.

use axum::{Json, extract::State};
use protocol::{McpServerSummary, Page};

use crate::{
    problem::ApiError,
    public::{PublicApi, caller::Admin},
};

/// Lists the MCP servers of the configuration with their tools.
///
/// A tool is `approved` if its definition is the first one that the server sent, or if an admin has approved it; `withheld` if the
/// server has changed its definition since; `refused` if its name or its definition is invalid. Only approved tools are offered to
/// models. All servers are in one page.
#[utoipa::path(
    get, path = "/api/admin/mcp", operation_id = "list_mcp_servers", tag = "tools",
    responses((status = 200, body = Page<McpServerSummary>, description = "The servers, ordered by name."))
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
) -> Result<Json<Page<McpServerSummary>>, ApiError> {
    Ok(Json(Page { items: api.tools.mcp().overview().await?, next_cursor: None }))
}
