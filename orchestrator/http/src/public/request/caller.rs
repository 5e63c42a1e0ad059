//! Authentication and authorization of callers: a valid token or session that is not revoked, and what its role allows.

use std::{convert::Infallible, sync::Arc};

use auth::{Identity, TokenError};
use axum::{
    extract::FromRequestParts,
    http::{header, request::Parts},
};
use base::digest::sha256_hex;
use domain::job::JobRecord;
use protocol::{ErrorCode, JobId};
use store::{
    Store, StoreError, TokenChecked,
    sessions::{self, Session},
    tokens,
};

use super::browser::{KEY_HEADER, SessionCookie, is_safe, is_same_origin};
use crate::{layers::RequestContext, problem::ApiError, public::PublicApi, server::BodyReservation};

const INVALID_TOKEN: &str = "invalid, expired or revoked token";

/// An authenticated caller.
pub(in crate::public) struct Caller(pub(in crate::public) Identity);

/// A caller whose role may make changes.
pub(in crate::public) struct Writer(pub(in crate::public) Identity);

pub(in crate::public) struct Admin(pub(in crate::public) Identity);

/// A caller whose token is valid by its signature and its time. Whether it is revoked is found by the read that the request
/// makes, in one statement: [`Self::checked`] is the only way to the identity.
pub(in crate::public) struct UncheckedCaller(Identity);

impl UncheckedCaller {
    /// The identity, for the arguments of the read that checks the token.
    pub(in crate::public) const fn unchecked(&self) -> &Identity {
        &self.0
    }

    /// The value that was read, unless the token is revoked.
    pub(in crate::public) fn checked<T>(self, read: TokenChecked<T>) -> Result<(Identity, T), ApiError> {
        match read {
            TokenChecked::Valid(value) => Ok((self.0, value)),
            TokenChecked::Revoked => Err(ApiError::unauthorized(INVALID_TOKEN)),
        }
    }
}

impl FromRequestParts<PublicApi> for UncheckedCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let now = api.clock.now();
        let presented = Presented::by(parts, api).ok_or_else(|| {
            ApiError::unauthorized(
                "missing token: send Authorization: Bearer TOKEN (create one with `gantry token create`)",
            )
        })?;
        let verified = match presented {
            Presented::Token(token) => api.key.verify(token, now),
            Presented::Session(cookie) => api.key.verify_session(cookie, now),
        };
        // The user of an expired token is known as well, for the audit and the log.
        let known = match (&verified, presented) {
            (Ok(identity), _) => Some(identity.clone()),
            (Err(TokenError::Expired | TokenError::NotYet), Presented::Token(token)) => {
                api.key.identity_ignoring_time(token).ok()
            }
            (Err(_), _) => None,
        };
        let invalid = || ApiError::unauthorized(INVALID_TOKEN);
        if let Some(identity) = &known {
            let Ok(context) = RequestContext::from_request_parts(parts, api).await;
            context.identify(identity);
        }
        let identity = verified.map_err(|error| invalid().with_source(error))?;
        if identity.is_session {
            let session = sessions::find(&api.store, &identity.jti).await?.ok_or_else(invalid)?;
            check_origin(parts, &session)?;
        }
        Ok(Self(identity))
    }
}

impl FromRequestParts<PublicApi> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let UncheckedCaller(identity) = UncheckedCaller::from_request_parts(parts, api).await?;
        // A session was found while its origin was checked.
        if !identity.is_session && tokens::is_revoked(&api.store, &identity.jti).await? {
            return Err(ApiError::unauthorized(INVALID_TOKEN));
        }
        if let Some(body) = parts.extensions.get::<Arc<BodyReservation>>() {
            body.belongs_to(&identity.user);
        }
        Ok(Self(identity))
    }
}

/// Whether what a caller has presented was not revoked or ended since.
pub(in crate::public) async fn is_still_valid(store: &Store, who: &Identity) -> Result<bool, StoreError> {
    if who.is_session {
        return Ok(sessions::find(store, &who.jti).await?.is_some());
    }
    Ok(!tokens::is_revoked(store, &who.jti).await?)
}

/// An optional caller: one with a valid token sees more.
pub(in crate::public) struct MaybeCaller(pub(in crate::public) Option<Identity>);

impl FromRequestParts<PublicApi> for MaybeCaller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, Infallible> {
        if Presented::by(parts, api).is_none() {
            return Ok(Self(None));
        }
        Ok(Self(Caller::from_request_parts(parts, api).await.ok().map(|Caller(identity)| identity)))
    }
}

/// What a request presents as its caller. A token comes before a cookie.
#[derive(Clone, Copy)]
enum Presented<'r> {
    Token(&'r str),
    Session(&'r str),
}

impl<'r> Presented<'r> {
    fn by(parts: &'r Parts, api: &PublicApi) -> Option<Self> {
        let cookie = || SessionCookie::new(api.instance).read(&parts.headers).filter(|_| api.has_dashboard);
        bearer(parts).map(Self::Token).or_else(|| cookie().map(|(_, value)| Self::Session(value)))
    }
}

/// Refuses a request with a session that does not come from this server's own pages.
fn check_origin(parts: &Parts, session: &Session) -> Result<(), ApiError> {
    let key = parts.headers.get(KEY_HEADER).map(|key| sha256_hex(key.as_bytes()));
    let may_change = is_safe(&parts.method) || key.is_some_and(|digest| digest == session.key_digest);
    if may_change && is_same_origin(&parts.method, &parts.headers) {
        return Ok(());
    }
    Err(ApiError::cross_origin())
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl FromRequestParts<PublicApi> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Caller(identity) = Caller::from_request_parts(parts, api).await?;
        if identity.role.may_write() {
            return Ok(Self(identity));
        }
        Err(ApiError::new(ErrorCode::Forbidden, "insufficient role: changes need the role user or admin"))
    }
}

impl FromRequestParts<PublicApi> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Caller(identity) = Caller::from_request_parts(parts, api).await?;
        if identity.role.sees_all() {
            return Ok(Self(identity));
        }
        Err(ApiError::new(ErrorCode::Forbidden, "insufficient role: this needs the role admin"))
    }
}

/// What was found, if it exists and the caller may see it. The caller cannot tell a missing object from one of another user.
pub(in crate::public) fn visible<T>(
    who: &Identity,
    found: Option<T>,
    owner: impl FnOnce(&T) -> &str,
) -> Result<T, ApiError> {
    let found = found.ok_or_else(ApiError::not_found)?;
    if who.may_see(owner(&found)) { Ok(found) } else { Err(ApiError::not_owner()) }
}

/// The job, if it exists and the caller may see it.
pub(in crate::public) async fn authorize_job(
    api: &PublicApi,
    who: &Identity,
    id: JobId,
) -> Result<JobRecord, ApiError> {
    visible(who, api.store.job(id).await?, |job| &job.brief.user_id)
}
