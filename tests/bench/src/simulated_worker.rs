//! A simulated worker: opens the session of a real job and sends requests on its socket, as `gantry-worker` does.
//!
//! The job's container is real and meets the posture; its image is the job image with a `gantry-worker` that only
//! sleeps (`containers::build_idle_image`), so that the benchmark is the only one that calls.

use std::{io::ErrorKind, time::Duration};

use protocol::{
    AgentEvent, EventAck, EventBatch, EventData, Job, JobId, JobReason, JobState, LimitsRequest, MessageRole,
    SESSION_HEADER, WorkerEvent,
};
use reqwest::{
    Client, Response, StatusCode,
    header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER},
};

use crate::{Failure, stack::Stack};

/// The container only sleeps.
const JOB_MEMORY_MB: u64 = 64;
/// The token file exists from before the container starts, which takes at least 100 ms, until the first call.
const TOKEN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Any text of 16 to 200 characters; each job has a separate session.
const SESSION: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Text of a typical message of an agent.
const FILLER: &str = "The tests of the parser pass now; the next step is the printer, which still drops the last line.";

/// A job whose worker only sleeps, before its session is open.
pub(crate) struct PendingWorker {
    job: JobId,
}

/// A simulated worker with an open session.
pub(crate) struct SimulatedWorker {
    /// The job.
    pub(crate) job: JobId,
    client: Client,
    last: u64,
}

impl PendingWorker {
    /// Creates a job whose container only sleeps.
    pub(crate) async fn create(stack: &Stack, limits: LimitsRequest) -> Result<Self, Failure> {
        let limits = LimitsRequest { memory_mb: Some(JOB_MEMORY_MB), ..limits };
        Ok(Self { job: stack.create_idle(limits).await? })
    }

    /// A job of which the benchmark is the worker, since its container is of a stand-in engine.
    pub(crate) const fn of(job: JobId) -> Self {
        Self { job }
    }

    /// Waits until the job runs and opens its session.
    pub(crate) async fn attach(self, stack: &Stack) -> Result<SimulatedWorker, Failure> {
        let started = async {
            let token = self.token(stack).await?;
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}"))?);
            headers.insert(SESSION_HEADER, HeaderValue::from_static(SESSION));
            let socket = stack.run_directory(self.job).join("worker.sock");
            let client = Client::builder().unix_socket(socket).default_headers(headers);
            // The server closes connections that are idle for longer.
            let client = client.pool_idle_timeout(POOL_IDLE_TIMEOUT).build()?;
            let is_running = |data: &EventData| matches!(data, EventData::State { to: JobState::InProgress, .. });
            stack.events(self.job).await?.until(is_running).await?;
            let worker = SimulatedWorker { job: self.job, client, last: 0 };
            worker.authenticate().await?;
            Ok(worker)
        };
        if let Ok(started) = tokio::time::timeout(START_TIMEOUT, started).await {
            return started;
        }
        let Job { id, state, reason, message, attempt, .. } = stack.job(self.job).await?;
        let why = reason.map(JobReason::as_str).into_iter().chain(message.as_deref()).collect::<Vec<_>>().join(": ");
        let limit = START_TIMEOUT.as_secs();
        Err(format!("job {id} did not start within {limit} s: it is {state} at attempt {attempt} {why}").into())
    }

    async fn token(&self, stack: &Stack) -> Result<String, Failure> {
        let file = stack.run_directory(self.job).join("token");
        loop {
            match std::fs::read_to_string(&file) {
                Ok(token) => return Ok(token.trim().to_owned()),
                Err(error) if error.kind() == ErrorKind::NotFound => tokio::time::sleep(TOKEN_POLL_INTERVAL).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl SimulatedWorker {
    /// Makes the first call of a worker, without which its attempt ends after the start timeout. The connection then
    /// belongs to the session: others are held to few requests a second.
    pub(crate) async fn authenticate(&self) -> Result<(), Failure> {
        loop {
            let response = self.client.get(url(self.job, "job")).send().await?;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                response.error_for_status()?.bytes().await?;
                return Ok(());
            }
            // Earlier connections, which are closed by now, have used up what those without a session may ask for.
            tokio::time::sleep(retry_after(&response)).await;
        }
    }

    /// The connection pool of the session.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Number of the last stored event.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Sends the next `count` events, each with its number in the text, in one batch; returns when they are stored.
    pub(crate) async fn send(&mut self, count: u64) -> Result<(), Failure> {
        let numbers = self.last + 1..=self.last + count;
        let events = numbers.map(|client_seq| WorkerEvent { client_seq, data: message(client_seq) }).collect();
        let ack = self.post(&EventBatch { events }).await?;
        if ack.last_client_seq != self.last + count {
            return Err(format!("{} were sent, {} are stored", self.last + count, ack.last_client_seq).into());
        }
        self.last = ack.last_client_seq;
        Ok(())
    }

    /// Makes a model call as the worker does, and returns the answer.
    pub(crate) async fn complete(&self, request: &serde_json::Value) -> Result<serde_json::Value, Failure> {
        self.call("llm/complete", request).await
    }

    /// Calls one of the orchestrator's tools as the worker does, and returns the reply.
    pub(crate) async fn tool(&self, name: &str, request: &serde_json::Value) -> Result<serde_json::Value, Failure> {
        self.call(&format!("tools/{name}"), request).await
    }

    async fn call(&self, path: &str, request: &serde_json::Value) -> Result<serde_json::Value, Failure> {
        let response = self.client.post(url(self.job, path)).json(request).send().await?;
        let status = response.status();
        let body = response.bytes().await?;
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(serde_json::from_slice(&body)?)
    }

    async fn post(&self, batch: &EventBatch) -> Result<EventAck, Failure> {
        loop {
            let response = self.client.post(url(self.job, "events")).json(batch).send().await?;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Ok(response.error_for_status()?.json().await?);
            }
            tokio::time::sleep(retry_after(&response)).await;
        }
    }
}

fn url(job: JobId, call: &str) -> String {
    format!("http://localhost/worker/{job}/{call}")
}

fn retry_after(response: &Response) -> Duration {
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    Duration::from_secs(header.and_then(|value| value.parse().ok()).unwrap_or(1))
}

fn message(number: u64) -> AgentEvent {
    AgentEvent::Message { role: MessageRole::Assistant, content: format!("{number} {FILLER}") }
}

/// The event data of message `number` as the store encodes it.
pub(crate) fn stored_message(number: u64) -> String {
    serde_json::json!({"role": "assistant", "content": format!("{number} {FILLER}")}).to_string()
}

/// Extracts the number from a simulated worker's event.
pub(crate) fn number(data: &EventData) -> Option<u64> {
    match data {
        EventData::Message { role: MessageRole::Assistant, content } => content.split_once(' ')?.0.parse().ok(),
        _ => None,
    }
}
