//! `GET /api/tools`: every tool, with the caller's permission.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use protocol::{PermissionState, ToolPage, ToolSummary};
use tools::UserTool;

use crate::{
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Lists the tools that the caller's chats and jobs can use.
///
/// Tools that the operator has disabled are absent. All tools are in one page. MCP servers whose tools cannot be listed for the caller are
/// in `unavailable`, with the reason.
#[utoipa::path(
    get, path = "/api/tools", operation_id = "list_tools", tag = "tools",
    responses((status = 200, body = ToolPage, description = "The tools, ordered by name."))
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
) -> Result<Json<ToolPage>, ApiError> {
    let policy = api.store.tool_policy_of(&who.user).await?;
    let tools = api.tools.all_of(&who.user).await.into_iter();
    let permitted = tools.filter(|tool| policy.permits(&tool.definition.name, tool.requirement));
    let items = permitted.map(|tool| summary(tool, &policy.permissions)).collect();
    let unavailable = api.tools.mcp().unavailable_to(&who.user);
    Ok(Json(ToolPage { items, next_cursor: None, unavailable }))
}

/// A tool with its permission among these.
pub(super) fn summary(tool: UserTool, permissions: &BTreeMap<String, PermissionState>) -> ToolSummary {
    let UserTool { definition, requirement, source } = tool;
    ToolSummary {
        permission: permissions.get(&definition.name).copied().unwrap_or_default(),
        name: definition.name,
        description: definition.description,
        domain: definition.domain,
        requirement,
        parameters: definition.parameters,
        source,
    }
}
