//! A worker driven by the test: the worker API over the real socket, one call at a time.

use std::path::PathBuf;

use orchestrator::engine::ContainerStatus;
use protocol::{Completion, JobAssignment, JobId, PromptDelivery, PromptId, SESSION_HEADER, StatusReply};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::{Container, FakeEngine, Reply};

/// A worker that the test drives.
#[derive(Debug, Clone)]
pub struct ManualWorker {
    http: Client,
    socket: PathBuf,
    engine: FakeEngine,
    container: String,
    /// Its job.
    pub job: JobId,
    path_job: String,
    /// The token from its run directory.
    pub token: String,
    /// The secret of its session; `None` sends no secret.
    session: Option<String>,
}

impl ManualWorker {
    pub(crate) fn in_container(engine: FakeEngine, container: &Container) -> Self {
        let directory = &container.spec.run_dir;
        // Captured when the container was started: the file is removed once the session is open.
        let token = container.token.clone();
        // Shared by all manual workers of this container, like the real worker's secret.
        let session = Some(format!("session-of-{}", container.spec.name));
        let http = Client::builder()
            .unix_socket(directory.join("worker.sock"))
            .pool_max_idle_per_host(0)
            .build()
            .expect("a client on the socket");
        let job = container.spec.job_id;
        let socket = directory.join("worker.sock");
        Self {
            http,
            socket,
            engine,
            container: container.spec.name.clone(),
            job,
            path_job: job.to_string(),
            token,
            session,
        }
    }

    /// The same socket with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// The same socket and token with another secret or none, as a command in the container could send.
    pub fn with_session(&self, secret: Option<&str>) -> Self {
        Self { session: secret.map(str::to_owned), ..self.clone() }
    }

    /// The same socket and token with the path of another job.
    pub fn naming(&self, job: JobId) -> Self {
        Self { path_job: job.to_string(), ..self.clone() }
    }

    /// A request below the job's path.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://gantry/worker/{}/{path}", self.path_job);
        let request = self.http.request(method, url).bearer_auth(&self.token);
        match &self.session {
            Some(secret) => request.header(SESSION_HEADER, secret),
            None => request,
        }
    }

    /// A connection to its socket.
    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.expect("the socket accepts")
    }

    /// The headers of a request for another host, as lines.
    pub fn proxy_headers(&self) -> String {
        let session = self.session.as_deref().map(|secret| format!("{SESSION_HEADER}: {secret}\r\n"));
        format!("proxy-authorization: Bearer {}\r\n{}", self.token, session.unwrap_or_default())
    }

    /// Sends `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        Reply::of(self.request(Method::GET, path)).await
    }

    /// Sends `POST`.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::POST, path).json(body)).await
    }

    /// Fetches the job assignment.
    pub async fn job(&self) -> JobAssignment {
        self.get("job").await.expect(200).json()
    }

    /// Calls the model with one user message.
    pub async fn ask(&self, call_id: &str, content: &str) -> Reply {
        let body = json!({"call_id": call_id, "messages": [{"role": "user", "content": content}]});
        self.post("llm/complete", &body).await
    }

    /// Like [`Self::ask`]; the call must succeed.
    pub async fn complete_llm(&self, call_id: &str, content: &str) -> Completion {
        self.ask(call_id, content).await.expect(200).json()
    }

    /// Sends events: `(client_seq, kind, data)`.
    pub async fn send(&self, events: &[(u64, &str, Value)]) -> Reply {
        let event = |(seq, kind, data): &(u64, &str, Value)| json!({"client_seq": seq, "kind": kind, "data": data});
        self.post("events", &json!({"events": events.iter().map(event).collect::<Vec<_>>()})).await
    }

    /// Records a message of the agent.
    pub async fn record_message(&self, client_seq: u64, content: &str) -> Reply {
        self.send(&[(client_seq, "message", json!({"role": "assistant", "content": content}))]).await
    }

    /// Calls an orchestrator tool.
    pub async fn tool(&self, name: &str, call_id: &str, arguments: Value) -> Reply {
        self.post(&format!("tools/{name}"), &json!({"call_id": call_id, "arguments": arguments})).await
    }

    /// Waits for the next prompt after one that was received (nil: none).
    pub async fn prompt(&self, after: PromptId, wait_seconds: u64) -> Option<PromptDelivery> {
        let reply = self.get(&format!("prompt?wait_seconds={wait_seconds}&after={after}")).await;
        (reply.status.as_u16() != 204).then(|| reply.expect(200).json())
    }

    /// Sends a heartbeat.
    pub async fn status(&self) -> StatusReply {
        self.post("status", &json!({"iteration": 1})).await.expect(200).json()
    }

    /// Reports the outcome.
    pub async fn report(&self, report: Value) -> Reply {
        self.post("complete", &report).await
    }

    /// Writes to the output of its container.
    pub fn print(&self, text: &str) {
        let containers = self.engine.containers();
        let own =
            containers.iter().find(|container| container.spec.name == self.container).expect("its container runs");
        std::fs::write(&own.output, text).expect("the output is written");
    }

    /// Ends the worker's process.
    pub fn exit(&self, code: i64) {
        let there = self.engine.containers().into_iter().find(|container| container.spec.name == self.container);
        // The orchestrator may already have removed the container.
        if there.is_some_and(|container| container.status == ContainerStatus::Running) {
            self.engine.exit(self.job, code, false);
        }
    }

    /// Reports success and exits, like a real worker.
    pub async fn finish(self, text: &str) {
        self.report(json!({"outcome": "completed", "text": text, "iterations": 1})).await.expect(200);
        self.exit(0);
    }
}
