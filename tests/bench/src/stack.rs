//! The Gantry under test: a real `gantry serve` on a real engine, with a scripted model.
//!
//! Owns the tokens of its two users, the requests that programs share, and the containers it leaves in the engine.
//! Never measures.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt};
use protocol::{CreateJob, Event, EventData, InputFile, Job, JobId, LimitsRequest};
use reqwest::{Client, Method, RequestBuilder, header::ACCEPT};
use serde::de::DeserializeOwned;
use sse_stream::SseStream;
use tokio::time::timeout;

use crate::{
    Failure,
    containers::{self, BaselineContainers},
    installation::{Installation, Server},
};

/// The first sandbox probe creates a container.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_mins(1);
const EVENT_TIMEOUT: Duration = Duration::from_mins(2);

/// A user of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Owner of the measured jobs.
    Bench,
    /// Owner of the flooding jobs.
    Hostile,
}

/// A running `gantry serve`.
pub(crate) struct Stack {
    client: Client,
    url: String,
    token: String,
    hostile_token: String,
    server: Server,
    installation: Installation,
}

impl Stack {
    /// The stack of an installation whose server listens.
    pub(crate) async fn new(installation: Installation, server: Server) -> Result<Self, Failure> {
        let token = installation.token("bench", "user").await?;
        let hostile_token = installation.token("hostile", "user").await?;
        let url = format!("http://{}", installation.address);
        Ok(Self { client: Client::builder().build()?, url, token, hostile_token, server, installation })
    }

    /// Stops the server and starts it again; how long the start took until it listens.
    pub(crate) async fn restart(&mut self) -> Result<Duration, Failure> {
        self.server.stop().await?;
        let started = Instant::now();
        self.server = self.installation.serve()?;
        self.server.listening(READY_TIMEOUT).await?;
        Ok(started.elapsed())
    }

    /// What is served.
    pub(crate) const fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The directory with the stack's data. Programs may keep their own files in it.
    pub(crate) fn directory(&self) -> &Path {
        self.installation.directory()
    }

    /// The job image, used by both sides.
    pub(crate) fn image(&self) -> &str {
        &self.installation.settings.image
    }

    /// Baseline containers, removed with the stack's own when it stops.
    pub(crate) fn baseline(&self) -> Result<BaselineContainers, Failure> {
        BaselineContainers::new(self.installation.directory(), self.baseline_label(), self.image().to_owned())
    }

    fn baseline_label(&self) -> String {
        format!("gantry-bench={}", self.installation.instance)
    }

    /// The run directory of a job's first attempt, with its socket.
    pub(crate) fn run_directory(&self, job: JobId) -> PathBuf {
        self.installation.directory().join("run").join(container_name(job))
    }

    /// The directory that contains the run directories.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.installation.directory().join("run")
    }

    /// A job's workspace.
    pub(crate) fn workspace(&self, job: JobId) -> PathBuf {
        self.installation.directory().join("data/workspaces").join(job.to_string())
    }

    /// Bytes that the process has logged.
    pub(crate) fn printed_bytes(&self) -> u64 {
        self.server.printed_bytes()
    }

    /// Path of the database, for programs that fill it or read its rows.
    pub(crate) fn database(&self) -> PathBuf {
        self.installation.database()
    }

    /// Base URL of the API.
    pub(crate) fn base(&self) -> &str {
        &self.url
    }

    /// URL of an API path, for programs with their own connections.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// API token of the benchmark's user.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Process id of `gantry serve`.
    pub(crate) fn process_id(&self) -> Result<u32, Failure> {
        self.server.process_id()
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_as(User::Bench, method, path)
    }

    fn request_as(&self, user: User, method: Method, path: &str) -> RequestBuilder {
        let token = match user {
            User::Bench => &self.token,
            User::Hostile => &self.hostile_token,
        };
        self.client.request(method, self.url(path)).bearer_auth(token)
    }

    /// Creates a job.
    pub(crate) async fn create(&self, prompt: &str, limits: Option<LimitsRequest>) -> Result<JobId, Failure> {
        let body = CreateJob { prompt: prompt.to_owned(), limits, ..CreateJob::default() };
        let job: Job = answer(self.request(Method::POST, "/api/jobs").json(&body)).await?;
        Ok(job.id)
    }

    /// Creates a job whose worker only sleeps.
    pub(crate) async fn create_idle(&self, limits: LimitsRequest) -> Result<JobId, Failure> {
        let image = containers::build_idle_image(self.image()).await?;
        let (prompt, limits) = ("bench: idle".to_owned(), Some(limits));
        let body = CreateJob { prompt, limits, image: Some(image.to_owned()), ..CreateJob::default() };
        let job: Job = answer(self.request(Method::POST, "/api/jobs").json(&body)).await?;
        Ok(job.id)
    }

    /// Creates a job of the hostile user, with files.
    pub(crate) async fn create_hostile(&self, prompt: &str, files: Vec<InputFile>) -> Result<JobId, Failure> {
        let body = CreateJob { prompt: prompt.to_owned(), files, ..CreateJob::default() };
        let job: Job = answer(self.request_as(User::Hostile, Method::POST, "/api/jobs").json(&body)).await?;
        Ok(job.id)
    }

    /// Gets a job.
    pub(crate) async fn job(&self, job: JobId) -> Result<Job, Failure> {
        answer(self.request(Method::GET, &format!("/api/jobs/{job}"))).await
    }

    /// Requests a job's cancellation.
    pub(crate) async fn cancel(&self, job: JobId) -> Result<(), Failure> {
        let request = self.request(Method::POST, &format!("/api/jobs/{job}/cancel"));
        let _: Job = answer(request.json(&serde_json::json!({}))).await?;
        Ok(())
    }

    /// Streams a job's events from the first one on.
    pub(crate) async fn events(&self, job: JobId) -> Result<Events, Failure> {
        self.events_as(User::Bench, job).await
    }

    /// Like [`Self::events`], for a job of the given user.
    pub(crate) async fn events_as(&self, user: User, job: JobId) -> Result<Events, Failure> {
        let request = self.request_as(user, Method::GET, &format!("/api/jobs/{job}/events"));
        let response = request.header(ACCEPT, "text/event-stream").send().await?.error_for_status()?;
        let stream = SseStream::from_bytes_stream(response.bytes_stream()).filter_map(|message| async {
            match message {
                Ok(message) => message.data.and_then(|data| serde_json::from_str::<Event>(&data).ok()).map(Ok),
                Err(error) => Some(Err(Failure::from(error.to_string()))),
            }
        });
        Ok(Events(Box::pin(stream)))
    }

    /// Stops the process, and removes the containers that are left.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        self.server.stop().await?;
        // Another engine ends with the benchmark.
        if self.installation.settings.engine.is_some() {
            return Ok(());
        }
        containers::remove_with_label(&format!("gantry.instance-id={}", self.installation.instance)).await?;
        containers::remove_with_label(&self.baseline_label()).await
    }
}

/// Name of the container of a job's first attempt.
pub(crate) fn container_name(job: JobId) -> String {
    format!("gantry-job-{job}-1")
}

/// A job's event stream.
pub(crate) struct Events(std::pin::Pin<Box<dyn Stream<Item = Result<Event, Failure>> + Send>>);

impl Events {
    /// Reads up to and including the first event that matches.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&EventData) -> bool) -> Result<Event, Failure> {
        let find = async {
            while let Some(event) = self.0.next().await {
                let event = event?;
                if wanted(&event.data) {
                    return Ok(event);
                }
                if let Some(end) = ended(&event.data) {
                    return Err(format!("the job ended before it should: {end}").into());
                }
            }
            Err("the stream ended".into())
        };
        timeout(EVENT_TIMEOUT, find).await.map_err(|_| format!("no such event within {} s", EVENT_TIMEOUT.as_secs()))?
    }
}

/// Whether this is a job's last event.
pub(crate) fn is_final(data: &EventData) -> bool {
    ended(data).is_some()
}

fn ended(data: &EventData) -> Option<String> {
    match data {
        EventData::State { to, reason, message, .. } if to.is_finished() => {
            let reason = reason.map_or("", |reason| reason.as_str());
            Some(format!("{to} {reason} {}", message.as_deref().unwrap_or_default()).trim().to_owned())
        }
        _ => None,
    }
}

async fn answer<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Failure> {
    let response = request.send().await?;
    let status = response.status();
    let body = response.bytes().await?;
    if status.is_success() {
        return Ok(serde_json::from_slice(&body)?);
    }
    Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into())
}
