//! The worker API from the worker's side: one client on the job's socket.
//!
//! Owns sending, retrying and saying what a refusal means. An orchestrator may vanish and come back at any moment with
//! a new socket at the same path: everything here is sent again until it is answered, which is harmless because each
//! call names itself (call ids, `client_seq`, `after`). Never decides what to do about an answer.

use std::{path::Path, sync::Mutex, time::Duration};

use protocol::{ErrorCode, Problem};
use reqwest::{
    Method, Request, Response, StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

/// How long the lease may have been gone before the worker gives up.
const WORKER_PATIENCE_SECONDS: u64 = 120;
const PATIENCE: Duration = Duration::from_secs(WORKER_PATIENCE_SECONDS);
/// The lease until the job has told its own.
const FIRST_LEASE_SECONDS: u64 = 30;
const CONNECT_TIMEOUT_SECONDS: u64 = 5;
/// No jitter: a socket has one worker, so there is no herd to spread.
const FIRST_BACKOFF_MS: u64 = 50;
const LAST_BACKOFF_MS: u64 = 2_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// 401, or 409 because the attempt or the job is over: nothing more may be done.
    #[error("the attempt is over")]
    Over,
    /// Nobody answered until long after the lease ran out.
    #[error("the orchestrator is gone")]
    Lost,
    /// An answer that is a no.
    #[error("refused with {}: {}", .0.status, .0.detail)]
    Refused(Refusal),
    /// An answer that makes no sense.
    #[error("the answer cannot be read")]
    Garbled(#[source] serde_json::Error),
    /// The request cannot be made.
    #[error("the request cannot be made: {0}")]
    Unsendable(String),
}

/// A no, and what it says.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The problem's code, where there is one that this worker knows.
    pub(crate) code: Option<ErrorCode>,
    /// The problem's reason, where the code has several.
    pub(crate) reason: Option<String>,
    /// For people.
    pub(crate) detail: String,
    /// When to come back.
    pub(crate) retry_after: Option<Duration>,
}

/// One call: what is sent, and how long one try of it may take.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    method: Method,
    segments: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Vec<u8>>,
    timeout: Duration,
}

impl<'a> Call<'a> {
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
        let body = serde_json::to_vec(body).map_err(|error| CallError::Unsendable(error.to_string()))?;
        Ok(Self { method: Method::POST, body: Some(body), ..Self::get(segments) })
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

/// The socket, with the identity of one job.
pub(crate) struct OrchestratorClient {
    http: reqwest::Client,
    base: Url,
    lease: Mutex<Lease>,
}

struct Lease {
    length: Duration,
    runs_out_at: Instant,
}

impl OrchestratorClient {
    /// A client for the job whose token this is. Does not connect yet.
    pub(crate) fn new(
        socket: &Path,
        job_id: protocol::JobId,
        token: &str,
        traceparent: Option<&str>,
    ) -> Result<Self, CallError> {
        let unsendable = |error: &dyn std::fmt::Display| CallError::Unsendable(error.to_string());
        let mut headers = HeaderMap::new();
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| CallError::Unsendable("the token is not a header's text".to_owned()))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        if let Some(trace) = traceparent.and_then(|trace| HeaderValue::try_from(trace).ok()) {
            headers.insert("traceparent", trace);
        }
        let http = http_on(socket).default_headers(headers).build().map_err(|error| unsendable(&error))?;
        let base = Url::parse(&format!("http://gantry/worker/{job_id}")).map_err(|error| unsendable(&error))?;
        let length = Duration::from_secs(FIRST_LEASE_SECONDS);
        Ok(Self { http, base, lease: Mutex::new(Lease { length, runs_out_at: Instant::now() + length }) })
    }

    /// The lease's length, as the job tells it.
    pub(crate) fn lease_is(&self, length: Duration) {
        let mut lease = self.lease();
        lease.length = length;
        lease.runs_out_at = Instant::now() + length;
    }

    /// A heartbeat was answered.
    pub(crate) fn lease_renewed(&self) {
        let mut lease = self.lease();
        lease.runs_out_at = Instant::now() + lease.length;
    }

    /// Sends until it is answered, and reads the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallError> {
        let body = self.send(call).await?.1;
        serde_json::from_slice(&body).map_err(CallError::Garbled)
    }

    /// The same where 204 means that there is nothing.
    pub(crate) async fn ask_maybe<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<Option<T>, CallError> {
        match self.send(call).await? {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, body) => serde_json::from_slice(&body).map(Some).map_err(CallError::Garbled),
        }
    }

    async fn send(&self, call: Call<'_>) -> Result<(StatusCode, Vec<u8>), CallError> {
        let request = self.request(call)?;
        let first_try = Instant::now();
        let mut backoff_ms = FIRST_BACKOFF_MS;
        loop {
            let again = request.try_clone().ok_or_else(|| CallError::Unsendable("a body that streams".to_owned()))?;
            let refusal = match self.once(again).await {
                Ok(answer) if answer.0.is_success() => return Ok(answer.into()),
                Ok(answer) => Some(answer.refusal()),
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no answer; the call is sent again");
                    None
                }
            };
            match refusal {
                Some(refusal) if refusal.is_end_of_attempt() => return Err(CallError::Over),
                // An orchestrator that answers, but that this call makes stumble again and again, is not gone.
                Some(refusal) if !refusal.is_passing() || first_try.elapsed() > PATIENCE => {
                    return Err(CallError::Refused(refusal));
                }
                _ if self.out_of_patience() => return Err(CallError::Lost),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
            backoff_ms = (backoff_ms * 2).min(LAST_BACKOFF_MS);
        }
    }

    async fn once(&self, request: Request) -> Result<Answer, reqwest::Error> {
        let response: Response = self.http.execute(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await?;
        Ok(Answer(status, headers, body.into()))
    }

    fn request(&self, call: Call<'_>) -> Result<Request, CallError> {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.extend(&call.segments);
        }
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut builder = self.http.request(call.method, url).timeout(call.timeout);
        if let Some(body) = call.body {
            builder = builder.header("content-type", "application/json").body(body);
        }
        builder.build().map_err(|error| CallError::Unsendable(error.to_string()))
    }

    fn out_of_patience(&self) -> bool {
        Instant::now() > self.lease().runs_out_at + PATIENCE
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A client on the socket, without an identity.
pub(crate) fn http_on(socket: &Path) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .unix_socket(socket)
        .connect_timeout(Duration::from_secs(CONNECT_TIMEOUT_SECONDS))
        .user_agent(concat!("gantry-worker/", env!("CARGO_PKG_VERSION")))
}

struct Answer(StatusCode, HeaderMap, Vec<u8>);

impl From<Answer> for (StatusCode, Vec<u8>) {
    fn from(answer: Answer) -> Self {
        (answer.0, answer.2)
    }
}

impl Answer {
    fn refusal(self) -> Refusal {
        let problem: Option<Problem> = serde_json::from_slice(&self.2).ok();
        let detail = problem.as_ref().map_or_else(|| format!("status {}", self.0), |problem| problem.detail.clone());
        Refusal {
            status: self.0.as_u16(),
            code: problem.as_ref().map(|problem| problem.code),
            reason: problem.and_then(|problem| problem.reason),
            detail,
            retry_after: self
                .1
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                .map(Duration::from_secs),
        }
    }
}

impl Refusal {
    fn is_end_of_attempt(&self) -> bool {
        self.status == 401
            || (self.status == 409 && matches!(self.code, Some(ErrorCode::Fenced | ErrorCode::JobFinished)))
    }

    /// Whether the same call may well be answered soon.
    fn is_passing(&self) -> bool {
        self.status >= 500 && self.code != Some(ErrorCode::LlmError)
    }
}

#[cfg(test)]
mod tests {
    use protocol::JobId;
    use rstest::rstest;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_orchestrator_is_lost_once_its_lease_has_been_gone_for_the_patience() {
        let client = OrchestratorClient::new(Path::new("/nowhere"), JobId::generate(), "token", None).unwrap();
        client.lease_is(Duration::from_secs(10));
        let begun = Instant::now();
        let answer = client.ask::<protocol::JobAssignment>(Call::get(&["job"])).await;
        assert!(matches!(answer, Err(CallError::Lost)));
        let waited = begun.elapsed().as_secs();
        assert!((130..=135).contains(&waited), "{waited} s");
    }

    #[test]
    fn a_path_cannot_be_left_by_a_tool_of_any_name() {
        let client = OrchestratorClient::new(Path::new("/nowhere"), JobId::nil(), "token", None).unwrap();
        let request = client.request(Call::get(&["tools", "../complete?x#y"]).query("after", &"a b")).unwrap();
        let base = "http://gantry/worker/00000000-0000-0000-0000-000000000000";
        assert_eq!(request.url().as_str(), format!("{base}/tools/..%2Fcomplete%3Fx%23y?after=a+b"));
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
        assert_eq!((refusal.is_end_of_attempt(), refusal.is_passing()), (over, passing));
    }
}
