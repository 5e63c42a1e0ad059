//! `POST /api/gates/{id}/resolve`: approves or denies a call.

use axum::{Json, extract::State};
use domain::gate::{GateRefused, GateResolver, MAX_REASON_BYTES};
use protocol::{ErrorCode, GateId, GateResolution, ResolveGate};
use store::{GateAnswer, GateOutcome, GateTarget};

use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Approves or denies a tool call that waits.
///
/// The first answer takes effect; later ones are 409 `gate_resolved`. With `approve` exactly the parked call runs, with
/// `deny` the model reads the reason. `always` approves the call and later calls of the tool, in the thread or, with
/// `scope: "user"`, in all threads; where that cannot be remembered it counts as `approve` and `remembered` is false. An
/// admin can deny the calls of other users and cannot approve them.
#[utoipa::path(
    post, path = "/api/gates/{id}/resolve", operation_id = "resolve_gate", tag = "gates",
    params(("id" = String, Path, description = "Gate id.")),
    request_body = ResolveGate,
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
pub(in crate::public) async fn resolve(
    State(api): State<PublicApi>,
    caller: AuditedCaller,
    ApiPath(id): ApiPath<GateId>,
    ApiJson { value: decision, .. }: ApiJson<ResolveGate>,
) -> Result<Json<GateResolution>, ApiError> {
    let gate = api.store.gate(id).await?.ok_or_else(ApiError::not_found)?;
    answer(&api, caller, &gate.user_id, GateTarget::Gate(id), decision).await
}

/// Resolves a gate of `owner` by the caller's decision.
pub(super) async fn answer(
    api: &PublicApi,
    AuditedCaller { who, entry }: AuditedCaller,
    owner: &str,
    target: GateTarget,
    decision: ResolveGate,
) -> Result<Json<GateResolution>, ApiError> {
    let reason = match &decision.reason {
        Some(reason) if reason.len() > MAX_REASON_BYTES => {
            return Err(ApiError::field("reason", format!("must be at most {MAX_REASON_BYTES} bytes")));
        }
        // It becomes part of the owner's events, and the model reads it. It may be an admin's.
        Some(reason) => {
            let own = api.detectors.of(&who.user).await?.redact(reason).0.into_owned();
            Some(api.detectors.of(owner).await?.redact(&own).0.into_owned())
        }
        None => None,
    };
    let decision = ResolveGate { reason, ..decision };
    let by = GateResolver { user: who.user, is_admin: who.role.sees_all() };
    match api.store.resolve_gate(target, GateAnswer { by, decision, entry }).await? {
        GateOutcome::Resolved(resolution) => Ok(Json(*resolution)),
        GateOutcome::NotFound => Err(ApiError::not_found()),
        GateOutcome::Refused(refused) => Err(error_of(refused)),
    }
}

fn error_of(refused: GateRefused) -> ApiError {
    let code = match refused {
        GateRefused::NotOwner => return ApiError::not_owner(),
        GateRefused::DenyOnly => ErrorCode::Forbidden,
        GateRefused::Resolved => ErrorCode::GateResolved,
        GateRefused::Expired => ErrorCode::GateExpired,
        GateRefused::DigestMismatch => ErrorCode::GateDigestMismatch,
    };
    ApiError::new(code, refused.to_string())
}
