//! `PUT /api/tools/{name}/permission`: the caller's permission for a tool.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use protocol::{SetPermission, ToolSummary};

use super::list::summary;
use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Sets the caller's permission for a tool.
///
/// `always_allow` never skips the approval of a call that always requires one. `ask_each_time` has no effect where no person can be
/// asked. `disabled` refuses every call, in chats, routines and jobs.
#[utoipa::path(
    put, path = "/api/tools/{name}/permission", operation_id = "set_tool_permission", tag = "tools",
    params(("name" = String, Path, description = "The tool's name.")),
    request_body = SetPermission,
    responses(
        (status = 200, body = ToolSummary, description = "The permission is set."),
        (status = 404, description = "There is no such tool, or the operator has disabled it."),
    )
)]
pub(in crate::public) async fn set(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(name): ApiPath<String>,
    ApiJson { value: SetPermission { permission }, .. }: ApiJson<SetPermission>,
) -> Result<Json<ToolSummary>, ApiError> {
    let policy = api.store.tool_policy_of(&who.user).await?;
    let found = api.tools.all_of(&who.user).await.into_iter().find(|tool| tool.definition.name == name);
    let tool = found.filter(|tool| policy.permits(&name, tool.requirement)).ok_or_else(ApiError::not_found)?;
    api.store.set_tool_permission((&who.user, &name), permission, entry).await?;
    Ok(Json(summary(tool, &BTreeMap::from([(name, permission)]))))
}
