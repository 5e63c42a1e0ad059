//! Who calls: the token, the socket and the path must name one job, its attempt must be the current one, and the call must be
//! of the attempt's session.
//!
//! Owns the identity of a worker's call. Everything it needs is in the request's head: no byte of a body is read before.

use std::{collections::HashMap, ops::RangeInclusive};

use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderMap, header, request::Parts},
};
use protocol::{ErrorCode, JobId, JobState, SESSION_HEADER};

use super::WorkerApi;
use crate::{
    auth,
    dispatch::{InFlight, SocketJob},
    domain::job::{JobRecord, SessionMatch, WorkerSession},
    http::{problem::ApiError, server::ConnectionHandle},
};

/// Characters of a session's secret. The worker sends 64.
const SECRET_CHARACTERS: RangeInclusive<usize> = 16..=200;

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
        let known = Self { job, attempt: claims.attempt, current };
        known.in_session(api, parts).await
    }
}

impl Known {
    /// The call is of its attempt's session, which the first one opens. An attempt that was overtaken is not asked: it learns
    /// that and nothing else.
    async fn in_session(mut self, api: &WorkerApi, parts: &Parts) -> Result<Self, ApiError> {
        if self.attempt != self.job.attempt {
            return Ok(self);
        }
        let secret_hash = session_secret(&parts.headers).map(|secret| auth::digest(secret.as_bytes()));
        let mut matched = self.job.session.matches(secret_hash.as_deref());
        if let (SessionMatch::Opens, Some(hash)) = (matched, &secret_hash) {
            if self.is_live() && api.store.open_session(self.job.id, self.attempt, hash).await? {
                self.job.session = WorkerSession::Open(hash.clone());
            } else {
                // Another call was first, or the attempt has ended.
                self.job = api.store.job(self.job.id).await?.ok_or_else(ended)?;
                if self.attempt != self.job.attempt {
                    return Err(fenced());
                }
            }
            matched = self.job.session.matches(secret_hash.as_deref());
        }
        if matched != SessionMatch::Same {
            return Err(self.rejected(api).await?);
        }
        let digest = match &self.job.session {
            WorkerSession::Open(digest) => Some(digest.as_str()),
            WorkerSession::NotRequired | WorkerSession::Unopened => None,
        };
        let connection = parts.extensions.get::<ConnectionHandle>();
        let is_first = connection.is_none_or(|connection| connection.authenticated(digest));
        // Once for each connection, since a call may have been given up between opening the session and this.
        if is_first && let (WorkerSession::Open(_), Some(container)) = (&self.job.session, &self.job.container) {
            api.token_files.remove(&container.name).map_err(ApiError::internal)?;
        }
        Ok(self)
    }

    fn is_live(&self) -> bool {
        self.current && matches!(self.job.state, JobState::InProgress | JobState::Stuck)
    }

    /// Somebody has the token and not the session: recorded once for each attempt, then only counted.
    async fn rejected(&self, api: &WorkerApi) -> Result<ApiError, ApiError> {
        if !self.is_live() {
            return Ok(ended());
        }
        api.metrics.session_rejected();
        if !self.job.session_rejected {
            api.store.record_session_rejected(self.job.id, self.attempt, api.clock.now()).await?;
        }
        let error = ApiError::new(ErrorCode::Unauthorized, "this call is not of the session of this attempt's worker");
        Ok(error.with_reason("session_rejected"))
    }
}

/// The secret that a call brings; none when it brings none that could be one.
fn session_secret(headers: &HeaderMap) -> Option<&str> {
    let secret = headers.get(SESSION_HEADER)?.to_str().ok()?;
    let is_valid = SECRET_CHARACTERS.contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid.then_some(secret)
}

impl FromRequestParts<WorkerApi> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let known = Known::from_request_parts(parts, api).await?;
        if known.is_live() {
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
