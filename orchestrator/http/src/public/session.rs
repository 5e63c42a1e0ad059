//! `/api/session`, `/api/sessions` and `/api/whoami`: sessions of browsers, opened by a one-time code or a token.
//!
//! Owns their times and the limit of failed logins. What makes a cookie count is `request::browser`'s.

use std::time::Duration;

use auth::{Identity, Role, TokenError, new_jti, random_secret};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};
use base::{
    digest::sha256_hex,
    rate_limit::{Bucket, Rate},
};
use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use protocol::{ErrorCode, OpenSession, OpenedSession, Page, SessionCode, SessionSummary, WhoAmI};
use store::{
    AuditEntry,
    sessions::{self, NewSession, Opening, SessionGrant},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{
        ApiJson, ApiPath, AuditedCaller, Caller, RpcCaller, audited,
        browser::{CookieKind, KEY_HEADER, SessionCookie, is_same_origin},
        session_of,
    },
};
use crate::{layers::RequestContext, problem::ApiError};

/// The longest session.
const SESSION_TTL: TimeDelta = TimeDelta::days(7);
/// A session that is not used for so long ends.
const IDLE_TTL: TimeDelta = TimeDelta::hours(12);
/// A cookie is renewed when half of its time is over.
const RENEW_AFTER: TimeDelta = TimeDelta::hours(6);
/// How exact the time of the last use is.
const TOUCH_EVERY: TimeDelta = TimeDelta::minutes(5);
/// Failed logins of all clients together. Codes have 128 bits: this is for the log, not against guessing.
const FAILED_LOGINS: Rate = Rate { burst: 100, per_hour: 6_000 };
/// Characters of a browser's name that are kept.
const MAX_AGENT_CHARS: usize = 200;
/// Used, expired and unknown codes, and all kinds of invalid tokens, have the same answer.
const REFUSED: &str = "the link was used or has expired, or the token is invalid; `gantry dashboard` prints a new link";

/// The limit of failed logins.
pub(in crate::public) struct FailedLogins(Mutex<Bucket>);

impl Default for FailedLogins {
    fn default() -> Self {
        Self(Mutex::new(Bucket::full(FAILED_LOGINS, Duration::ZERO)))
    }
}

impl FailedLogins {
    /// The answer to a failed login.
    fn refuse(&self, now: Duration) -> ApiError {
        match self.0.lock().take(FAILED_LOGINS, 1, now) {
            Ok(()) => ApiError::unauthorized(REFUSED),
            Err(wait) => {
                ApiError::new(ErrorCode::RateLimited, "too many failed logins: try again later").with_retry_after(wait)
            }
        }
    }
}

/// `/api/whoami`, and the sessions where there is a dashboard.
pub(super) fn routes(has_dashboard: bool) -> OpenApiRouter<PublicApi> {
    let whoami = OpenApiRouter::new().routes(routes!(whoami));
    if !has_dashboard {
        return whoami;
    }
    whoami
        .routes(routes!(open, whoami_session, end_current))
        .routes(routes!(create_code))
        .routes(routes!(list))
        .merge(audited("session.end", routes!(end)))
}

/// Makes a one-time link to the dashboard.
///
/// The code opens one session of the caller, within 10 minutes. It belongs into the fragment of the login page's URL,
/// `/login#code=…`, which browsers send to no server.
#[utoipa::path(
    post, path = "/api/session/codes", operation_id = "create_session_code", tag = "session",
    responses((status = 201, body = SessionCode, description = "The code. It is shown once."))
)]
async fn create_code(
    State(api): State<PublicApi>,
    RpcCaller { who, entry }: RpcCaller,
) -> Result<(StatusCode, Json<SessionCode>), ApiError> {
    let now = api.clock.now();
    let (origin_jti, session_id, ends) = if who.is_session {
        // What comes from a session ends with the token of that one.
        let session = sessions::find(&api.store, &who.jti).await?.ok_or_else(no_session)?;
        (session.origin_jti, Some(session.id), session.expires_at)
    } else {
        (Some(who.jti), None, who.expires_at)
    };
    let (role, expires_at) = (who.role.as_str().to_owned(), ends.min(now + SESSION_TTL));
    let grant = SessionGrant { user_id: who.user, role, origin_jti, expires_at };
    let entry = AuditEntry { action: "session.code".to_owned(), ..entry };
    let code = sessions::create_code(&api.store, random_secret(), (grant, session_id), now, entry).await?;
    Ok((StatusCode::CREATED, Json(code)))
}

/// Opens a session.
///
/// The answer sets a cookie that counts on this server's own pages only, and has the key that each change must send in the
/// header `X-Gantry-Key`. The session has the user and the role of the token, or of the one who made the code, lasts at
/// most 7 days, ends after 12 hours without use, and ends when that token does. A session that the browser has, and whose
/// key the request names, ends.
#[utoipa::path(
    post, path = "/api/session", operation_id = "open_session", tag = "session", security(()),
    request_body(content = OpenSession, example = json!({"code": "mB3uT0a1pX9e2VQwZ7rK5g"})),
    responses(
        (status = 200, body = OpenedSession, description = "The session is open."),
        (status = 401, description = "The code was used or has expired, or the code or the token is invalid."),
        (status = 403, description = "Another site's page made the request (`cross_origin`)."),
    )
)]
async fn open(
    State(api): State<PublicApi>,
    context: RequestContext,
    method: Method,
    headers: HeaderMap,
    ApiJson { value: body, .. }: ApiJson<OpenSession>,
) -> Result<Response, ApiError> {
    // Another site must not log a browser in as another user either.
    if !is_same_origin(&method, &headers) {
        return Err(ApiError::cross_origin());
    }
    let now = api.clock.now();
    let refused = || api.limits.failed_logins.refuse(api.clock.monotonic());
    let opening = match body {
        OpenSession::Code(code) => Opening::Code(code.trim().to_owned()),
        OpenSession::Token(token) => {
            let verified = api.key.verify(token.trim(), now);
            // The user of an expired token is known as well, for the audit of the refusal.
            if let Err(TokenError::Expired) = &verified
                && let Ok(who) = api.key.identity_ignoring_time(token.trim())
            {
                context.identify(&who);
            }
            let who = verified.map_err(|error| refused().with_source(error))?;
            context.identify(&who);
            let expires_at = who.expires_at.min(now + SESSION_TTL);
            let role = who.role.as_str().to_owned();
            Opening::Token(SessionGrant { user_id: who.user, role, origin_jti: Some(who.jti), expires_at })
        }
    };
    let (id, key) = (new_jti(), random_secret());
    let address = context.from().map(|peer| peer.0.ip().to_string());
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let session = NewSession {
        id: id.clone(),
        key_digest: sha256_hex(key.as_bytes()),
        created_at: now,
        address: address.clone(),
        agent: agent.map(|agent| agent.chars().take(MAX_AGENT_CHARS).collect()),
    };
    let (request_id, jti) = (context.id().to_owned(), id.clone());
    let entry = AuditEntry {
        at: now,
        user: String::new(),
        role: Role::Viewer.into(),
        action: "session.open".to_owned(),
        job: None,
        request_id: Some(request_id),
        jti: Some(jti),
        source: address,
    };
    let of_previous = entry.clone();
    let entry = move |grant: &SessionGrant| AuditEntry {
        user: grant.user_id.clone(),
        role: Role::parse(&grant.role).unwrap_or(Role::Viewer).into(),
        ..entry.clone()
    };
    let Some(grant) = sessions::open(&api.store, opening, session, entry).await? else { return Err(refused()) };
    let previous = if headers.contains_key(KEY_HEADER) { session_of(&api, &headers).await?.1.ok() } else { None };
    if let Some(Identity { user, role, jti, .. }) = previous {
        let entry = AuditEntry { user: user.clone(), role: role.into(), ..of_previous };
        sessions::end(&api.store, &user, &jti, ended(&jti, entry)).await?;
    }
    let role = Role::parse(&grant.role).ok_or_else(|| ApiError::internal("a session has an unknown role"))?;
    let who = Identity { user: grant.user_id, role, jti: id, is_session: true, expires_at: grant.expires_at };
    context.identify(&who);
    let cookie = cookie_for(&api, &who, CookieKind::of_page(&headers), now)?;
    let opened = OpenedSession { who: api.who_am_i(who), key };
    Ok(([(header::SET_COOKIE, cookie)], Json(opened)).into_response())
}

/// Returns who the session belongs to.
///
/// Renews the cookie when half of its 12 hours are over.
#[utoipa::path(
    get, path = "/api/session", operation_id = "get_session", tag = "session",
    responses(
        (status = 200, body = WhoAmI, description = "The session of this browser."),
        (status = 401, description = "The request has no session, or it has ended."),
    )
)]
async fn whoami_session(
    State(api): State<PublicApi>,
    context: RequestContext,
    Caller(who): Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let now = api.clock.now();
    let session = sessions::find(&api.store, &who.jti).await?.ok_or_else(no_session)?;
    // A cookie has whole seconds.
    let may_last = who.expires_at.timestamp() < session.expires_at.timestamp();
    let is_due = who.expires_at - now < IDLE_TTL - RENEW_AFTER && may_last;
    if is_due || session.last_used_at + TOUCH_EVERY <= now {
        let address = context.from().map(|peer| peer.0.ip().to_string());
        sessions::touch(&api.store, &who.jti, address, now).await?;
    }
    let who = Identity { expires_at: session.expires_at, ..who };
    // The page's address is not in this request: the new cookie is of the same kind as the old one.
    let of_session = |value| api.key.verify_session(value, now).is_ok_and(|one| one.jti == who.jti);
    let old = SessionCookie::new(api.instance).values(&headers).find(|(_, value)| of_session(value));
    let kind = old.map_or(CookieKind::Plain, |(kind, _)| kind);
    let cookie = is_due.then(|| cookie_for(&api, &who, kind, now)).transpose()?;
    let cookie = cookie.map(|cookie| [(header::SET_COOKIE, cookie)]);
    Ok((cookie, Json(api.who_am_i(who))).into_response())
}

/// Ends the session of this browser.
///
/// The answer removes the cookie.
#[utoipa::path(
    delete, path = "/api/session", operation_id = "end_session", tag = "session",
    responses((status = 204, description = "The session has ended, and the cookie is removed."))
)]
async fn end_current(State(api): State<PublicApi>, RpcCaller { who, entry }: RpcCaller) -> Result<Response, ApiError> {
    if !sessions::end(&api.store, &who.user, &who.jti, ended(&who.jti, entry)).await? {
        return Err(no_session());
    }
    let cookie = SessionCookie::new(api.instance);
    let removed = [CookieKind::Secure, CookieKind::Plain].map(|kind| (header::SET_COOKIE, cookie.set("", 0, kind)));
    Ok((StatusCode::NO_CONTENT, AppendHeaders(removed)).into_response())
}

/// Lists the caller's open sessions, the last used first.
///
/// With where each was used last. They are not paged, since a user has at most 64.
#[utoipa::path(
    get, path = "/api/sessions", operation_id = "list_sessions", tag = "session",
    responses((status = 200, body = Page<SessionSummary>, description = "All of them, at most 64."))
)]
async fn list(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<Page<SessionSummary>>, ApiError> {
    let now = api.clock.now();
    let rows = sessions::list(&api.store, &who.user, now - IDLE_TTL, now).await?;
    let items = rows.into_iter().map(|row| SessionSummary {
        current: row.id == who.jti,
        id: row.id,
        created_at: row.created_at,
        last_used_at: row.last_used_at,
        expires_at: row.expires_at,
        address: row.address,
        agent: row.agent,
    });
    Ok(Json(Page { items: items.collect(), next_cursor: None }))
}

/// Ends one of the caller's sessions.
///
/// Its next request is answered with 401, and its open streams end within 15 seconds. A viewer ends only the session that it
/// uses, with `DELETE /api/session`.
#[utoipa::path(
    delete, path = "/api/sessions/{id}", operation_id = "end_session_by_id", tag = "session",
    params(("id" = String, Path, description = "The session's id.")),
    responses((status = 204, description = "It has ended."))
)]
async fn end(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    if sessions::end(&api.store, &who.user, &id, ended(&id, entry)).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::not_found())
}

/// Returns who the caller is.
///
/// The user, the role and the end of the token or session, and the version, instance and time of the server.
#[utoipa::path(
    get, path = "/api/whoami", operation_id = "who_am_i", tag = "session",
    responses((status = 200, body = WhoAmI, description = "The user and the role of the token or session."))
)]
async fn whoami(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<WhoAmI>, ApiError> {
    let session = if who.is_session { sessions::find(&api.store, &who.jti).await? } else { None };
    let expires_at = session.map_or(who.expires_at, |session| session.expires_at);
    Ok(Json(api.who_am_i(Identity { expires_at, ..who })))
}

impl PublicApi {
    fn who_am_i(&self, who: Identity) -> WhoAmI {
        WhoAmI {
            role: who.role.as_str().to_owned(),
            user: who.user,
            session_id: who.is_session.then_some(who.jti),
            expires_at: who.expires_at,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance,
            now: self.clock.now(),
        }
    }
}

/// The cookie of a session: it ends when the session is not used, or with it.
fn cookie_for(api: &PublicApi, who: &Identity, kind: CookieKind, now: DateTime<Utc>) -> Result<String, ApiError> {
    let expires_at = who.expires_at.min(now + IDLE_TTL);
    let value = api.key.issue_session(&Identity { expires_at, ..who.clone() }, now).map_err(ApiError::internal)?;
    Ok(SessionCookie::new(api.instance).set(&value, (expires_at - now).num_seconds(), kind))
}

/// The audit entry of the end of this session.
fn ended(id: &str, entry: AuditEntry) -> AuditEntry {
    AuditEntry { action: "session.end".to_owned(), jti: Some(id.to_owned()), ..entry }
}

fn no_session() -> ApiError {
    ApiError::unauthorized("the request has no session")
}
