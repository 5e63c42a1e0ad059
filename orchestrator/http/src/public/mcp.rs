//! `/api/admin/mcp`: the MCP servers.

use axum::{Json, extract::State};
use protocol::{ApproveMcpTool, ErrorCode, McpServerSummary, McpToolSummary, Page};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{Admin, ApiJson, ApiPath, AuditedCaller, audited},
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(list)).merge(audited("mcp.approve", routes!(approve)))
}

/// Lists the MCP servers of the configuration with their tools.
///
/// A tool is `approved` if its definition is the first one that the server sent, or if an admin has approved it; `withheld` if the
/// server has changed its definition since; `refused` if its name or its definition is invalid. Only approved tools are offered to
/// models. All servers are in one page.
#[utoipa::path(
    get, path = "/api/admin/mcp", operation_id = "list_mcp_servers", tag = "tools",
    responses((status = 200, body = Page<McpServerSummary>, description = "The servers, ordered by name."))
)]
async fn list(State(api): State<PublicApi>, Admin(_who): Admin) -> Result<Json<Page<McpServerSummary>>, ApiError> {
    Ok(Json(Page { items: api.tools.mcp().overview().await?, next_cursor: None }))
}

/// Approves the changed definition of an MCP tool.
///
/// The tool is withheld since its server has changed the definition.
///
/// The digest names the definition, so that a later change is not approved by accident. Approving it again changes nothing.
#[utoipa::path(
    post, path = "/api/admin/mcp/{server}/approve", operation_id = "approve_mcp_tool", tag = "tools",
    params(("server" = String, Path, description = "The server's name.")),
    request_body(content = ApproveMcpTool, example = json!({"tool": "search", "digest": "0".repeat(64)})),
    responses(
        (status = 200, body = McpToolSummary, description = "Models are offered the tool with this definition from now on."),
        (status = 409, description = "The tool has no definition with this digest, or no longer. List the tools again."),
    )
)]
async fn approve(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
    AuditedCaller { entry, .. }: AuditedCaller,
    ApiPath(server): ApiPath<String>,
    ApiJson { value: body, .. }: ApiJson<ApproveMcpTool>,
) -> Result<Json<McpToolSummary>, ApiError> {
    let mcp = api.tools.mcp();
    if !mcp.server_names().contains(&server) {
        return Err(ApiError::not_found());
    }
    let changed = || {
        let detail =
            "the tool has no definition with this digest; list the tools again, because the server may have changed it";
        ApiError::new(ErrorCode::Conflict, detail)
    };
    if !mcp.approve(&server, &body, entry).await? {
        return Err(changed());
    }
    let known = mcp.overview().await?.into_iter().filter(|one| one.name == server).flat_map(|one| one.tools);
    known.into_iter().find(|tool| tool.name == body.tool).map(Json).ok_or_else(changed)
}
