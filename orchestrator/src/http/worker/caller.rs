//! Who calls: the token, the socket and the path must name one job, and its attempt must be the current one.

use std::collections::HashMap;

use axum::{
    extract::{FromRequestParts, Path},
    http::{header, request::Parts},
};
use protocol::{ErrorCode, JobId, JobState};

use super::WorkerApi;
use crate::{
    dispatch::{InFlight, SocketJob},
    domain::job::JobRecord,
    http::problem::ApiError,
};

/// A worker whose attempt lives.
pub(super) struct Caller {
    /// Its job, as it is now.
    pub(super) job: JobRecord,
}

/// A worker with a good token, whatever has become of its attempt: only `complete` may answer it, with what is so.
pub(super) struct Known {
    /// Its job, as it is now.
    pub(super) job: JobRecord,
    /// The attempt its token names.
    pub(super) attempt: u32,
    /// The token is the one on the job's row.
    pub(super) current: bool,
}

/// A worker whose attempt lives and whose call is in flight from here on, before its body has arrived.
pub(super) struct CallInFlight {
    /// Its job, as it is now.
    pub(super) job: JobRecord,
    /// Counts the call for as long as this lives.
    pub(super) in_flight: InFlight,
}

impl FromRequestParts<WorkerApi> for CallInFlight {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let Caller { job } = Caller::from_request_parts(parts, api).await?;
        let in_flight = api.pulse.in_flight(job.id, job.attempt);
        Ok(Self { job, in_flight })
    }
}

impl FromRequestParts<WorkerApi> for Known {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let refused = || ApiError::new(ErrorCode::Unauthorized, "a valid token of this job's worker is needed");
        let token = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .ok_or_else(refused)?
            .to_owned();
        let Path(path) =
            Path::<HashMap<String, String>>::from_request_parts(parts, api).await.map_err(|_| refused())?;
        let named: JobId = path.get("job_id").and_then(|id| id.parse().ok()).ok_or_else(refused)?;
        let claims = api.auth.verify(&token, api.clock.now()).map_err(|_| refused())?;
        // On a Unix socket the socket itself names the job; token, path and socket must agree.
        let socket = parts.extensions.get::<SocketJob>();
        if claims.job_id != named || socket.is_some_and(|socket| socket.job != named) {
            return Err(refused());
        }
        let job = api.store.job(named).await?.ok_or_else(refused)?;
        let current =
            claims.attempt == job.attempt && job.token_hash.as_deref() == Some(&crate::auth::digest(token.as_bytes()));
        Ok(Self { job, attempt: claims.attempt, current })
    }
}

impl FromRequestParts<WorkerApi> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let known = Known::from_request_parts(parts, api).await?;
        if known.current && matches!(known.job.state, JobState::InProgress | JobState::Stuck) {
            api.pulse.heard(known.job.id, known.job.attempt);
            return Ok(Self { job: known.job });
        }
        if known.attempt < known.job.attempt && !known.job.state.is_finished() {
            return Err(fenced());
        }
        Err(ended())
    }
}

/// The attempt is over.
pub(super) fn ended() -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, "this token's attempt has ended")
}

/// The attempt was overtaken while its call was under way.
pub(super) fn fenced() -> ApiError {
    ApiError::new(ErrorCode::Fenced, "another attempt of this job has taken over; stop")
}
