//! The client of the worker API, on the job's socket.
//!
//! Owns sending, retrying, and stopping the session when the attempt has ended or the orchestrator is unreachable. The
//! orchestrator may restart at any time with a new socket at the same path, so every call is retried until it gets a
//! response. That is safe because calls are idempotent (call ids, `client_seq`, `after`). Callers handle all other
//! errors.

use std::{fmt::Write, path::Path, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{ErrorCode, JobId, Problem, SESSION_HEADER};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    connection::{ConnectionPool, TransportError},
    session::{
        secret::SessionSecret,
        stop::{StopCause, StopSwitch},
    },
};

/// How long after its lease has expired the worker gives up, until the job assignment sets it.
const DEFAULT_PATIENCE: Duration = Duration::from_mins(2);
/// The lease until the job assignment sets it.
const FIRST_LEASE_SECONDS: u64 = 30;
/// Connections opened before the first command and kept, so that no command can exhaust the socket's connections: one
/// each for the long poll, the heartbeat, the events and a call.
const SESSION_CONNECTIONS: usize = 4;
const OPEN_CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(5);
/// All characters except the unreserved ones of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Without jitter: a socket has one worker, so there is no thundering herd.
const FIRST_BACKOFF_MS: u64 = 50;
const MAX_BACKOFF_MS: u64 = 2_000;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The attempt has ended or the orchestrator is unreachable. The session has been stopped.
    #[error("the session has stopped")]
    Stopped,
    /// An error response.
    #[error("refused with {}", .0)]
    Refused(Refusal),
    /// The request or the response is malformed.
    #[error("invalid request or response: {0}")]
    Invalid(String),
}

/// An error response.
#[derive(Debug, thiserror::Error)]
#[error("{status}{}: {detail}", .code_name.as_ref().map(|name| format!(" {name}")).unwrap_or_default())]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The problem's code, if the response is a problem.
    pub(crate) code: Option<ErrorCode>,
    /// The name of the code, also if this worker does not know it.
    pub(crate) code_name: Option<String>,
    /// The problem's reason, if the code has several.
    pub(crate) reason: Option<String>,
    /// The problem's human-readable explanation.
    pub(crate) detail: String,
    /// The value of `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
}

/// A request with its timeout.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    method: Method,
    segments: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Bytes>,
    timeout: Duration,
}

impl<'a> Call<'a> {
    /// Whether a 429 of the socket is retried here. Model calls and events handle it themselves; the callers of `job`
    /// and `complete` do not.
    fn retries_rate_limit(&self, refusal: &Refusal) -> bool {
        refusal.status == StatusCode::TOO_MANY_REQUESTS && matches!(self.segments.as_slice(), ["job" | "complete"])
    }

    /// A `GET` request below the job's path.
    pub(crate) fn get(segments: &[&'a str]) -> Self {
        Self {
            method: Method::GET,
            segments: segments.to_vec(),
            query: Vec::new(),
            body: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// A `POST` request below the job's path.
    pub(crate) fn post(segments: &[&'a str], body: &impl Serialize) -> Result<Self, CallError> {
        let body = serde_json::to_vec(body).map_err(|error| CallError::Invalid(error.to_string()))?;
        Ok(Self { method: Method::POST, body: Some(body.into()), ..Self::get(segments) })
    }

    /// Adds a query parameter.
    pub(crate) fn query(mut self, name: &'a str, value: &impl ToString) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    /// Sets the timeout of one attempt.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// The credentials of a worker.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    /// The id of the job.
    pub(crate) job_id: JobId,
    /// The token of the job's attempt.
    pub(crate) token: &'a str,
    /// The secret of this process.
    pub(crate) session: &'a SessionSecret,
    /// The W3C trace context of the attempt.
    pub(crate) traceparent: Option<&'a str>,
}

/// A client for the worker API of one job.
pub(crate) struct OrchestratorClient {
    connections: ConnectionPool,
    headers: HeaderMap,
    base: String,
    lease: Mutex<Lease>,
    stop: StopSwitch,
}

struct Lease {
    length: Duration,
    expires_at: Instant,
    /// How long after its expiry the worker gives up.
    patience: Duration,
}

impl OrchestratorClient {
    /// Creates a client that triggers `stop` when the attempt has ended or the orchestrator is unreachable. Does not
    /// connect yet.
    pub(crate) fn new(socket: &Path, identity: &Identity<'_>, stop: StopSwitch) -> Result<Self, CallError> {
        let secret = |text: String| {
            let mut value = HeaderValue::try_from(text)
                .map_err(|_| CallError::Invalid("the token is not a valid header value".to_owned()))?;
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
            lease: Mutex::new(Lease { length, expires_at: Instant::now() + length, patience: DEFAULT_PATIENCE }),
            stop,
        })
    }

    /// Opens [`SESSION_CONNECTIONS`]. Best effort: a connection that cannot be opened now is opened on demand.
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

    /// Starts a lease of this length; `None` keeps the patience.
    pub(crate) fn set_lease(&self, length: Duration, patience: Option<Duration>) {
        let mut lease = self.lease.lock();
        lease.patience = patience.unwrap_or(lease.patience);
        lease.length = length;
        lease.expires_at = Instant::now() + length;
    }

    /// Restarts the lease after a successful heartbeat.
    pub(crate) fn renew_lease(&self) {
        let mut lease = self.lease.lock();
        lease.expires_at = Instant::now() + lease.length;
    }

    /// Sends a call, with retries, and parses the response.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallError> {
        let body = self.send(call).await?.1;
        parse(&body)
    }

    /// Like [`Self::ask`]; a 204 is `None`.
    pub(crate) async fn poll<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<Option<T>, CallError> {
        match self.send(call).await? {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, body) => parse(&body).map(Some),
        }
    }

    async fn send(&self, call: Call<'_>) -> Result<(StatusCode, Bytes), CallError> {
        let request = self.request(&call)?;
        let first_attempt = Instant::now();
        let mut backoff_ms = FIRST_BACKOFF_MS;
        loop {
            let refusal = match self.connections.send(&request, call.timeout).await {
                Ok(response) if response.status().is_success() => {
                    return Ok((response.status(), response.into_body()));
                }
                Ok(response) => Some(refusal(&response)),
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no response; retrying the call");
                    None
                }
            };
            match refusal {
                Some(refusal) if refusal.is_end_of_attempt() => return Err(self.stopped(StopCause::AttemptEnded)),
                Some(refusal) if refusal.code == Some(ErrorCode::JobCancelled) => {
                    return Err(self.stopped(StopCause::Requested));
                }
                // The orchestrator is up but keeps failing this call: give up on the call, not on the orchestrator.
                Some(refusal)
                    if !(refusal.is_transient() || call.retries_rate_limit(&refusal))
                        || first_attempt.elapsed() > self.lease.lock().patience =>
                {
                    return Err(CallError::Refused(refusal));
                }
                _ if self.is_orchestrator_unreachable() => return Err(self.stopped(StopCause::OrchestratorUnreachable)),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
            backoff_ms = (backoff_ms * 2).min(MAX_BACKOFF_MS);
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

    fn is_orchestrator_unreachable(&self) -> bool {
        let lease = self.lease.lock();
        Instant::now() > lease.expires_at + lease.patience
    }
}

/// Sends `GET /health`, which needs no credentials, and returns the status.
pub(crate) async fn health(socket: &Path, limit: Duration) -> Result<StatusCode, TransportError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = Uri::from_static("/health");
    request.headers_mut().insert(HOST, HeaderValue::from_static("gantry"));
    Ok(ConnectionPool::new(socket).send(&request, limit).await?.status())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
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
        code_name: problem.as_ref().map(|problem| problem.code_name().to_owned()),
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

    /// Whether a retry may succeed.
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

    #[rstest]
    #[case::not_assigned(None, 130)]
    #[case::assigned(Some(Duration::from_secs(20)), 30)]
    #[tokio::test(start_paused = true)]
    async fn an_orchestrator_is_unreachable_when_the_lease_has_been_expired_for_the_patience(
        #[case] patience: Option<Duration>,
        #[case] expected: u64,
    ) {
        let client = client(JobId::generate());
        client.set_lease(Duration::from_secs(10), patience);
        let started_at = Instant::now();
        let response = client.ask::<protocol::JobAssignment>(Call::get(&["job"])).await;
        assert!(matches!(response, Err(CallError::Stopped)));
        assert_eq!(client.stop().cause(), Some(StopCause::OrchestratorUnreachable));
        let waited = started_at.elapsed().as_secs();
        assert!((expected..=expected + 5).contains(&waited), "{waited} s");
    }

    #[test]
    fn a_tool_name_cannot_change_the_request_path() {
        let client = client(JobId::nil());
        let request = client.request(&Call::get(&["tools", "../complete?x#y"]).query("after", &"a b")).unwrap();
        let base = "/worker/00000000-0000-0000-0000-000000000000";
        assert_eq!(request.uri().to_string(), format!("{base}/tools/..%2Fcomplete%3Fx%23y?after=a%20b"));
    }

    #[rstest]
    #[case::invalid_token(401, None, true, false)]
    #[case::fenced(409, Some(ErrorCode::Fenced), true, false)]
    #[case::finished(409, Some(ErrorCode::JobFinished), true, false)]
    #[case::prompts(409, Some(ErrorCode::PromptsWaiting), false, false)]
    #[case::shutting_down(503, Some(ErrorCode::Unavailable), false, true)]
    #[case::broken(500, None, false, true)]
    #[case::no_model(502, Some(ErrorCode::LlmError), false, false)]
    #[case::budget(403, Some(ErrorCode::TokenBudget), false, false)]
    fn error_responses_are_transient_final_or_for_the_caller(
        #[case] status: u16,
        #[case] code: Option<ErrorCode>,
        #[case] ends_attempt: bool,
        #[case] transient: bool,
    ) {
        let refusal = Refusal { status, code, code_name: None, reason: None, detail: String::new(), retry_after: None };
        assert_eq!((refusal.is_end_of_attempt(), refusal.is_transient()), (ends_attempt, transient));
    }

    #[test]
    fn an_error_with_an_unknown_code_keeps_its_code_reason_and_detail() {
        let body = r#"{"type": "urn:gantry:problem:of_a_newer_server", "title": "T", "status": 409, "detail": "what to do",
            "code": "of_a_newer_server", "reason": "why", "request_id": "I"}"#;
        let response = Response::builder().status(409).body(Bytes::from_static(body.as_bytes())).unwrap();
        let refusal = refusal(&response);
        assert_eq!(refusal.code, Some(ErrorCode::Unknown));
        assert_eq!(refusal.reason.as_deref(), Some("why"));
        assert_eq!(CallError::Refused(refusal).to_string(), "refused with 409 of_a_newer_server: what to do");
    }
}
