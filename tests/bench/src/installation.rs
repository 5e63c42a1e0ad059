//! One installation of Gantry on this machine: its directory, address and settings, and the process that serves it.
//!
//! Owns the environment of every `gantry` command, and what is known of the process from its log. Never measures.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use protocol::InstanceId;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};

use crate::{Failure, containers, upstream};

const SCRIPT: &str = include_str!("../assets/script.yaml");
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of an installation.
pub(crate) struct Settings {
    /// Path of the `gantry` program.
    pub(crate) gantry: PathBuf,
    /// The job image.
    pub(crate) image: String,
    /// Maximum concurrent jobs, also for one user.
    pub(crate) max_parallel_jobs: u32,
    /// Base URL of an OpenAI-compatible provider, used instead of the script.
    pub(crate) provider_url: Option<String>,
    /// Address of the engine, if it is not Docker's default one.
    pub(crate) engine: Option<String>,
}

/// An installation. Its data is deleted when it is dropped.
pub(crate) struct Installation {
    pub(crate) settings: Settings,
    pub(crate) instance: InstanceId,
    pub(crate) address: SocketAddr,
    directory: TempDir,
}

/// A process that serves an installation. It is killed when it is dropped.
pub(crate) struct Server {
    process: Child,
    printed_bytes: Arc<AtomicU64>,
    /// Receives once the process listens, or its last line if it ends before.
    ready: oneshot::Receiver<Result<(), String>>,
    // Drains the log, so that the process never blocks on writing it.
    _log: JoinSet<()>,
}

impl Installation {
    /// An installation that nothing serves yet.
    pub(crate) fn new(settings: Settings) -> Result<Self, Failure> {
        // Not in TMPDIR, which may be long: a socket path has at most 107 bytes.
        let directory = tempfile::Builder::new().prefix("gantry-bench-").tempdir_in("/tmp")?;
        std::fs::write(directory.path().join("script.yaml"), SCRIPT)?;
        // Another program may take the port before the process binds it; its error message then names the port.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        Ok(Self { settings, instance: InstanceId::generate(), address, directory })
    }

    /// The directory with its data.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Path of the database.
    pub(crate) fn database(&self) -> PathBuf {
        self.directory.path().join("data/gantry.db")
    }

    /// A `gantry` command with the installation's settings.
    pub(crate) fn command(&self) -> Command {
        let (settings, data) = (&self.settings, self.directory.path());
        let mut command = Command::new(&settings.gantry);
        command.current_dir(data).env("GANTRY_DATA_DIR", data.join("data")).env("GANTRY_RUN_DIR", data.join("run"));
        command.env("GANTRY_BIND", self.address.to_string()).env("GANTRY_INSTANCE_ID", self.instance.to_string());
        command.env("GANTRY_URL", format!("http://{}", self.address));
        match &settings.provider_url {
            Some(url) => {
                command.env("GANTRY_LLM_PROVIDER", "openai").env("GANTRY_LLM_BASE_URL", url);
                command.env("GANTRY_LLM_MODEL", upstream::MODEL).env("GANTRY_LIMITS_MAX_ITERATIONS", "1000000");
            }
            None => {
                command.env("GANTRY_LLM_PROVIDER", "scripted").env("GANTRY_LLM_SCRIPT", data.join("script.yaml"));
            }
        }
        if let Some(engine) = &settings.engine {
            command.env("DOCKER_HOST", engine);
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
        // A machine that builds has less free than the default floor at times; its jobs would wait without a word.
        command.env("GANTRY_DISK_FLOOR_MB", "512");
        command.env("GANTRY_LOG_FORMAT", "json").env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // An interrupt from the terminal must reach only the benchmark, which needs the process for cleaning up.
        command.process_group(0);
        command
    }

    /// Starts a process that serves it.
    pub(crate) fn serve(&self) -> Result<Server, Failure> {
        let process = self.command().arg("serve").stdout(Stdio::null()).spawn();
        let mut process = process.map_err(|error| format!("{}: {error}", self.settings.gantry.display()))?;
        let log = process.stderr.take().ok_or("the log cannot be read")?;
        let (printed_bytes, (ready_sender, ready)) = (Arc::new(AtomicU64::new(0)), oneshot::channel());
        let mut reader = JoinSet::new();
        reader.spawn(read_log(log, Arc::clone(&printed_bytes), ready_sender));
        Ok(Server { process, printed_bytes, ready, _log: reader })
    }

    /// Creates a token with a role. The server must have made the key that signs it.
    pub(crate) async fn token(&self, user: &str, role: &str) -> Result<String, Failure> {
        let made =
            self.command().args(["token", "create", "--user", user, "--role", role, "--ttl", "1d"]).output().await?;
        if !made.status.success() {
            return Err(format!("no token: {}", String::from_utf8_lossy(&made.stderr).trim()).into());
        }
        Ok(String::from_utf8(made.stdout)?.trim().to_owned())
    }
}

impl Server {
    /// Whether the process listens before `limit` has passed. Not called again once it does.
    pub(crate) async fn is_listening(&mut self, limit: Duration) -> Result<bool, Failure> {
        match timeout(limit, &mut self.ready).await {
            Ok(Ok(Ok(()))) => Ok(true),
            Ok(Ok(Err(last))) => Err(format!("gantry serve ended; its last line: {last}").into()),
            Ok(Err(_)) => Err("the log's reader ended".into()),
            Err(_) => Ok(false),
        }
    }

    /// Waits until the process listens.
    pub(crate) async fn listening(&mut self, limit: Duration) -> Result<(), Failure> {
        if self.is_listening(limit).await? {
            return Ok(());
        }
        Err(format!("gantry serve did not listen within {} s", limit.as_secs()).into())
    }

    /// Process id.
    pub(crate) fn process_id(&self) -> Result<u32, Failure> {
        self.process.id().ok_or_else(|| "gantry serve has ended".into())
    }

    /// Bytes that the process has logged.
    pub(crate) fn printed_bytes(&self) -> u64 {
        self.printed_bytes.load(Ordering::Relaxed)
    }

    /// Ends the process with SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.process.kill().await?)
    }

    /// Asks the process to end, and kills it if it does not.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        if let Ok(id) = i32::try_from(self.process_id()?)
            && let Some(process) = Pid::from_raw(id)
        {
            rustix::process::kill_process(process, Signal::TERM)?;
        }
        if timeout(STOP_TIMEOUT, self.process.wait()).await.is_err() {
            self.process.kill().await?;
        }
        Ok(())
    }
}

/// Reads the log to its end; tells when the process listens, or with which line it ended before.
async fn read_log(log: ChildStderr, printed_bytes: Arc<AtomicU64>, ready: oneshot::Sender<Result<(), String>>) {
    let mut lines = BufReader::new(log).lines();
    let (mut ready, mut last) = (Some(ready), String::new());
    while let Ok(Some(line)) = lines.next_line().await {
        printed_bytes.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
        if line.contains("\"message\":\"listening\"")
            && let Some(ready) = ready.take()
        {
            // The receiver may have timed out.
            let _ = ready.send(Ok(()));
        }
        last = line;
    }
    if let Some(ready) = ready.take() {
        let _ = ready.send(Err(last));
    }
}
