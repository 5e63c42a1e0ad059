//! Identity of a worker's call: the token, the socket and the path must name one job, its attempt must be the current one, and
//! the call must belong to the attempt's session.
//!
//! A call of a live attempt is identified from the registry of attempts, without the database. All of it is in the head of
//! the request: no byte of a body is read before.

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc};

use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderMap, header, request::Parts},
};
use protocol::{ErrorCode, JobId, SESSION_HEADER};

use super::WorkerApi;
use base::digest::sha256_hex;
use dispatch::{Attempt, InFlightCall};
use domain::job::{JobRecord, SessionMatch, WorkerSession};

use crate::{problem::ApiError, server::ConnectionHandle};

/// Characters of a session's secret. The worker sends 64.
const SECRET_CHARACTERS: RangeInclusive<usize> = 16..=200;

/// A worker whose attempt is live.
pub(super) struct Caller {
    /// Its job, as the last transition left it.
    pub(super) job: Arc<JobRecord>,
    pub(super) attempt: Arc<Attempt>,
}

/// A worker whose attempt is live and whose call is in flight from here on, before its body has arrived.
pub(super) struct CallInFlight {
    /// Its job, as the last transition left it.
    pub(super) job: Arc<JobRecord>,
    pub(super) attempt: Arc<Attempt>,
    /// Counts the call for as long as this lives.
    pub(super) in_flight: InFlightCall,
}

/// A worker with a valid token, whose attempt may be over: only `complete` answers such a caller.
pub(super) enum TokenHolder {
    Live(Caller),
    /// Its attempt is over, or its token is void.
    Ended {
        /// The job, as the database has it.
        job: Arc<JobRecord>,
        /// The attempt that the token names.
        attempt: u32,
    },
}

impl FromRequestParts<WorkerApi> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        match TokenHolder::from_request_parts(parts, api).await? {
            TokenHolder::Live(caller) => {
                caller.attempt.record_contact();
                Ok(caller)
            }
            TokenHolder::Ended { job, attempt } if attempt < job.attempt && !job.state().is_finished() => Err(fenced()),
            TokenHolder::Ended { .. } => Err(ended()),
        }
    }
}

impl FromRequestParts<WorkerApi> for CallInFlight {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let Caller { job, attempt } = Caller::from_request_parts(parts, api).await?;
        let in_flight = attempt.start_call();
        Ok(Self { job, attempt, in_flight })
    }
}

impl FromRequestParts<WorkerApi> for TokenHolder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &WorkerApi) -> Result<Self, ApiError> {
        let token = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .ok_or_else(invalid_token)?
            .to_owned();
        let Path(path) =
            Path::<HashMap<String, String>>::from_request_parts(parts, api).await.map_err(|_| invalid_token())?;
        let named: JobId = path.get("job_id").and_then(|id| id.parse().ok()).ok_or_else(invalid_token)?;
        // The socket itself names the job; token, path and socket must agree.
        let attempt = parts.extensions.get::<Arc<Attempt>>().cloned().ok_or_else(invalid_token)?;
        if attempt.key().job != named {
            return Err(invalid_token());
        }
        let digest = sha256_hex(token.as_bytes());
        let holder = if attempt.accepts_token(&digest) {
            Self::Live(Caller { job: attempt.record(), attempt })
        } else {
            Self::from_row(api, named, &token, &digest).await?
        };
        holder.in_session(api, parts).await
    }
}

impl TokenHolder {
    /// The holder of a token that is not the live attempt's: its attempt is looked up in the database.
    async fn from_row(api: &WorkerApi, job: JobId, token: &str, digest: &str) -> Result<Self, ApiError> {
        let claims = api.auth.verify(token, api.clock.now()).map_err(|_| invalid_token())?;
        if claims.job_id != job {
            return Err(invalid_token());
        }
        let job = api.store.job(job).await?.ok_or_else(invalid_token)?;
        let current = api
            .attempts
            .observe(&job)
            .filter(|attempt| attempt.key().attempt == claims.attempt && attempt.accepts_token(digest));
        Ok(match current {
            Some(attempt) => Self::Live(Caller { job: attempt.record(), attempt }),
            None => Self::Ended { job: Arc::new(job), attempt: claims.attempt },
        })
    }

    /// Checks that the call belongs to its attempt's session, which the first call opens. A caller whose attempt was superseded
    /// is not checked: it gets only that error.
    async fn in_session(self, api: &WorkerApi, parts: &Parts) -> Result<Self, ApiError> {
        let secret_hash = session_secret(&parts.headers).map(|secret| sha256_hex(secret.as_bytes()));
        let caller = match self {
            Self::Live(caller) => caller,
            Self::Ended { job, attempt } => {
                let is_superseded = attempt != job.attempt;
                if !is_superseded && job.session.matches(secret_hash.as_deref()) != SessionMatch::Same {
                    return Err(ended());
                }
                if !is_superseded {
                    authenticate_connection(api, parts, &job, &job.session)?;
                }
                return Ok(Self::Ended { job, attempt });
            }
        };
        let Caller { job, attempt } = &caller;
        let mut session = attempt.session();
        if let (SessionMatch::Opens, Some(hash)) = (session.matches(secret_hash.as_deref()), &secret_hash) {
            session = caller.open_session(api, hash).await?;
            attempt.set_session(session.clone());
        }
        if session.matches(secret_hash.as_deref()) != SessionMatch::Same {
            return Err(caller.session_rejected(api).await?);
        }
        authenticate_connection(api, parts, job, &session)?;
        Ok(Self::Live(caller))
    }
}

impl Caller {
    /// Opens the session with this digest, unless another call was first; returns the session that is open then.
    async fn open_session(&self, api: &WorkerApi, hash: &str) -> Result<WorkerSession, ApiError> {
        let key = self.attempt.key();
        if api.store.open_session(key.job, key.attempt, hash).await? {
            return Ok(WorkerSession::Open(hash.to_owned()));
        }
        // Another call was first, or the attempt is over.
        let job = api.store.job(key.job).await?.ok_or_else(ended)?;
        if job.attempt != key.attempt {
            return Err(fenced());
        }
        Ok(job.session)
    }

    /// The caller has the token and not the session: recorded once for each attempt, then only counted.
    async fn session_rejected(&self, api: &WorkerApi) -> Result<ApiError, ApiError> {
        let key = self.attempt.key();
        api.metrics.session_rejected();
        if !self.attempt.is_session_rejection_recorded() {
            api.store.record_session_rejected(key.job, key.attempt, api.clock.now()).await?;
            self.attempt.session_rejection_recorded();
        }
        let error =
            ApiError::new(ErrorCode::Unauthorized, "this call does not belong to the session of this attempt's worker");
        Ok(error.with_reason("session_rejected"))
    }
}

/// Checks that a request for another host belongs to the session of its socket's worker. It opens no session and is no sign
/// of life.
pub(super) async fn check_proxy_caller(
    api: &WorkerApi,
    headers: &HeaderMap,
    attempt: &Arc<Attempt>,
) -> Result<(), ApiError> {
    let token = headers.get(header::PROXY_AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(invalid_token)?;
    if !attempt.accepts_token(&sha256_hex(token.as_bytes())) {
        return Err(invalid_token());
    }
    let secret_hash = session_secret(headers).map(|secret| sha256_hex(secret.as_bytes()));
    if attempt.session().matches(secret_hash.as_deref()) == SessionMatch::Same {
        return Ok(());
    }
    let caller = Caller { job: attempt.record(), attempt: Arc::clone(attempt) };
    Err(caller.session_rejected(api).await?)
}

/// Counts the connection as one of the session. On its first call the token's file is removed: an earlier call may have been
/// given up between opening the session and that.
fn authenticate_connection(
    api: &WorkerApi,
    parts: &Parts,
    job: &JobRecord,
    session: &WorkerSession,
) -> Result<(), ApiError> {
    let digest = match session {
        WorkerSession::Open(digest) => Some(digest.as_str()),
        WorkerSession::NotRequired | WorkerSession::Unopened => None,
    };
    let connection = parts.extensions.get::<ConnectionHandle>();
    let is_first = connection.is_none_or(|connection| connection.authenticated(digest));
    if is_first && let (Some(_), Some(container)) = (digest, &job.container) {
        api.token_files.remove(&container.name).map_err(ApiError::internal)?;
    }
    Ok(())
}

/// The secret that a call brings; none when its header cannot be one.
fn session_secret(headers: &HeaderMap) -> Option<&str> {
    let secret = headers.get(SESSION_HEADER)?.to_str().ok()?;
    let is_valid = SECRET_CHARACTERS.contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid.then_some(secret)
}

fn invalid_token() -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, "invalid token")
}

/// The attempt is over.
pub(super) fn ended() -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, "this token's attempt has ended")
}

/// The attempt was superseded.
pub(super) fn fenced() -> ApiError {
    ApiError::new(ErrorCode::Fenced, "another attempt of this job has taken over; stop")
}
