//! A stack: one install of Gantry on the real engine, from an empty data directory to an end without leftovers.

use std::{fs, path::PathBuf, process::ExitStatus, time::Duration};

use super::{
    engine::{docker, must, wait_until},
    jobs::processes_of_jobs,
    program::{Daemon, Ended, run},
};
use crate::{User, check_events};
use orchestrator::Environment;
use protocol::{InstanceId, JobId};
use serde_json::Value;
use tempfile::TempDir;

/// The variable that replaces the job image built by `tests/run.sh --only images`.
const IMAGE_VARIABLE: &str = "GANTRY_TEST_IMAGE";
/// The variable that replaces the engine's default runtime. `DOCKER_HOST` selects another engine.
const RUNTIME_VARIABLE: &str = "GANTRY_TEST_RUNTIME";
const OTHER_RUNTIME_FACTOR: u32 = 15;
/// A secret that must never occur in a container.
pub const API_KEY: &str = "canary-of-the-models-key-5f1d0c";
/// A secret that must never occur in a container.
pub const JWT_SECRET: &str = "canary-of-the-signing-key-at-least-32-bytes-8a3e";
/// Upper bound for removing the container of a completed job.
pub const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of a process's output that is shown when a test fails.
const LAST_LINES: usize = 60;

/// The default script: the model executes the prompt as an order.
pub const RUN_SCRIPT: &str = r"
model: e2e-1
rules:
  - when: { prompt: { regex: '(?s)^run: (.*)$' }, turn: 1 }
    reply: { text: I run it., tool_calls: [{ name: shell, arguments: { command: '{{match.1}}' } }] }
  - when: { prompt: { regex: '(?s)^echo: (.*)$' }, turn: 1 }
    reply: { text: I say it., tool_calls: [{ name: echo, arguments: { message: '{{match.1}}' } }] }
  - when: { prompt: { regex: '^(run|echo): ' }, turn: 2 }
    reply: { text: '{{tool_result}}' }
  - when: { prompt: { regex: '(?s)^bear: (.*)$' }, turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: '{{match.1}}' } }] }
  - when: { prompt: { regex: '^bear: ' }, turn: 2 }
    reply: { tool_calls: [{ name: shell, arguments: { command: echo the job continues } }] }
  - when: { prompt: { regex: '^bear: ' } }
    reply: { text: I bore it. }
  - when: { prompt: ponder, turn: 1 }
    reply: { tool_calls: [{ name: echo, arguments: { message: hm } }] }
  - when: { prompt: { regex: 'think long|ponder' } }
    reply: { text: At last., delay_ms: 60000 }
  - when: { prompt: fail }
    error: { status: 400, message: the model is out of order }
  - reply: { text: 'You said: {{last_message}}' }
";

/// The job image. Never the image of a real install on this machine.
pub fn image() -> String {
    let set = Environment::from_process().get(IMAGE_VARIABLE).map(str::to_owned);
    set.unwrap_or_else(|| "gantry-worker:test".to_owned())
}

/// The runtime of the jobs, if the environment of the tests sets one.
pub fn runtime() -> Option<String> {
    Environment::from_process().get(RUNTIME_VARIABLE).map(str::to_owned)
}

/// A time limit of the contract, which applies to the engine's default runtime. A runtime that starts a kernel for each
/// container takes several times as long, and much longer on a busy machine.
pub fn scaled(limit: Duration) -> Duration {
    if runtime().is_some() { limit * OTHER_RUNTIME_FACTOR } else { limit }
}

/// Builds a stack.
pub struct Builder {
    instance: InstanceId,
    directory: TempDir,
    settings: Vec<(String, String)>,
    engine: Option<String>,
}

impl Builder {
    /// Sets a setting by its variable.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Uses another engine, by its address.
    pub fn on_engine(self, host: &str) -> Self {
        Self { engine: Some(host.to_owned()), ..self.set("DOCKER_HOST", host) }
    }

    /// Sets the model's script.
    pub fn script(self, yaml: &str) -> Self {
        fs::write(self.directory.path().join("script.yaml"), yaml).expect("the script is written");
        self
    }

    /// Starts the stack. The engine and the image must exist.
    pub async fn start(self) -> Stack {
        let image = image();
        let (exists, output) = docker(&["image", "inspect", "--format", "{{.Id}}", &image]).await;
        assert!(
            exists,
            "the tests need a running engine with the image {image}; run tests/run.sh --only images: {output}"
        );
        self.start_unchecked().await
    }

    /// Starts the stack without checking the engine.
    pub async fn start_unchecked(self) -> Stack {
        let Self { instance, directory, settings, engine } = self;
        let mut stack = Stack { instance, directory, settings, engine, daemon: None, base: None };
        stack.restart().await;
        stack
    }
}

/// One install.
pub struct Stack {
    /// The instance id, which labels its containers.
    pub instance: InstanceId,
    directory: TempDir,
    settings: Vec<(String, String)>,
    /// The address of its engine, if it is not the machine's.
    engine: Option<String>,
    daemon: Option<Daemon>,
    /// The address it listens on. The port stays the same after a restart.
    base: Option<String>,
}

impl Stack {
    /// A builder for the machine's engine and the default script.
    pub fn builder() -> Builder {
        // In /tmp because socket paths must be short.
        let directory = tempfile::Builder::new().prefix("ge").tempdir_in("/tmp").expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let instance = InstanceId::generate();
        let settings = [
            ("GANTRY_BIND", "127.0.0.1:0".to_owned()),
            ("GANTRY_DATA_DIR", path("data")),
            ("GANTRY_INSTANCE_ID", instance.to_string()),
            ("GANTRY_SANDBOX_IMAGE", image()),
            ("GANTRY_JWT_SECRET", JWT_SECRET.to_owned()),
            ("GANTRY_LLM_PROVIDER", "scripted".to_owned()),
            ("GANTRY_LLM_SCRIPT", path("script.yaml")),
            ("GANTRY_LLM_API_KEY", API_KEY.to_owned()),
            ("GANTRY_LOG_FORMAT", "json".to_owned()),
            // Disk checks are off by default, so that tests do not depend on the machine's free space.
            ("GANTRY_DISK_FLOOR_MB", "0".to_owned()),
        ];
        let mut settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        settings.extend(runtime().map(|name| ("GANTRY_SANDBOX_RUNTIME".to_owned(), name)));
        let host = Environment::from_process().get("DOCKER_HOST").map(str::to_owned);
        settings.extend(host.map(|host| ("DOCKER_HOST".to_owned(), host)));
        Builder { instance, directory, settings, engine: None }.script(RUN_SCRIPT)
    }

    /// Starts a stack with the default settings.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Starts the process and waits until it listens.
    pub async fn restart(&mut self) {
        assert!(self.try_restart().await, "gantry ended before it listened: {:#?}", self.lines());
    }

    /// Like [`Self::start`]; returns false if the process ends before it listens.
    pub async fn try_restart(&mut self) -> bool {
        assert!(self.daemon.is_none(), "gantry is already running");
        let daemon = Daemon::start(&["serve"], &self.settings);
        let address = daemon
            .wait_for_line_or_end("listening", |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "listening").then(|| line["address"].as_str().map(str::to_owned))?
            })
            .await;
        self.daemon = Some(daemon);
        let Some(address) = address else { return false };
        self.base = Some(format!("http://{address}"));
        self.settings.retain(|(name, _)| name != "GANTRY_BIND");
        self.settings.push(("GANTRY_BIND".to_owned(), address));
        true
    }

    /// Sends SIGTERM and asserts that the process drains and exits successfully.
    pub async fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        let status = daemon.terminate().await;
        assert!(status.success(), "{status}: {:#?}", daemon.lines());
    }

    /// Sends SIGTERM to a process that may also be killed by something else meanwhile.
    pub async fn stop_if_running(&mut self) {
        self.daemon.take().expect("it runs").terminate().await;
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.take().expect("it runs").kill();
    }

    /// Waits until the process exits by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        self.daemon.take().expect("it runs").ended().await
    }

    /// Changes a setting for the next start; `None` removes it.
    pub fn set(&mut self, name: &str, value: Option<&str>) {
        self.settings.retain(|(known, _)| known != name);
        self.settings.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// The output of the process since its start.
    pub fn lines(&self) -> Vec<String> {
        self.daemon.as_ref().map(Daemon::lines).unwrap_or_default()
    }

    /// The number of bytes of output since the start of the process.
    pub fn output_bytes(&self) -> u64 {
        self.daemon.as_ref().map_or(0, Daemon::output_bytes)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").pid()
    }

    /// The address it listens on.
    pub fn base(&self) -> &str {
        self.base.as_deref().expect("it was started")
    }

    /// The settings, as variables.
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// Runs the command line on this install.
    pub async fn gantry(&self, arguments: &[&str]) -> Ended {
        run(arguments, &self.settings).await
    }

    /// Runs the command line as a user of the server.
    pub async fn gantry_as(&self, token: &str, arguments: &[&str]) -> Ended {
        let environment = [("GANTRY_URL", self.base()), ("GANTRY_TOKEN", token)];
        run(arguments, &environment.map(|(name, value)| (name.to_owned(), value.to_owned()))).await
    }

    /// Creates a token with `gantry token create`.
    pub async fn token(&self, user: &str, role: &str) -> String {
        let created = self.gantry(&["token", "create", "--user", user, "--role", role, "--ttl", "10m"]).await;
        assert_eq!(created.code, Some(0), "{created:?}");
        created.stdout
    }

    /// A client with a token.
    pub async fn user(&self, name: &str) -> User {
        User::at(self.base(), Some(self.token(name, "user").await))
    }

    /// A client without a token.
    pub fn anonymous(&self) -> User {
        User::at(self.base(), None)
    }

    /// A directory below the data directory.
    pub fn data(&self, name: &str) -> PathBuf {
        self.directory.path().join("data").join(name)
    }

    /// The path of the database.
    pub fn database_url(&self) -> String {
        let set = self.settings.iter().find(|(name, _)| name == "GANTRY_DATABASE_URL").map(|(_, url)| url.clone());
        set.unwrap_or_else(|| format!("sqlite://{}", self.data("gantry.db").display()))
    }

    /// A job's workspace on the host.
    pub fn workspace(&self, job: JobId) -> PathBuf {
        self.data("workspaces").join(job.to_string())
    }

    /// The directories of live containers.
    pub fn run_directories(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data("run")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The containers of this stack, by name.
    pub async fn containers(&self) -> Vec<String> {
        let names = self.docker(&["ps", "-a", "--filter", &self.label(), "--format", "{{.Names}}"]).await;
        names.lines().map(str::to_owned).collect()
    }

    /// The label that identifies this stack's containers.
    pub fn label(&self) -> String {
        format!("label=gantry.instance-id={}", self.instance)
    }

    /// Runs `docker` on the stack's engine, which must succeed.
    pub async fn docker(&self, arguments: &[&str]) -> String {
        let place = self.engine.as_ref().map_or(vec![], |host| vec!["--host", host]);
        must(&[&place, arguments].concat()).await
    }

    /// Waits until the container and run directory of a job are removed, and returns how long that took.
    pub async fn wait_for_removal(&self, job: JobId, within: Duration) -> Duration {
        let named = |names: Vec<String>| names.iter().any(|name| name.contains(&job.to_string()));
        let is_removed = async || !named(self.run_directories()) && !named(self.containers().await);
        wait_until(&format!("the container and run directory of {job} to be removed"), scaled(within), is_removed).await
    }

    /// Ends the stack. Fails if anything is left over.
    pub async fn finish(mut self) {
        let admin = User::at(self.base(), Some(self.token("the-harness", "admin").await));
        let jobs = admin.jobs().await;
        for job in &jobs {
            assert!(job.state.is_finished(), "the test left an unfinished job: {} is {}", job.id, job.state);
            check_events(job, &admin.events(job.id).await);
        }
        let empty = async || self.run_directories().is_empty() && self.containers().await.is_empty();
        wait_until("all containers and run directories to be removed", scaled(REMOVAL_TIMEOUT), empty).await;
        self.stop().await;
        assert_eq!(processes_of_jobs(&jobs), Vec::<String>::new(), "processes are left");
        assert_eq!(
            (self.run_directories(), self.containers().await),
            (vec![], vec![]),
            "containers or run directories are left"
        );
    }
}

impl Drop for Stack {
    /// Cleans up after a failed test and prints the end of the process's output.
    #[expect(clippy::print_stderr, reason = "shown with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.lines();
            eprintln!("the last output of gantry:\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
        }
        let finished = self.daemon.is_none();
        self.daemon = None;
        let filter = self.label();
        let place = self.engine.as_ref().map_or(vec![], |host| vec!["--host", host]);
        let docker = || {
            let mut docker = std::process::Command::new("docker");
            docker.args(&place);
            docker
        };
        let left = docker().args(["ps", "-aq", "--filter", &filter]).output();
        for id in left.iter().flat_map(|output| std::str::from_utf8(&output.stdout)).flat_map(str::lines) {
            let _ = docker().args(["rm", "-f", id]).output();
        }
        assert!(finished || std::thread::panicking(), "the test did not call stack.finish().await");
    }
}
