//! `GET` and `PUT /api/admin/tool-policy`: the tools that the operator has disabled.

use axum::{Json, extract::State};
use protocol::{AdminToolPolicy, ErrorCode};
use store::StoredPolicy;

use crate::{
    extract::ApiJson,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller, caller::Admin},
};

/// Maximum size of a policy as JSON (contract: agent, Approvals).
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
pub(in crate::public) async fn get(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
) -> Result<Json<AdminToolPolicy>, ApiError> {
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
    request_body = AdminToolPolicy,
    responses((status = 200, body = AdminToolPolicy, description = "The policy is in effect for every call from now on."))
)]
pub(in crate::public) async fn set(
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
