//! A worker played by the benchmark: events into a live job's own socket, with its token, while its real worker sleeps in
//! a shell call.
//!
//! The token is read before the real worker opens its session, and the job's row is then made that of an attempt that needs no
//! session, as those that an older version began: the benchmark has the database, which nothing in a container has.
//!
//! Owns the numbers of what it sends. The real worker's own come from then on too late, so such a job can only be
//! cancelled.

use std::time::Duration;

use protocol::{EventAck, EventBatch, EventData, JobId, LimitsRequest, MessageRole, WorkerEvent};
use reqwest::{Client, Response, StatusCode, header::RETRY_AFTER};
use sqlx::Connection as _;

use crate::{Failure, database, stack::Stack};

/// A played worker's container does nothing, so there may be many.
const JOB_MEMORY_MB: u64 = 64;
/// A token is there from before its container starts, which takes 100 ms and more, until its worker's first call.
const TOKEN_POLL: Duration = Duration::from_millis(2);
const TOKEN_TIMEOUT: Duration = Duration::from_mins(1);
/// What a message of an agent may be long.
const FILLER: &str = "The tests of the parser pass now; the next step is the printer, which still drops the last line.";

/// A job that waits for its played worker.
pub(crate) struct Candidate {
    job: JobId,
    token: String,
}

/// The played worker.
pub(crate) struct Hand {
    /// Its job.
    pub(crate) job: JobId,
    client: Client,
    url: String,
    token: String,
    /// The last number before it took over.
    before: u64,
    last: u64,
}

impl Candidate {
    /// Creates a job and waits for its token.
    pub(crate) async fn create(stack: &Stack, prompt: &str, limits: LimitsRequest) -> Result<Self, Failure> {
        let job = stack.create(prompt, Some(limits)).await?;
        let file = stack.run_folder(job).join("token");
        let token = async {
            loop {
                match std::fs::read_to_string(&file) {
                    Ok(token) => return token.trim().to_owned(),
                    Err(_) => tokio::time::sleep(TOKEN_POLL).await,
                }
            }
        };
        let token = tokio::time::timeout(TOKEN_TIMEOUT, token).await?;
        Ok(Self { job, token })
    }

    /// Its job.
    pub(crate) const fn job(&self) -> JobId {
        self.job
    }

    /// A client on the job's socket whose connection has the limits of a worker's session.
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

impl Hand {
    /// Creates a job for it, and waits for its token. It lives once [`Hand::take`] has it.
    pub(crate) async fn create(stack: &Stack) -> Result<Candidate, Failure> {
        let limits = LimitsRequest { memory_mb: Some(JOB_MEMORY_MB), ..LimitsRequest::default() };
        Candidate::create(stack, "bench: sleep", limits).await
    }

    /// Waits until the job's worker sleeps, and takes its place.
    pub(crate) async fn take(stack: &Stack, candidate: Candidate) -> Result<Self, Failure> {
        let job = candidate.job;
        stack.events(job).await?.until(|data| matches!(data, EventData::ToolUse { .. })).await?;
        let client = candidate.connect(stack).await?;
        let token = candidate.token;
        let url = format!("http://localhost/worker/{job}/events");
        let mut hand = Self { job, client, url, token, before: 0, last: 0 };
        // The number 1 was given long ago, so the answer is the last that was.
        let known = vec![WorkerEvent { client_seq: 1, data: message(1) }];
        hand.last = hand.post(&EventBatch { events: known }).await?.last_client_seq;
        hand.before = hand.last;
        Ok(hand)
    }

    /// The number of the last event before its own.
    pub(crate) const fn before(&self) -> u64 {
        self.before
    }

    /// The number of the last event that is stored.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Sends the next `count` in one batch and returns when they are stored. Each says its number.
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

    /// Makes a model call as the worker makes it, and returns the answer.
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

fn message(number: u64) -> EventData {
    EventData::Message { role: MessageRole::Assistant, content: format!("{number} {FILLER}") }
}

/// The same message as the store keeps it.
pub(crate) fn stored_message(number: u64) -> String {
    serde_json::json!({"role": "assistant", "content": format!("{number} {FILLER}")}).to_string()
}

/// The number that a played worker's event says.
pub(crate) fn number(data: &EventData) -> Option<u64> {
    match data {
        EventData::Message { role: MessageRole::Assistant, content } => content.split_once(' ')?.0.parse().ok(),
        _ => None,
    }
}
