//! `/api/gates`: tool calls of chat threads that wait for a person.

use axum::{Json, extract::State};
use domain::{
    chat::ThreadRef,
    gate::{GateRefused, GateResolver, MAX_REASON_BYTES},
};
use protocol::{ErrorCode, Gate, GateId, GateResolution, GateState, Page, ResolveGate, ResolveThreadGate};
use serde::Deserialize;
use store::{GateAnswer, GateFilter, GateOutcome, GateTarget};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{ApiJson, ApiPath, ApiQuery, AuditedCaller, Caller, audited, cursor, filter, visible},
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .merge(audited("gate.resolve", routes!(resolve)))
        .merge(audited("gate.resolve", routes!(approval)))
        .merge(audited("gate.resolve", routes!(gate)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// A state, or several separated by commas; default `pending`.
    state: Option<String>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists gates, newest first.
///
/// A gate is a tool call of a chat thread that waits for a person. Admins see the gates of all users.
#[utoipa::path(
    get, path = "/api/gates", operation_id = "list_gates", tag = "gates", params(ListParams),
    responses(
        (status = 200, body = Page<Gate>, description = "A page."),
    )
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<Page<Gate>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let states = params.state.as_deref().filter(|asked| !asked.is_empty()).unwrap_or(GateState::Pending.as_str());
    let filter = GateFilter {
        user: (!who.role.sees_all()).then(|| who.user.clone()),
        states: filter::names("state", Some(states), GateState::ALL, GateState::as_str)?,
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<GateId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let gates = api.store.gates(&filter).await?;
    Ok(Json(cursor::page(gates, limit, ToString::to_string)))
}

/// Gets a gate.
///
/// It shows the tool, the arguments of the call, and who resolved the gate.
#[utoipa::path(
    get, path = "/api/gates/{id}", operation_id = "get_gate", tag = "gates",
    params(("id" = String, Path, description = "Gate id.")),
    responses(
        (status = 200, body = Gate, description = "The gate."),
    )
)]
async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<GateId>,
) -> Result<Json<Gate>, ApiError> {
    visible(&who, api.store.gate(id).await?, |gate| &gate.user_id).map(Json)
}

/// Approves or denies a tool call that waits.
///
/// The first answer takes effect; later ones are 409 `gate_resolved`. With `approve` exactly the parked call runs, with
/// `deny` the model reads the reason. `always` approves the call and later calls of the tool, in the thread or, with
/// `scope: "user"`, in all threads; where that cannot be remembered it counts as `approve` and `remembered` is false. An
/// admin can deny the calls of other users and cannot approve them.
#[utoipa::path(
    post, path = "/api/gates/{id}/resolve", operation_id = "resolve_gate", tag = "gates",
    params(("id" = String, Path, description = "Gate id.")),
    request_body(content = ResolveGate, example = json!({"decision": "approve"})),
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
async fn resolve(
    State(api): State<PublicApi>,
    caller: AuditedCaller,
    ApiPath(id): ApiPath<GateId>,
    ApiJson { value: decision, .. }: ApiJson<ResolveGate>,
) -> Result<Json<GateResolution>, ApiError> {
    let gate = api.store.gate(id).await?.ok_or_else(ApiError::not_found)?;
    answer(&api, caller, &gate.user_id, GateTarget::Gate(id), decision).await
}

/// Resolves a gate of `owner` by the caller's decision.
async fn answer(
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

/// Approves or denies the tool call that a thread waits for.
///
/// Like `POST /api/gates/{id}/resolve`, for the last gate of a thread.
#[utoipa::path(
    post, path = "/api/chat/approval", operation_id = "resolve_thread_approval", tag = "gates",
    request_body(content = ResolveThreadGate, example = json!({"thread_id": "main", "decision": "approve"})),
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 404, description = "There is no such thread, or no call of it waits."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
async fn approval(
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
    request_body(content = ResolveThreadGate, example = json!({"thread_id": "main", "decision": "approve"})),
    responses(
        (status = 200, body = GateResolution, description = "The gate is resolved, and its thread goes on."),
        (status = 404, description = "There is no such thread, or no call of it waits."),
        (status = 409, description = "`gate_resolved`, `gate_expired` or `gate_digest_mismatch`; nothing changed."),
    )
)]
async fn gate(
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
    let thread = api.store.chat_thread(&caller.who.user, &thread).await?;
    let thread = visible(&caller.who, thread, |thread| &thread.user)?;
    let decision = ResolveGate { decision, reason, scope, parameters_digest };
    answer(api, caller, &thread.user, GateTarget::Thread(thread.thread.id), decision).await
}
