//! The audit entry of a request: its action, its caller and its source; and the entries of refused requests.
//!
//! Owns the actions' names, which routes declare. A change writes its entry in its own transaction. An entry never contains a
//! request's body.

use auth::Identity;
use axum::{
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State},
    http::{Method, request::Parts},
    middleware::{self, Next},
    response::Response,
};
use protocol::{ErrorCode, JobId};
use store::AuditEntry;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::caller::{Caller, Writer};
use crate::{
    completion::run_to_completion,
    layers::RequestContext,
    problem::{ApiError, ErrorExtension},
    public::PublicApi,
};

/// Routes below it are about the job that the parameter names.
const JOB_ROUTE: &str = "/api/jobs/{id}";

/// The audited action of a route, carried in the extensions of its requests and responses.
#[derive(Debug, Clone, Copy)]
pub(in crate::public) struct AuditAction(&'static str);

/// Declares the audited action of `routes`.
pub(in crate::public) fn audited(
    action: &'static str,
    routes: UtoipaMethodRouter<PublicApi>,
) -> OpenApiRouter<PublicApi> {
    let action = AuditAction(action);
    OpenApiRouter::new()
        .routes(routes)
        .layer(middleware::from_fn(move |request, next| name_action(action, request, next)))
}

async fn name_action(action: AuditAction, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(action);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(action);
    response
}

/// A caller that may make changes, and the audit entry that the store writes together with the change.
pub(in crate::public) struct AuditedCaller {
    pub(in crate::public) who: Identity,
    pub(in crate::public) entry: AuditEntry,
}

impl FromRequestParts<PublicApi> for AuditedCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Writer(who) = Writer::from_request_parts(parts, api).await?;
        let Some(AuditAction(action)) = parts.extensions.get::<AuditAction>() else {
            return Err(ApiError::internal(format!("{} {} has no audit action", parts.method, parts.uri.path())));
        };
        let action = (*action).to_owned();
        let entry = AuditEntry { action, ..RequestedAction::entry_of(parts, api).await? };
        Ok(Self { who, entry })
    }
}

/// A caller of any role, and the audit entry of a change whose action the handler names.
pub(in crate::public) struct RpcCaller {
    pub(in crate::public) who: Identity,
    pub(in crate::public) entry: AuditEntry,
}

impl FromRequestParts<PublicApi> for RpcCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Caller(who) = Caller::from_request_parts(parts, api).await?;
        Ok(Self { who, entry: RequestedAction::entry_of(parts, api).await? })
    }
}

/// The action of a request and the job that it concerns.
struct RequestedAction {
    action: String,
    job: Option<JobId>,
    changes: bool,
}

impl RequestedAction {
    async fn of(parts: &mut Parts) -> Self {
        let params = RawPathParams::from_request_parts(parts, &()).await.ok();
        let route = parts.extensions.get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
        let method = &parts.method;
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        let action = if changes { format!("{method} {route}") } else { format!("read {route}") };
        let job = params.filter(|_| route.starts_with(JOB_ROUTE)).and_then(|params| {
            let (_, id) = params.iter().find(|(name, _)| *name == "id")?;
            id.parse().ok()
        });
        Self { action, job, changes }
    }

    async fn entry_of(parts: &mut Parts, api: &PublicApi) -> Result<AuditEntry, ApiError> {
        let Ok(context) = RequestContext::from_request_parts(parts, api).await;
        let entry = Self::of(parts).await.into_entry(api, &context);
        entry.ok_or_else(|| ApiError::internal("an audited request has no caller"))
    }

    fn into_entry(self, api: &PublicApi, context: &RequestContext) -> Option<AuditEntry> {
        let caller = context.caller()?;
        Some(AuditEntry {
            at: api.clock.now(),
            user: caller.user.clone(),
            role: caller.role.into(),
            action: self.action,
            job: self.job,
            request_id: Some(context.id().to_owned()),
            jti: Some(caller.jti.clone()),
            source: context.from().map(|peer| peer.0.ip().to_string()),
        })
    }
}

/// Records refused requests of known callers: every refused change, every read of another user's resource, and every use of an
/// expired or revoked token.
pub(in crate::public) async fn refusals(State(api): State<PublicApi>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut requested = RequestedAction::of(&mut parts).await;
    let request = Request::from_parts(parts, body);
    let context = request.extensions().get::<RequestContext>().cloned();
    let response = next.run(request).await;
    let Some(ErrorExtension(error)) = response.extensions().get::<ErrorExtension>() else { return response };
    if let Some(AuditAction(action)) = response.extensions().get() {
        (*action).clone_into(&mut requested.action);
    }
    let code = error.code();
    let denied =
        error.is_not_owner() || matches!(code, ErrorCode::Forbidden | ErrorCode::Unauthorized | ErrorCode::CrossOrigin);
    if !denied && !requested.changes {
        return response;
    }
    let Some(entry) = context.and_then(|context| requested.into_entry(&api, &context)) else {
        if matches!(code, ErrorCode::Unauthorized | ErrorCode::CrossOrigin) {
            api.metrics.request_unauthenticated();
        }
        return response;
    };
    if api.limits.refusals.take(&entry.user, 1, api.clock.monotonic()).is_err() {
        api.metrics.refusal_unrecorded();
        return response;
    }
    let store = api.store.clone();
    let recorded = async move {
        if let Err(error) = store.record_refused(&entry, code.as_str()).await {
            // The refusal is still sent to the caller.
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, action = entry.action, "the audit could not be written");
        }
        Ok(())
    };
    // An error was logged above.
    let _ = run_to_completion(&api.tasks, recorded).await;
    response
}
