//! The audit's side of a request: what it does, by whom, from where; and the row of one that was refused.
//!
//! Owns the names of what people do. A change itself writes its row, in its own transaction; never what was said in it.

use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{Method, Uri, request::Parts},
    middleware::{self, Next},
    response::Response,
};
use percent_encoding::percent_decode_str;
use protocol::{ErrorCode, JobId};
use tracing::Instrument as _;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::{PublicApi, caller::Writer};
use crate::{
    auth::Identity,
    http::{
        layers::RequestContext,
        problem::{ApiError, ErrorExtension},
    },
    store::AuditEntry,
};

/// The name of what a route does, in the extensions of its requests and responses.
#[derive(Debug, Clone, Copy)]
pub(super) struct AuditAction(&'static str);

/// Names what `routes` do, for the audit.
pub(super) fn audited(action: &'static str, routes: UtoipaMethodRouter<PublicApi>) -> OpenApiRouter<PublicApi> {
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

/// One who changes something, and what this request does, to be written down with the change that the store makes.
pub(super) struct Doer {
    pub(super) who: Identity,
    pub(super) deed: AuditEntry,
}

impl FromRequestParts<PublicApi> for Doer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Writer(who) = Writer::from_request_parts(parts, api).await?;
        let Ok(context) = RequestContext::from_request_parts(parts, api).await;
        let Some(AuditAction(action)) = parts.extensions.get::<AuditAction>() else {
            return Err(ApiError::internal(format!("{} {} has no audit action", parts.method, parts.uri.path())));
        };
        let asked = Asked { action: (*action).to_owned(), ..Asked::of(&parts.method, None, &parts.uri) };
        let deed = asked.deed(api, &context).ok_or_else(|| ApiError::internal("a deed of nobody's"))?;
        Ok(Self { who, deed })
    }
}

/// What a request is about.
struct Asked {
    action: String,
    job: Option<JobId>,
    changes: bool,
}

impl Asked {
    fn of(method: &Method, route: Option<&MatchedPath>, uri: &Uri) -> Self {
        let route = route.map_or("unmatched", MatchedPath::as_str);
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        let action = if changes { format!("{method} {route}") } else { format!("read {route}") };
        let job = uri.path().strip_prefix("/api/jobs/").and_then(|rest| {
            // As the router reads it.
            percent_decode_str(rest.split('/').next()?).decode_utf8().ok()?.parse().ok()
        });
        Self { action, job, changes }
    }

    fn deed(self, api: &PublicApi, context: &RequestContext) -> Option<AuditEntry> {
        let caller = context.caller()?;
        Some(AuditEntry {
            at: api.clock.now(),
            user: caller.user.clone(),
            role: caller.role.as_str().to_owned(),
            action: self.action,
            job: self.job,
            request_id: Some(context.id().to_owned()),
            jti: Some(caller.jti.clone()),
            source: context.from().map(|peer| peer.0.ip().to_string()),
        })
    }
}

/// Runs a change that is not the database's alone, with the record of it, to its end, whatever becomes of the client: a
/// request whose client has gone is dropped where it stands.
pub(super) async fn to_the_end<T: Send + 'static>(
    api: &PublicApi,
    change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    api.tasks.spawn(change.in_current_span()).await.map_err(ApiError::internal)?
}

/// Records what a known caller was refused: every change that was, every look at what is not theirs, and every use of a
/// token that is good no longer.
pub(super) async fn refusals(State(api): State<PublicApi>, request: Request, next: Next) -> Response {
    let mut asked = Asked::of(request.method(), request.extensions().get::<MatchedPath>(), request.uri());
    let context = request.extensions().get::<RequestContext>().cloned();
    let response = next.run(request).await;
    let Some(ErrorExtension(error)) = response.extensions().get::<ErrorExtension>() else { return response };
    if let Some(AuditAction(action)) = response.extensions().get() {
        (*action).clone_into(&mut asked.action);
    }
    let denied = error.is_not_owner() || matches!(error.code(), ErrorCode::Forbidden | ErrorCode::Unauthorized);
    if !denied && !asked.changes {
        return response;
    }
    let Some(deed) = context.and_then(|context| asked.deed(&api, &context)) else {
        if error.code() == ErrorCode::Unauthorized {
            api.metrics.request_unauthenticated();
        }
        return response;
    };
    if !api.refusals().take(&deed.user, api.clock.monotonic()) {
        api.metrics.refusal_unrecorded();
        return response;
    }
    let (store, code) = (api.store.clone(), error.code());
    let recorded = async move {
        if let Err(error) = store.record_refused(&deed, code.as_str()).await {
            // The caller hears the refusal all the same.
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, action = deed.action, "the audit could not be written");
        }
        Ok(())
    };
    // It has logged what went wrong.
    let _ = to_the_end(&api, recorded).await;
    response
}
