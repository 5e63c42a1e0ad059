//! Who calls: a good token that is not revoked, and what its role may do.

use axum::{
    extract::FromRequestParts,
    http::{header, request::Parts},
};
use protocol::{ErrorCode, JobId};

use super::PublicApi;
use crate::{
    auth::Identity,
    domain::job::JobRecord,
    http::{layers::RequestContext, problem::ApiError},
    store::tokens,
};

/// An authenticated caller.
pub(super) struct Caller(pub(super) Identity);

/// One who may change things.
pub(super) struct Writer(pub(super) Identity);

/// One who sees everything.
pub(super) struct Admin(pub(super) Identity);

impl FromRequestParts<PublicApi> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let token = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| {
                ApiError::unauthorized("send Authorization: Bearer TOKEN; `gantry token create --user NAME` makes one")
            })?;
        let refused = "the token is not good here: wrong, expired or revoked; make a new one";
        let identity = api
            .key
            .verify(token, api.clock.now())
            .map_err(|error| ApiError::unauthorized(refused).with_source(error))?;
        if tokens::is_revoked(&api.store, &identity.jti).await? {
            return Err(ApiError::unauthorized(refused));
        }
        let Ok(context) = RequestContext::from_request_parts(parts, api).await;
        context.identify(&identity);
        Ok(Self(identity))
    }
}

impl FromRequestParts<PublicApi> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Caller(identity) = Caller::from_request_parts(parts, api).await?;
        if identity.role.may_write() {
            return Ok(Self(identity));
        }
        Err(ApiError::new(ErrorCode::Forbidden, "a viewer reads; changing things needs the role user or admin"))
    }
}

impl FromRequestParts<PublicApi> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &PublicApi) -> Result<Self, ApiError> {
        let Caller(identity) = Caller::from_request_parts(parts, api).await?;
        if identity.role.sees_all() {
            return Ok(Self(identity));
        }
        Err(ApiError::new(ErrorCode::Forbidden, "this is for admins; ask the operator for a token with that role"))
    }
}

/// The job, if it is there and the caller may see it. Missing and foreign look alike.
pub(super) async fn visible(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = api.store.job(id).await?.ok_or_else(ApiError::not_found)?;
    if job.user_id == who.user || who.role.sees_all() { Ok(job) } else { Err(ApiError::foreign()) }
}
