//! The audit's side of a request: what it does, by whom, from where; and the row of one that was refused.
//!
//! Owns the names of what people do. A change itself writes its row, in its own transaction; never what was said in it.

use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{Method, Uri, request::Parts},
    middleware::Next,
    response::Response,
};
use percent_encoding::percent_decode_str;
use protocol::{ErrorCode, JobId};
use tracing::Instrument as _;

use super::{PublicApi, caller::Writer};
use crate::{
    auth::Identity,
    http::{
        layers::RequestContext,
        problem::{ApiError, Carried},
    },
    store::AuditEntry,
};

/// What changes something, by method and route. What is not named here goes by method and route.
const ACTIONS: &[(&str, &str, &str)] = &[
    ("POST", "/api/jobs", "job.create"),
    ("POST", "/api/jobs/{id}/cancel", "job.cancel"),
    ("POST", "/api/jobs/{id}/prompt", "job.prompt"),
    ("POST", "/api/jobs/{id}/restart", "job.restart"),
    ("POST", "/api/jobs/{id}/accept", "job.accept"),
    ("POST", "/api/jobs/{id}/reject", "job.reject"),
    ("POST", "/api/jobs/{id}/start", "job.start"),
    ("PUT", "/api/jobs/{id}/files/{*path}", "files.write"),
    ("PUT", "/api/jobs/{id}/archive", "files.write"),
];

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
        let route = parts.extensions.get::<MatchedPath>();
        let asked = Asked::of(&parts.method, route, &parts.uri);
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
        let named = ACTIONS.iter().find(|(verb, path, _)| *verb == method.as_str() && *path == route);
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        let action = match named {
            Some((.., action)) => (*action).to_owned(),
            None if changes => format!("{method} {route}"),
            None => format!("read {route}"),
        };
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
    let asked = Asked::of(request.method(), request.extensions().get::<MatchedPath>(), request.uri());
    let context = request.extensions().get::<RequestContext>().cloned();
    let response = next.run(request).await;
    let Some(Carried(error)) = response.extensions().get::<Carried>() else { return response };
    let denied = error.is_foreign() || matches!(error.code(), ErrorCode::Forbidden | ErrorCode::Unauthorized);
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
