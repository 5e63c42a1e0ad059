//! `POST /api/admin/mcp/{server}/approve`: approves the changed definition of a tool.

use axum::{Json, extract::State};
use protocol::{ApproveMcpTool, ErrorCode, McpToolSummary};

use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller, caller::Admin},
};

/// Approves the changed definition of an MCP tool.
///
/// The tool is withheld since its server has changed the definition.
///
/// The digest names the definition, so that a later change is not approved by accident. Approving it again changes nothing.
#[utoipa::path(
    post, path = "/api/admin/mcp/{server}/approve", operation_id = "approve_mcp_tool", tag = "tools",
    params(("server" = String, Path, description = "The server's name.")),
    request_body = ApproveMcpTool,
    responses(
        (status = 200, body = McpToolSummary, description = "Models are offered the tool with this definition from now on."),
        (status = 409, description = "The tool has no definition with this digest, or no longer. List the tools again."),
    )
)]
pub(in crate::public) async fn approve(
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
