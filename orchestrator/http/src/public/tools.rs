//! The tools of a user, and the decisions about them.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use protocol::{
    AdminToolPolicy, ErrorCode, PermissionState, SetPermission, ToolPage, ToolSummary, UnavailableMcpTools,
};
use serde_json::Value;
use store::StoredPolicy;
use tools::UserTool;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{Admin, ApiJson, ApiPath, AuditedCaller, Caller, audited},
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .merge(audited("tool.permission", routes!(set_permission)))
        .routes(routes!(get_policy))
        .merge(audited("tool.policy", routes!(set_policy)))
}

/// Lists the tools that the caller's chats and jobs can use.
///
/// Tools that the operator has disabled are absent. All tools are in one page. MCP servers whose tools cannot be listed for the caller, and
/// tools of them that cannot be used, are in `unavailable`, with the reason.
#[utoipa::path(
    get, path = "/api/tools", operation_id = "list_tools", tag = "tools",
    responses((status = 200, body = ToolPage, description = "The tools, ordered by name."))
)]
async fn list(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<ToolPage>, ApiError> {
    let policy = api.store.tool_policy_of(&who.user).await?;
    let tools = api.tools.all_of(&who.user).await.into_iter();
    let permitted = tools.filter(|tool| policy.permits(&tool.definition.name, tool.requirement));
    let items: Vec<ToolSummary> = permitted.map(|tool| summary(tool, &policy.permissions)).collect();
    let mut unavailable = api.tools.mcp().unavailable_to(&who.user);
    unavailable.extend(refused_by_providers(&api, &items));
    Ok(Json(ToolPage { items, next_cursor: None, unavailable }))
}

/// Those of MCP servers whose definitions a model provider refuses. They are left out of the requests to it.
fn refused_by_providers(api: &PublicApi, tools: &[ToolSummary]) -> Vec<UnavailableMcpTools> {
    let mut refused = Vec::new();
    for provider in api.gateway.health() {
        for (model, dialect) in &provider.learned {
            let names = dialect["left_out_tools"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for tool in names.filter_map(|name| tools.iter().find(|tool| tool.name == name)) {
                let Some(server) = tool.source.strip_prefix("mcp:") else { continue };
                let prefix = format!("{server}__");
                let name = tool.name.strip_prefix(&prefix).unwrap_or(&tool.name).to_owned();
                let reason = format!(
                    "the model provider {} refuses the tool's definition for {model}, so that this model does not have \
                     it; simplify its input schema at the server",
                    provider.name
                );
                refused.push(UnavailableMcpTools { server: server.to_owned(), tool: Some(name), reason });
            }
        }
    }
    refused
}

/// A tool with its permission among these.
fn summary(tool: UserTool, permissions: &BTreeMap<String, PermissionState>) -> ToolSummary {
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

/// Sets the caller's permission for a tool.
///
/// `always_allow` never skips the approval of a call that always requires one. `ask_each_time` has no effect where no person can be
/// asked. `disabled` refuses every call, in chats, routines and jobs.
#[utoipa::path(
    put, path = "/api/tools/{name}/permission", operation_id = "set_tool_permission", tag = "tools",
    params(("name" = String, Path, description = "The tool's name.")),
    request_body(content = SetPermission, example = json!({"permission": "ask_each_time"})),
    responses(
        (status = 200, body = ToolSummary, description = "The permission is set."),
        (status = 404, description = "There is no such tool, or the operator has disabled it."),
    )
)]
async fn set_permission(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(name): ApiPath<String>,
    ApiJson { value: SetPermission { permission }, .. }: ApiJson<SetPermission>,
) -> Result<Json<ToolSummary>, ApiError> {
    let policy = api.store.tool_policy_of(&who.user).await?;
    let found = api.tools.all_of(&who.user).await.into_iter().find(|tool| tool.definition.name == name);
    let tool = found.filter(|tool| policy.permits(&name, tool.requirement)).ok_or_else(|| {
        ApiError::new(
            ErrorCode::NotFound,
            "there is no tool with this name; GET /api/tools and `gantry tool list` show them",
        )
    })?;
    api.store.set_tool_permission((&who.user, &name), permission, entry).await?;
    Ok(Json(summary(tool, &BTreeMap::from([(name, permission)]))))
}

/// Maximum size of a policy as JSON.
const MAX_POLICY_BYTES: usize = 32 * 1024;

/// Returns the operator's tool policy.
///
/// Admins only. It names the tools that are disabled for everyone and for single users.
#[utoipa::path(
    get, path = "/api/admin/tool-policy", operation_id = "get_tool_policy", tag = "tools",
    responses(
        (status = 200, body = AdminToolPolicy, description = "The policy; empty if none was set."),
        (status = 409, description = "The stored policy is invalid. Until it is replaced, only tools that never need approval are available."),
    )
)]
async fn get_policy(State(api): State<PublicApi>, Admin(_who): Admin) -> Result<Json<AdminToolPolicy>, ApiError> {
    match api.store.admin_tool_policy().await? {
        StoredPolicy::Valid(policy) => Ok(Json(policy)),
        StoredPolicy::Invalid => {
            Err(ApiError::new(ErrorCode::Conflict, "the stored tool policy is invalid; replace it with PUT"))
        }
    }
}

/// Replaces the operator's tool policy.
///
/// A disabled tool is not offered to any model and cannot run: for everyone (`disabled_tools`), or for single users
/// (`user_disabled_tools`). Names of tools that do not exist are kept: they apply once there is such a tool.
#[utoipa::path(
    put, path = "/api/admin/tool-policy", operation_id = "set_tool_policy", tag = "tools",
    request_body(content = AdminToolPolicy, example = json!({"disabled_tools": ["http"]})),
    responses((status = 200, body = AdminToolPolicy, description = "The policy is in effect for every call from now on."))
)]
async fn set_policy(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
    AuditedCaller { entry, .. }: AuditedCaller,
    ApiJson { value: policy, .. }: ApiJson<AdminToolPolicy>,
) -> Result<Json<AdminToolPolicy>, ApiError> {
    let bytes = serde_json::to_vec(&policy).map_err(ApiError::internal)?.len();
    if bytes > MAX_POLICY_BYTES {
        let detail = format!("the policy has {bytes} bytes of JSON; at most {MAX_POLICY_BYTES} are allowed");
        return Err(ApiError::new(ErrorCode::Invalid, detail));
    }
    api.store.set_admin_tool_policy(&policy, entry).await?;
    Ok(Json(policy))
}
