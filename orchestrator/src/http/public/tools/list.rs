//! `GET /api/tools`: every tool, with the caller's permission.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use protocol::{ApprovalRequirement, Page, PermissionState, ToolDefinition, ToolSummary};

use crate::http::{
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Where the tools that are part of Gantry come from.
const BUILTIN: &str = "builtin";

/// Lists the tools that the caller's chats and jobs can use.
///
/// Tools that the operator has disabled are absent. All tools are in one page.
#[utoipa::path(
    get, path = "/api/tools", operation_id = "list_tools", tag = "tools",
    responses((status = 200, body = Page<ToolSummary>, description = "The tools, ordered by name."))
)]
pub(in crate::http::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
) -> Result<Json<Page<ToolSummary>>, ApiError> {
    let policy = api.store.tool_policy_of(&who.user).await?;
    let tools = api.tools.all().into_iter().filter(|(tool, requirement)| policy.permits(&tool.name, *requirement));
    let items = tools.map(|(tool, requirement)| summary(tool, requirement, &policy.permissions)).collect();
    Ok(Json(Page { items, next_cursor: None }))
}

/// A tool with its permission among these.
pub(super) fn summary(
    tool: ToolDefinition,
    requirement: ApprovalRequirement,
    permissions: &BTreeMap<String, PermissionState>,
) -> ToolSummary {
    ToolSummary {
        permission: permissions.get(&tool.name).copied().unwrap_or_default(),
        name: tool.name,
        description: tool.description,
        domain: tool.domain,
        requirement,
        parameters: tool.parameters,
        source: BUILTIN.to_owned(),
    }
}
