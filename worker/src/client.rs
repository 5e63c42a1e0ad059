//! The worker API from the worker's side: one client on the job's socket.
//!
//! Owns sending, retrying, and stopping the session when the attempt has ended or the orchestrator is out of reach. An
//! orchestrator may vanish and come back at any moment with a new socket at the same path: everything here is sent
//! again until it is answered, which is harmless because each call is idempotent (call ids, `client_seq`, `after`).
//! Never decides what to do about another answer.

use std::{fmt::Write, path::Path, sync::Mutex, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{ErrorCode, JobId, Problem, SESSION_HEADER};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    connection::{ConnectionPool, TransportError},
    secret::SessionSecret,
    stop::{StopCause, StopSwitch},
};

/// How long the lease may have been gone before the worker gives up.
const WORKER_PATIENCE_SECONDS: u64 = 120;
const PATIENCE: Duration = Duration::from_secs(WORKER_PATIENCE_SECONDS);
/// The lease until the job is known, which sets it.
const FIRST_LEASE_SECONDS: u64 = 30;
/// Kept open from before the first command on, so that no command can take the worker's way to the orchestrator: one
/// each for the long poll, the heartbeat, the events and a call (contract: sandbox, Worker API).
const SESSION_CONNECTIONS: usize = 4;
const OPEN_CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(5);
/// What RFC 3986 calls unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// No jitter: a socket has one worker, so there is no herd to spread.
const FIRST_BACKOFF_MS: u64 = 50;
const LAST_BACKOFF_MS: u64 = 2_000;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The attempt has ended, or the orchestrator is out of reach; the session's stop switch is thrown.
    #[error("the session has stopped")]
    Stopped,
    /// An error response.
    #[error("refused with {}: {}", .0.status, .0.detail)]
    Refused(Refusal),
    /// A response, or a request, that does not have the form it must have.
    #[error("invalid request or response: {0}")]
    Invalid(String),
}

/// An error response.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The problem's code, where there is one that this worker knows.
    pub(crate) code: Option<ErrorCode>,
    /// The problem's reason, where the code has several.
    pub(crate) reason: Option<String>,
    /// The problem's explanation for people.
    pub(crate) detail: String,
    /// The value of `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
}

/// One call: what is sent, and how long one try of it may take.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    method: Method,
    segments: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Bytes>,
    timeout: Duration,
}

impl<'a> Call<'a> {
    /// Whether a refusal for the socket's limits is waited out here: the job and the report have no caller that would. Model
    /// calls and events have their own way with it.
    fn waits_out(&self, refusal: &Refusal) -> bool {
        refusal.status == StatusCode::TOO_MANY_REQUESTS && matches!(self.segments.as_slice(), ["job" | "complete"])
    }

    /// `GET` below the job's path.
    pub(crate) fn get(segments: &[&'a str]) -> Self {
        Self {
            method: Method::GET,
            segments: segments.to_vec(),
            query: Vec::new(),
            body: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// `POST` below the job's path.
    pub(crate) fn post(segments: &[&'a str], body: &impl Serialize) -> Result<Self, CallError> {
        let body = serde_json::to_vec(body).map_err(|error| CallError::Invalid(error.to_string()))?;
        Ok(Self { method: Method::POST, body: Some(body.into()), ..Self::get(segments) })
    }

    /// With a parameter.
    pub(crate) fn query(mut self, name: &'a str, value: &impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    /// With another limit for one try.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// What a worker identifies itself with.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    /// The job.
    pub(crate) job_id: JobId,
    /// The token of the job's attempt.
    pub(crate) token: &'a str,
    /// This process's own secret.
    pub(crate) session: &'a SessionSecret,
    /// The trace the attempt belongs to (W3C).
    pub(crate) traceparent: Option<&'a str>,
}

/// The socket, with the identity of one job.
pub(crate) struct OrchestratorClient {
    connections: ConnectionPool,
    headers: HeaderMap,
    base: String,
    lease: Mutex<Lease>,
    stop: StopSwitch,
}

struct Lease {
    length: Duration,
    runs_out_at: Instant,
}

impl OrchestratorClient {
    /// A client with this identity, which throws `stop` when the attempt has ended or the orchestrator is out of reach.
    /// Does not connect yet.
    pub(crate) fn new(socket: &Path, identity: &Identity<'_>, stop: StopSwitch) -> Result<Self, CallError> {
        let secret = |text: String| {
            let mut value = HeaderValue::try_from(text)
                .map_err(|_| CallError::Invalid("the token is not a header's text".to_owned()))?;
            value.set_sensitive(true);
            Ok::<_, CallError>(value)
        };
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("gantry"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("gantry-worker/", env!("CARGO_PKG_VERSION"))));
        headers.insert(AUTHORIZATION, secret(format!("Bearer {}", identity.token.trim()))?);
        headers.insert(HeaderName::from_static(SESSION_HEADER), secret(identity.session.expose().to_owned())?);
        if let Some(trace) = identity.traceparent.and_then(|trace| HeaderValue::try_from(trace).ok()) {
            headers.insert("traceparent", trace);
        }
        let length = Duration::from_secs(FIRST_LEASE_SECONDS);
        Ok(Self {
            connections: ConnectionPool::new(socket),
            headers,
            base: format!("/worker/{}", identity.job_id),
            lease: Mutex::new(Lease { length, runs_out_at: Instant::now() + length }),
            stop,
        })
    }

    /// Opens the connections that this worker keeps. Best effort: a connection that cannot be opened now is opened when
    /// it is needed.
    pub(crate) async fn open_connections(&self) {
        let Ok(request) = self.request(&Call::get(&["tools"])) else { return };
        let fill = self.connections.fill(SESSION_CONNECTIONS, &request);
        match tokio::time::timeout(OPEN_CONNECTIONS_TIMEOUT, fill).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "not all connections could be opened");
            }
            Err(_) => tracing::warn!("not all connections could be opened in time"),
        }
    }

    /// The session's stop switch.
    pub(crate) const fn stop(&self) -> &StopSwitch {
        &self.stop
    }

    /// Sets the lease's length, which the job tells, and begins it.
    pub(crate) fn set_lease(&self, length: Duration) {
        let mut lease = self.lease();
        lease.length = length;
        lease.runs_out_at = Instant::now() + length;
    }

    /// Begins the lease anew, for a heartbeat that was answered.
    pub(crate) fn renew_lease(&self) {
        let mut lease = self.lease();
        lease.runs_out_at = Instant::now() + lease.length;
    }

    /// Sends until it is answered, and reads the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallError> {
        let body = self.send(call).await?.1;
        parsed(&body)
    }

    /// The same where 204 means that there is nothing.
    pub(crate) async fn poll<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<Option<T>, CallError> {
        match self.send(call).await? {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, body) => parsed(&body).map(Some),
        }
    }

    async fn send(&self, call: Call<'_>) -> Result<(StatusCode, Bytes), CallError> {
        let request = self.request(&call)?;
        let first_try = Instant::now();
        let mut backoff_ms = FIRST_BACKOFF_MS;
        loop {
            let refusal = match self.connections.send(&request, call.timeout).await {
                Ok(response) if response.status().is_success() => {
                    return Ok((response.status(), response.into_body()));
                }
                Ok(response) => Some(refusal(&response)),
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no answer; the call is sent again");
                    None
                }
            };
            match refusal {
                Some(refusal) if refusal.is_end_of_attempt() => return Err(self.stopped(StopCause::AttemptOver)),
                Some(refusal) if refusal.code == Some(ErrorCode::JobCancelled) => {
                    return Err(self.stopped(StopCause::Asked));
                }
                // An orchestrator that answers, but that this call makes stumble again and again, is not gone.
                Some(refusal)
                    if !(refusal.is_transient() || call.waits_out(&refusal)) || first_try.elapsed() > PATIENCE =>
                {
                    return Err(CallError::Refused(refusal));
                }
                _ if self.out_of_patience() => return Err(self.stopped(StopCause::OrchestratorLost)),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
            backoff_ms = (backoff_ms * 2).min(LAST_BACKOFF_MS);
        }
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, CallError> {
        let escaped = |text| utf8_percent_encode(text, ESCAPED);
        let mut target = self.base.clone();
        for segment in &call.segments {
            let _ = write!(target, "/{}", escaped(segment));
        }
        for (index, (name, value)) in call.query.iter().enumerate() {
            let _ = write!(target, "{}{}={}", if index == 0 { '?' } else { '&' }, escaped(name), escaped(value));
        }
        let mut request = Request::builder().method(&call.method).uri(target);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
            if call.body.is_some() {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
        }
        request
            .body(Full::new(call.body.clone().unwrap_or_default()))
            .map_err(|error| CallError::Invalid(error.to_string()))
    }

    fn stopped(&self, cause: StopCause) -> CallError {
        self.stop.stop(cause);
        CallError::Stopped
    }

    fn out_of_patience(&self) -> bool {
        Instant::now() > self.lease().runs_out_at + PATIENCE
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// `GET /health`, which needs no identity: the status.
pub(crate) async fn health(socket: &Path, limit: Duration) -> Result<StatusCode, TransportError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = Uri::from_static("/health");
    request.headers_mut().insert(HOST, HeaderValue::from_static("gantry"));
    Ok(ConnectionPool::new(socket).send(&request, limit).await?.status())
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(body).map_err(|error| CallError::Invalid(error.to_string()))
}

fn refusal(response: &Response<Bytes>) -> Refusal {
    let problem: Option<Problem> = serde_json::from_slice(response.body()).ok();
    let status = response.status();
    let detail = problem.as_ref().map_or_else(|| format!("status {status}"), |problem| problem.detail.clone());
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Refusal {
        status: status.as_u16(),
        code: problem.as_ref().map(|problem| problem.code),
        reason: problem.and_then(|problem| problem.reason),
        detail,
        retry_after: retry_after.map(Duration::from_secs),
    }
}

impl Refusal {
    fn is_end_of_attempt(&self) -> bool {
        self.status == 401
            || (self.status == 409 && matches!(self.code, Some(ErrorCode::Fenced | ErrorCode::JobFinished)))
    }

    /// Whether the same call may well be answered soon.
    fn is_transient(&self) -> bool {
        self.status >= 500 && self.code != Some(ErrorCode::LlmError)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn client(job_id: JobId) -> OrchestratorClient {
        let session = SessionSecret::generate().unwrap();
        let identity = Identity { job_id, token: "token", session: &session, traceparent: None };
        OrchestratorClient::new(Path::new("/nowhere"), &identity, StopSwitch::default()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_orchestrator_is_lost_once_its_lease_has_been_gone_for_the_patience() {
        let client = client(JobId::generate());
        client.set_lease(Duration::from_secs(10));
        let begun = Instant::now();
        let answer = client.ask::<protocol::JobAssignment>(Call::get(&["job"])).await;
        assert!(matches!(answer, Err(CallError::Stopped)));
        assert_eq!(client.stop().cause(), Some(StopCause::OrchestratorLost));
        let waited = begun.elapsed().as_secs();
        assert!((130..=135).contains(&waited), "{waited} s");
    }

    #[test]
    fn a_path_cannot_be_left_by_a_tool_of_any_name() {
        let client = client(JobId::nil());
        let request = client.request(&Call::get(&["tools", "../complete?x#y"]).query("after", &"a b")).unwrap();
        let base = "/worker/00000000-0000-0000-0000-000000000000";
        assert_eq!(request.uri().to_string(), format!("{base}/tools/..%2Fcomplete%3Fx%23y?after=a%20b"));
    }

    #[rstest]
    #[case::void_token(401, None, true, false)]
    #[case::fenced(409, Some(ErrorCode::Fenced), true, false)]
    #[case::finished(409, Some(ErrorCode::JobFinished), true, false)]
    #[case::prompts(409, Some(ErrorCode::PromptsWaiting), false, false)]
    #[case::shutting_down(503, Some(ErrorCode::Unavailable), false, true)]
    #[case::broken(500, None, false, true)]
    #[case::no_model(502, Some(ErrorCode::LlmError), false, false)]
    #[case::budget(403, Some(ErrorCode::TokenBudget), false, false)]
    fn a_refusal_says_whether_to_go_on(
        #[case] status: u16,
        #[case] code: Option<ErrorCode>,
        #[case] over: bool,
        #[case] passing: bool,
    ) {
        let refusal = Refusal { status, code, reason: None, detail: String::new(), retry_after: None };
        assert_eq!((refusal.is_end_of_attempt(), refusal.is_transient()), (over, passing));
    }
}
