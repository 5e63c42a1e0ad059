//! A simulated worker: sends requests on a live job's socket with its token while the real worker sleeps in a shell call.
//!
//! The token is read before the real worker opens its session. The job's row is then changed to that of an attempt that needs
//! no session, as attempts begun by an older version; only the benchmark has access to the database.
//!
//! The simulated worker takes over the numbering of events, so the real worker's later events are ignored and such a job can
//! only be cancelled.

use std::time::Duration;

use protocol::{AgentEvent, EventAck, EventBatch, EventData, JobId, LimitsRequest, MessageRole, WorkerEvent};
use reqwest::{Client, Response, StatusCode, header::RETRY_AFTER};
use sqlx::Connection as _;

use crate::{Failure, database, stack::Stack};

/// The container only sleeps.
const JOB_MEMORY_MB: u64 = 64;
/// The token file exists from before the container starts, which takes at least 100 ms, until the worker's first call.
const TOKEN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const TOKEN_TIMEOUT: Duration = Duration::from_mins(1);
/// Text of a typical message of an agent.
const FILLER: &str = "The tests of the parser pass now; the next step is the printer, which still drops the last line.";

/// A job whose worker has not been replaced yet.
pub(crate) struct PendingWorker {
    job: JobId,
    token: String,
}

/// A simulated worker attached to a job.
pub(crate) struct SimulatedWorker {
    /// The job.
    pub(crate) job: JobId,
    client: Client,
    url: String,
    token: String,
    /// Number of the last event of the real worker.
    before: u64,
    last: u64,
}

impl PendingWorker {
    /// Creates a job and waits for its token.
    pub(crate) async fn create(stack: &Stack, prompt: &str, limits: LimitsRequest) -> Result<Self, Failure> {
        let job = stack.create(prompt, Some(limits)).await?;
        let file = stack.run_folder(job).join("token");
        let token = async {
            loop {
                match std::fs::read_to_string(&file) {
                    Ok(token) => return token.trim().to_owned(),
                    Err(_) => tokio::time::sleep(TOKEN_POLL_INTERVAL).await,
                }
            }
        };
        let token = tokio::time::timeout(TOKEN_TIMEOUT, token).await?;
        Ok(Self { job, token })
    }

    /// The job's id.
    pub(crate) const fn job(&self) -> JobId {
        self.job
    }

    /// Connects to the job's socket with the limits of a worker session.
    pub(crate) async fn connect(&self, stack: &Stack) -> Result<Client, Failure> {
        let mut database = database::open(&stack.database()).await?;
        let open = "UPDATE jobs SET session_attempt = NULL WHERE id = ?";
        sqlx::query(open).bind(*self.job.as_uuid()).execute(&mut database).await?;
        database.close().await?;
        let client = Client::builder().unix_socket(stack.run_folder(self.job).join("worker.sock")).build()?;
        let url = format!("http://localhost/worker/{}/tools", self.job);
        client.get(url).bearer_auth(&self.token).send().await?.error_for_status()?.bytes().await?;
        Ok(client)
    }
}

impl SimulatedWorker {
    /// Creates a job and waits for its token; [`SimulatedWorker::attach`] then replaces its worker.
    pub(crate) async fn create(stack: &Stack) -> Result<PendingWorker, Failure> {
        let limits = LimitsRequest { memory_mb: Some(JOB_MEMORY_MB), ..LimitsRequest::default() };
        PendingWorker::create(stack, "bench: sleep", limits).await
    }

    /// Waits until the job's worker sleeps, and replaces it.
    pub(crate) async fn attach(stack: &Stack, pending: PendingWorker) -> Result<Self, Failure> {
        let job = pending.job;
        stack.events(job).await?.until(|data| matches!(data, EventData::ToolUse { .. })).await?;
        let client = pending.connect(stack).await?;
        let token = pending.token;
        let url = format!("http://localhost/worker/{job}/events");
        let mut worker = Self { job, client, url, token, before: 0, last: 0 };
        // Event 1 is a duplicate, so the acknowledgement carries the last number.
        let known = vec![WorkerEvent { client_seq: 1, data: message(1) }];
        worker.last = worker.post(&EventBatch { events: known }).await?.last_client_seq;
        worker.before = worker.last;
        Ok(worker)
    }

    /// Number of the last event of the real worker.
    pub(crate) const fn before(&self) -> u64 {
        self.before
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
        let url = format!("http://localhost/worker/{}/llm/complete", self.job);
        let response = self.client.post(url).bearer_auth(&self.token).json(request).send().await?;
        let status = response.status();
        let body = response.bytes().await?;
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(serde_json::from_slice(&body)?)
    }

    async fn post(&self, batch: &EventBatch) -> Result<EventAck, Failure> {
        loop {
            let response = self.client.post(&self.url).bearer_auth(&self.token).json(batch).send().await?;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Ok(response.error_for_status()?.json().await?);
            }
            tokio::time::sleep(retry_after(&response)).await;
        }
    }
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
