//! Authentication and authorization of callers: a valid token or session that is not revoked, and what its role allows.

use std::{convert::Infallible, sync::Arc};

use auth::{Identity, TokenError};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use base::digest::sha256_hex;
use domain::job::JobRecord;
use protocol::{ErrorCode, JobId};
use store::{Store, StoreError, TokenChecked, sessions, tokens};

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
        if let Some(token) = bearer(parts) {
            return identity_of_token(parts, api, token).map(Self);
        }
        if has_cookie(parts, api) {
            return identity_of_session(parts, api).await.map(Self);
        }
        Err(ApiError::unauthorized(
            "missing token: send Authorization: Bearer TOKEN (create one with `gantry token create`)",
        ))
    }
}

fn identity_of_token(parts: &Parts, api: &PublicApi, token: &str) -> Result<Identity, ApiError> {
    let verified = api.key.verify(token, api.clock.now());
    // The user of an expired token is known as well, for the audit and the log.
    let known = match &verified {
        Ok(identity) => Some(identity.clone()),
        Err(TokenError::Expired | TokenError::NotYet) => api.key.identity_ignoring_time(token).ok(),
        Err(_) => None,
    };
    identify(parts, known.as_ref());
    verified.map_err(|error| ApiError::unauthorized(INVALID_TOKEN).with_source(error))
}

async fn identity_of_session(parts: &Parts, api: &PublicApi) -> Result<Identity, ApiError> {
    let (known, found) = session_of(api, &parts.headers).await?;
    identify(parts, known.as_ref());
    let identity = found?;
    let may_change = is_safe(&parts.method) || parts.headers.contains_key(KEY_HEADER);
    if may_change && is_same_origin(&parts.method, &parts.headers) {
        Ok(identity)
    } else {
        Err(ApiError::cross_origin())
    }
}

/// The open session whose key the request names, or the first one if it names none, and whose it is, also of one that has
/// ended. Other servers on this host can set cookies that come before it.
pub(in crate::public) async fn session_of(
    api: &PublicApi,
    headers: &HeaderMap,
) -> Result<(Option<Identity>, Result<Identity, ApiError>), StoreError> {
    let now = api.clock.now();
    let key = headers.get(KEY_HEADER).map(|key| sha256_hex(key.as_bytes()));
    let (mut known, mut refused) = (None, ApiError::unauthorized(INVALID_TOKEN));
    for (_, cookie) in SessionCookie::new(api.instance).values(headers) {
        let identity = match api.key.verify_session(cookie, now) {
            Ok(identity) => identity,
            Err(error) => {
                refused = refused.with_source(error);
                continue;
            }
        };
        match sessions::find(&api.store, &identity.jti).await? {
            Some(session) if key.as_ref().is_none_or(|digest| *digest == session.key_digest) => {
                return Ok((Some(identity.clone()), Ok(identity)));
            }
            Some(_) => refused = ApiError::cross_origin(),
            None => {}
        }
        known.get_or_insert(identity);
    }
    Ok((known, Err(refused)))
}

fn identify(parts: &Parts, caller: Option<&Identity>) {
    if let (Some(context), Some(caller)) = (parts.extensions.get::<RequestContext>(), caller) {
        context.identify(caller);
    }
}

fn has_cookie(parts: &Parts, api: &PublicApi) -> bool {
    api.has_dashboard && SessionCookie::new(api.instance).values(&parts.headers).next().is_some()
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
        if bearer(parts).is_none() && !has_cookie(parts, api) {
            return Ok(Self(None));
        }
        Ok(Self(Caller::from_request_parts(parts, api).await.ok().map(|Caller(identity)| identity)))
    }
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
