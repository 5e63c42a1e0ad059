//! `POST /api/chat/approval` and `POST /api/chat/gate/resolve`: approves or denies the call that a thread waits for.

use axum::{Json, extract::State};
use protocol::{GateResolution, ResolveGate, ResolveThreadGate};

use super::resolve::answer;
use domain::chat::ThreadRef;
use store::GateTarget;

use crate::{
    extract::ApiJson,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Approves or denies the tool call that a thread waits for.
///
/// Like `POST /api/gates/{id}/resolve`, for the last gate of a thread.
#[utoipa::path(
    post, path = "/api/chat/approval", operation_id = "resolve_thread_approval", tag = "gates",
    request_body = ResolveThreadGate,
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 404, description = "There is no such thread, or no call of it waits."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
pub(in crate::public) async fn approval(
    State(api): State<PublicApi>,
    caller: AuditedCaller,
    ApiJson { value: request, .. }: ApiJson<ResolveThreadGate>,
) -> Result<Json<GateResolution>, ApiError> {
    of_thread(&api, caller, request).await
}

/// Approves or denies the tool call that a thread waits for.
///
/// The same as `POST /api/chat/approval`.
#[utoipa::path(
    post, path = "/api/chat/gate/resolve", operation_id = "resolve_thread_gate", tag = "gates",
    request_body = ResolveThreadGate,
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 404, description = "There is no such thread, or no call of it waits."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
pub(in crate::public) async fn gate(
    State(api): State<PublicApi>,
    caller: AuditedCaller,
    ApiJson { value: request, .. }: ApiJson<ResolveThreadGate>,
) -> Result<Json<GateResolution>, ApiError> {
    of_thread(&api, caller, request).await
}

async fn of_thread(
    api: &PublicApi,
    caller: AuditedCaller,
    request: ResolveThreadGate,
) -> Result<Json<GateResolution>, ApiError> {
    let ResolveThreadGate { thread_id, decision, reason, scope, parameters_digest } = request;
    let thread = ThreadRef::parse(&thread_id).ok_or_else(ApiError::not_found)?;
    let thread = api.store.chat_thread(&caller.who.user, &thread).await?.ok_or_else(ApiError::not_found)?;
    if !caller.who.may_see(&thread.user) {
        return Err(ApiError::not_owner());
    }
    let decision = ResolveGate { decision, reason, scope, parameters_digest };
    answer(api, caller, &thread.user, GateTarget::Thread(thread.thread.id), decision).await
}
