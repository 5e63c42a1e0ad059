//! A client of the public API, over real HTTP.

use protocol::{Event, EventData, Job, JobId, JobState, JobSummary};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::{ChatStream, EventStream, InstanceStream, Reply, StreamMessage};

/// A client with or without a token.
#[derive(Debug, Clone)]
pub struct User {
    http: Client,
    base: String,
    token: Option<String>,
}

impl User {
    /// A client of any orchestrator.
    pub fn at(base: &str, token: Option<String>) -> Self {
        // A new connection for each request: a reader that keeps its connection open must not block other requests.
        let http = Client::builder().pool_max_idle_per_host(0).no_proxy().build().expect("a client");
        Self { http, base: base.to_owned(), token }
    }

    /// The same server with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A request with the token.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        Reply::of(self.request(Method::GET, path)).await
    }

    /// Sends `POST` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::POST, path).json(body)).await
    }

    /// Creates a job with an idempotency key.
    pub async fn post_once(&self, path: &str, key: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::POST, path).header("Idempotency-Key", key).json(body)).await
    }

    /// Sends `POST` with raw bytes as JSON.
    pub async fn post_raw(&self, path: &str, body: &str) -> Reply {
        let request = self.request(Method::POST, path).header("Content-Type", "application/json");
        Reply::of(request.body(body.to_owned())).await
    }

    /// Sends `PUT` with bytes.
    pub async fn put(&self, path: &str, kind: &str, bytes: impl Into<Vec<u8>>) -> Reply {
        let request = self.request(Method::PUT, path).header("Content-Type", kind);
        Reply::of(request.body(bytes.into())).await
    }

    /// Sends `GET` for bytes, which must succeed.
    pub async fn bytes(&self, path: &str) -> Vec<u8> {
        let response = crate::within("a response", self.request(Method::GET, path).send()).await.expect("a response");
        assert_eq!(response.status().as_u16(), 200, "{path}");
        crate::within("the end of a response", response.bytes()).await.expect("the response is complete").to_vec()
    }

    /// Creates a job, which must succeed.
    pub async fn create(&self, body: Value) -> JobId {
        let reply = self.post("/api/jobs", &body).await.expect(201);
        let job: Job = reply.json();
        assert_eq!(reply.header("location"), Some(format!("/api/jobs/{}", job.id).as_str()));
        job.id
    }

    /// Creates a job that has only a prompt.
    pub async fn create_job(&self, prompt: &str) -> JobId {
        self.create(json!({"prompt": prompt})).await
    }

    /// Gets a job, which must exist.
    pub async fn job(&self, id: JobId) -> Job {
        self.get(&format!("/api/jobs/{id}")).await.expect(200).json()
    }

    /// Sends a prompt.
    pub async fn prompt(&self, id: JobId, body: Value) -> Reply {
        self.post(&format!("/api/jobs/{id}/prompt"), &body).await
    }

    /// Cancels a job.
    pub async fn cancel(&self, id: JobId) -> Reply {
        self.post(&format!("/api/jobs/{id}/cancel"), &json!({})).await
    }

    /// All jobs that this user sees, newest first.
    pub async fn jobs(&self) -> Vec<JobSummary> {
        let (mut jobs, mut cursor) = (vec![], String::new());
        loop {
            let page = self.get(&format!("/api/jobs?limit=200{cursor}")).await.expect(200);
            let items: Vec<JobSummary> = serde_json::from_value(page.body["items"].clone()).expect("jobs");
            jobs.extend(items);
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return jobs,
            }
        }
    }

    /// All events of a job.
    pub async fn events(&self, id: JobId) -> Vec<Event> {
        let (mut events, mut after) = (vec![], 0);
        loop {
            let page = self.get(&format!("/api/jobs/{id}/events?limit=200&after={after}")).await.expect(200);
            let items: Vec<Event> = serde_json::from_value(page.body["items"].clone()).expect("events");
            events.extend(items);
            match page.body["next_after"].as_i64() {
                Some(next) => after = next,
                None => return events,
            }
        }
    }

    /// Opens a job's stream after an event or from the start.
    pub async fn stream(&self, id: JobId, last_event_id: Option<i64>) -> EventStream {
        self.stream_of(&format!("/api/jobs/{id}/events"), last_event_id).await
    }

    /// Opens a job's stream with query parameters.
    pub async fn stream_of(&self, path: &str, last_event_id: Option<i64>) -> EventStream {
        EventStream::of(self.open_stream(path, last_event_id).await)
    }

    /// Opens the instance's stream with query parameters, after an event or from now on.
    pub async fn instance_stream(&self, path: &str, last_event_id: Option<i64>) -> InstanceStream {
        InstanceStream::of(self.open_stream(path, last_event_id).await)
    }

    /// Opens the stream of chats with query parameters, after an event or from now on.
    pub async fn chat_stream(&self, path: &str, last_event_id: Option<i64>) -> ChatStream {
        ChatStream::of(self.open_stream(path, last_event_id).await)
    }

    async fn open_stream(&self, path: &str, last_event_id: Option<i64>) -> Response {
        let mut request = self.request(Method::GET, path).header("Accept", "text/event-stream");
        if let Some(position) = last_event_id {
            request = request.header("Last-Event-ID", position.to_string());
        }
        crate::within("a stream's head", request.send()).await.expect("the server responds")
    }

    /// Follows the stream until the job reaches this state and returns the job. Panics if it ends in another state.
    pub async fn wait_for(&self, id: JobId, state: JobState) -> Job {
        let reached = |event: &Event| matches!(event.data, EventData::State { to, .. } if to == state);
        self.wait_for_event(id, state.as_str(), reached).await;
        self.job(id).await
    }

    /// Follows the stream until `wanted` accepts an event.
    pub async fn wait_for_event(&self, id: JobId, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut stream = self.stream(id, None).await;
        let mut received = vec![];
        loop {
            match stream.next().await {
                Some(StreamMessage::Event(event)) if wanted(&event) => return *event,
                Some(StreamMessage::Event(event)) => received.push(event.data),
                other => panic!("got {other:?} while waiting for {what}, after {received:#?}"),
            }
        }
    }

    /// Follows the stream until the job has ended and returns the job.
    pub async fn wait_for_end(&self, id: JobId) -> Job {
        let (_, state, _) = self.stream(id, None).await.rest().await;
        let job = self.job(id).await;
        assert_eq!(job.state, state);
        job
    }
}
