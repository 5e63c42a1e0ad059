//! The Gantry under test: a real `gantry serve` on a real engine, with a scripted model.
//!
//! Owns its data directory, port, process and the containers it leaves in the engine. Never measures.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use protocol::{CreateJob, Event, EventData, InputFile, InstanceId, Job, JobId, LimitsRequest};
use reqwest::{Client, Method, RequestBuilder, header::ACCEPT};
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use sse_stream::SseStream;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};

use crate::{
    Failure,
    containers::{self, BaselineContainers},
    upstream,
};

const SCRIPT: &str = include_str!("../assets/script.yaml");
/// The first sandbox probe creates a container.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
const EVENT_TIMEOUT: Duration = Duration::from_mins(2);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a stack.
pub(crate) struct StackSettings {
    /// Path of the `gantry` program.
    pub(crate) gantry: PathBuf,
    /// The job image.
    pub(crate) image: String,
    /// Maximum concurrent jobs, also for one user.
    pub(crate) max_parallel_jobs: u32,
    /// Base URL of an OpenAI-compatible provider, used instead of the script.
    pub(crate) provider_url: Option<String>,
}

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
    instance: InstanceId,
    image: String,
    directory: TempDir,
    process: Child,
    printed_bytes: Arc<AtomicU64>,
    // Drains the log, so that the process never blocks on writing it.
    _log: JoinSet<()>,
}

impl Stack {
    /// Starts the process and waits until it listens.
    pub(crate) async fn start(settings: StackSettings) -> Result<Self, Failure> {
        // Not in TMPDIR, which may be long: a socket path has at most 107 bytes.
        let directory = tempfile::Builder::new().prefix("gantry-bench-").tempdir_in("/tmp")?;
        std::fs::write(directory.path().join("script.yaml"), SCRIPT)?;
        let instance = InstanceId::generate();
        // Another program may take the port before the process binds it; its error message then names the port.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let command = || {
            let mut command = Command::new(&settings.gantry);
            let data = directory.path();
            command.current_dir(data).env("GANTRY_DATA_DIR", data.join("data")).env("GANTRY_RUN_DIR", data.join("run"));
            command.env("GANTRY_BIND", address.to_string()).env("GANTRY_INSTANCE_ID", instance.to_string());
            match &settings.provider_url {
                Some(url) => {
                    command.env("GANTRY_LLM_PROVIDER", "openai").env("GANTRY_LLM_BASE_URL", url);
                    command.env("GANTRY_LLM_MODEL", upstream::MODEL).env("GANTRY_LIMITS_MAX_ITERATIONS", "1000000");
                }
                None => {
                    command.env("GANTRY_LLM_PROVIDER", "scripted").env("GANTRY_LLM_SCRIPT", data.join("script.yaml"));
                }
            }
            command.env("GANTRY_MAX_PARALLEL_JOBS", settings.max_parallel_jobs.to_string());
            command.env("GANTRY_MAX_PARALLEL_JOBS_PER_USER", settings.max_parallel_jobs.to_string());
            command.env("GANTRY_SANDBOX_IMAGES", containers::IDLE_IMAGE);
            command.env("GANTRY_SANDBOX_IMAGE", &settings.image).env("GANTRY_SANDBOX", "docker");
            // Simulated workers send no heartbeats.
            command.env("GANTRY_LEASE_SECONDS", "600");
            // `loop` calls one tool, and `chat` sends messages, more often than the default rate limits allow.
            command.env("GANTRY_TOOL_RATE_BURST", "0").env("GANTRY_TOOL_RATE_PER_HOUR", "0");
            command.env("GANTRY_CHAT_SEND_BURST", "0").env("GANTRY_INBOUND_RATE_BURST", "0");
            command.env("GANTRY_LOG_FORMAT", "json").env("RUST_LOG", "info");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
            // An interrupt from the terminal must reach only the benchmark, which needs the process for cleaning up.
            command.process_group(0);
            command
        };
        let process = command().arg("serve").stdout(Stdio::null()).spawn();
        let mut process = process.map_err(|error| format!("{}: {error}", settings.gantry.display()))?;
        let log = process.stderr.take().ok_or("the log cannot be read")?;
        let printed_bytes = Arc::new(AtomicU64::new(0));
        let reader = listening(log, Arc::clone(&printed_bytes)).await?;
        // The server has made the key that signs them.
        let (token, hostile_token) = (token_of(command(), "bench").await?, token_of(command(), "hostile").await?);
        Ok(Self {
            client: Client::builder().build()?,
            url: format!("http://{address}"),
            token,
            hostile_token,
            instance,
            image: settings.image,
            directory,
            process,
            printed_bytes,
            _log: reader,
        })
    }

    /// The directory with the stack's data. Programs may keep their own files in it.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The job image, used by both sides.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// Baseline containers, removed with the stack's own when it stops.
    pub(crate) fn baseline(&self) -> Result<BaselineContainers, Failure> {
        BaselineContainers::new(self.directory.path(), self.baseline_label(), self.image.clone())
    }

    fn baseline_label(&self) -> String {
        format!("gantry-bench={}", self.instance)
    }

    /// The run directory of a job's first attempt, with its socket.
    pub(crate) fn run_directory(&self, job: JobId) -> PathBuf {
        self.directory.path().join("run").join(container_name(job))
    }

    /// The directory that contains the run directories.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// A job's workspace.
    pub(crate) fn workspace(&self, job: JobId) -> PathBuf {
        self.directory.path().join("data/workspaces").join(job.to_string())
    }

    /// Bytes that the process has logged.
    pub(crate) fn printed_bytes(&self) -> u64 {
        self.printed_bytes.load(Ordering::Relaxed)
    }

    /// Path of the database, for programs that fill it or read its rows.
    pub(crate) fn database(&self) -> PathBuf {
        self.directory.path().join("data/gantry.db")
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
        self.process.id().ok_or_else(|| "gantry serve has ended".into())
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
        let image = containers::build_idle_image(&self.image).await?;
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
        if let Ok(id) = i32::try_from(self.process_id()?)
            && let Some(process) = Pid::from_raw(id)
        {
            rustix::process::kill_process(process, Signal::TERM)?;
        }
        if timeout(STOP_TIMEOUT, self.process.wait()).await.is_err() {
            self.process.kill().await?;
        }
        containers::remove_with_label(&format!("gantry.instance-id={}", self.instance)).await?;
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

/// Creates a token for one of the two users.
async fn token_of(mut gantry: Command, user: &str) -> Result<String, Failure> {
    let made = gantry.args(["token", "create", "--user", user, "--ttl", "1d"]).output().await?;
    if !made.status.success() {
        return Err(format!("no token: {}", String::from_utf8_lossy(&made.stderr).trim()).into());
    }
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// Reads the log until the process listens, and keeps draining it.
async fn listening(log: ChildStderr, printed_bytes: Arc<AtomicU64>) -> Result<JoinSet<()>, Failure> {
    let (ready_sender, ready) = oneshot::channel();
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let mut lines = BufReader::new(log).lines();
        let mut ready_sender = Some(ready_sender);
        let mut last = String::new();
        while let Ok(Some(line)) = lines.next_line().await {
            printed_bytes.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
            if line.contains("\"message\":\"listening\"")
                && let Some(ready_sender) = ready_sender.take()
            {
                // The receiver may have timed out.
                let _ = ready_sender.send(Ok(()));
            }
            last = line;
        }
        if let Some(ready_sender) = ready_sender.take() {
            let _ = ready_sender.send(Err(last));
        }
    });
    match timeout(READY_TIMEOUT, ready).await {
        Ok(Ok(Ok(()))) => Ok(reader),
        Ok(Ok(Err(last))) => Err(format!("gantry serve ended; its last line: {last}").into()),
        Ok(Err(_)) => Err("the log's reader ended".into()),
        Err(_) => Err(format!("gantry serve did not listen within {} s", READY_TIMEOUT.as_secs()).into()),
    }
}
