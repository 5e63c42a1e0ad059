//! A stack: one install of Gantry on the real engine, from an empty data folder to an end that leaves nothing.

use std::{fs, path::PathBuf, process::ExitStatus, time::Duration};

use super::{
    engine::{comes_true, docker, must},
    program::{Daemon, Ended, run},
};
use crate::{User, check_events};
use orchestrator::config::Environment;
use protocol::{Event, EventData, InstanceId, Job, JobId, JobState, JobSummary};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Names another job image than that of `tests/run.sh --only images`.
const IMAGE_VARIABLE: &str = "GANTRY_TEST_IMAGE";
/// Names another runtime than the engine's default. `DOCKER_HOST` names another engine.
const RUNTIME_VARIABLE: &str = "GANTRY_TEST_RUNTIME";
const OTHER_RUNTIME_FACTOR: u32 = 15;
/// What must never be found in a container.
pub const API_KEY: &str = "canary-of-the-models-key-5f1d0c";
/// The same.
pub const JWT_SECRET: &str = "canary-of-the-signing-key-at-least-32-bytes-8a3e";
/// A job that completes leaves no container for longer (contract: sandbox, Cancel and end).
pub const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Shown of a process's output when its story fails.
const LAST_LINES: usize = 60;

/// What the model says in most stories: the prompt is an order.
pub const OBEDIENT: &str = r"
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
    reply: { tool_calls: [{ name: shell, arguments: { command: echo the job goes on } }] }
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

/// The job image; never the one of an install that lives here.
pub fn image() -> String {
    let set = Environment::from_process().get(IMAGE_VARIABLE).map(str::to_owned);
    set.unwrap_or_else(|| "gantry-worker:test".to_owned())
}

/// The runtime of the jobs, where the tests' environment names one.
pub fn runtime() -> Option<String> {
    Environment::from_process().get(RUNTIME_VARIABLE).map(str::to_owned)
}

/// A time limit of the contract, which is for the engine's default runtime. A kernel that starts and ends with its container
/// takes several times as long, and much longer on a busy machine.
pub fn scaled(limit: Duration) -> Duration {
    if runtime().is_some() { limit * OTHER_RUNTIME_FACTOR } else { limit }
}

/// What a stack is made of.
pub struct Builder {
    instance: InstanceId,
    folder: TempDir,
    settings: Vec<(String, String)>,
    engine: Option<String>,
}

impl Builder {
    /// A setting, by its variable.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// On an engine of its own, by its address.
    pub fn on_engine(self, host: &str) -> Self {
        Self { engine: Some(host.to_owned()), ..self.set("DOCKER_HOST", host) }
    }

    /// What the model says.
    pub fn script(self, yaml: &str) -> Self {
        fs::write(self.folder.path().join("script.yaml"), yaml).expect("the script is written");
        self
    }

    /// Starts it; the engine and the image must be there.
    pub async fn start(self) -> Stack {
        let image = image();
        let (there, said) = docker(&["image", "inspect", "--format", "{{.Id}}", &image]).await;
        assert!(there, "the ring needs a running engine with the image {image}; tests/run.sh --only images: {said}");
        self.start_anyhow().await
    }

    /// Starts it, whatever the engine is.
    pub async fn start_anyhow(self) -> Stack {
        let Self { instance, folder, settings, engine } = self;
        let mut stack = Stack { instance, folder, settings, engine, daemon: None, base: None };
        stack.restart().await;
        stack
    }
}

/// An install.
pub struct Stack {
    /// Names it to the engine.
    pub instance: InstanceId,
    folder: TempDir,
    settings: Vec<(String, String)>,
    /// Where its engine is, when that is not the machine's own.
    engine: Option<String>,
    daemon: Option<Daemon>,
    /// Where it listens: the port is the same after a restart.
    base: Option<String>,
}

impl Stack {
    /// On the machine's engine, with a model that obeys.
    pub fn builder() -> Builder {
        // Short, since socket paths are.
        let folder = tempfile::Builder::new().prefix("ge").tempdir_in("/tmp").expect("a temporary folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
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
            // However full the disk of the machine is that runs the stories.
            ("GANTRY_DISK_FLOOR_MB", "0".to_owned()),
        ];
        let mut settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        settings.extend(runtime().map(|name| ("GANTRY_SANDBOX_RUNTIME".to_owned(), name)));
        let host = Environment::from_process().get("DOCKER_HOST").map(str::to_owned);
        settings.extend(host.map(|host| ("DOCKER_HOST".to_owned(), host)));
        Builder { instance, folder, settings, engine: None }.script(OBEDIENT)
    }

    /// The usual one.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Starts it (again) and waits until it listens.
    pub async fn restart(&mut self) {
        assert!(self.try_restart().await, "gantry ended before it listened: {:#?}", self.lines());
    }

    /// The same; false when it ends before it listens.
    pub async fn try_restart(&mut self) -> bool {
        assert!(self.daemon.is_none(), "it runs already");
        let daemon = Daemon::start(&["serve"], &self.settings);
        let address = daemon
            .says_or_ends("listening", |line| {
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

    /// SIGTERM: it drains, and ends well.
    pub async fn stop(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        let status = daemon.terminate().await;
        assert!(status.success(), "{status}: {:#?}", daemon.lines());
    }

    /// SIGTERM, for one that may die of something else meanwhile.
    pub async fn try_stop(&mut self) {
        self.daemon.take().expect("it runs").terminate().await;
    }

    /// SIGKILL.
    pub fn kill9(&mut self) {
        self.daemon.take().expect("it runs").kill9();
    }

    /// Waits until its process ends by itself, and says how.
    pub async fn ended(&mut self) -> ExitStatus {
        self.daemon.take().expect("it runs").ended().await
    }

    /// Changes a setting from the next start on; none takes it away.
    pub fn set(&mut self, name: &str, value: Option<&str>) {
        self.settings.retain(|(known, _)| known != name);
        self.settings.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// What its process has printed since its start.
    pub fn lines(&self) -> Vec<String> {
        self.daemon.as_ref().map(Daemon::lines).unwrap_or_default()
    }

    /// How many bytes its process has printed since its start.
    pub fn printed_bytes(&self) -> u64 {
        self.daemon.as_ref().map_or(0, Daemon::printed_bytes)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").pid()
    }

    /// Where it listens.
    pub fn base(&self) -> &str {
        self.base.as_deref().expect("it was started")
    }

    /// Its settings, as variables.
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// Runs the command line on this machine's install.
    pub async fn gantry(&self, arguments: &[&str]) -> Ended {
        run(arguments, &self.settings).await
    }

    /// Runs the command line as a user of the server.
    pub async fn gantry_as(&self, token: &str, arguments: &[&str]) -> Ended {
        let environment = [("GANTRY_URL", self.base()), ("GANTRY_TOKEN", token)];
        run(arguments, &environment.map(|(name, value)| (name.to_owned(), value.to_owned()))).await
    }

    /// A token, as the operator makes one.
    pub async fn token(&self, user: &str, role: &str) -> String {
        let made = self.gantry(&["token", "create", "--user", user, "--role", role, "--ttl", "10m"]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout
    }

    /// A user with a token.
    pub async fn user(&self, name: &str) -> User {
        User::at(self.base(), Some(self.token(name, "user").await))
    }

    /// Somebody without a token.
    pub fn stranger(&self) -> User {
        User::at(self.base(), None)
    }

    /// A folder of its data.
    pub fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join("data").join(name)
    }

    /// Where its database is.
    pub fn database_url(&self) -> String {
        let set = self.settings.iter().find(|(name, _)| name == "GANTRY_DATABASE_URL").map(|(_, url)| url.clone());
        set.unwrap_or_else(|| format!("sqlite://{}", self.data("gantry.db").display()))
    }

    /// A job's workspace on the host.
    pub fn workspace(&self, job: JobId) -> PathBuf {
        self.data("workspaces").join(job.to_string())
    }

    /// The folders of live containers.
    pub fn run_folders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data("run")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Its containers, by name.
    pub async fn containers(&self) -> Vec<String> {
        let names = self.docker(&["ps", "-a", "--filter", &self.label(), "--format", "{{.Names}}"]).await;
        names.lines().map(str::to_owned).collect()
    }

    /// What tells its containers from others'.
    pub fn label(&self) -> String {
        format!("label=gantry.instance-id={}", self.instance)
    }

    /// Runs `docker` on its engine; it must go well.
    pub async fn docker(&self, arguments: &[&str]) -> String {
        let place = self.engine.as_ref().map_or(vec![], |host| vec!["--host", host]);
        must(&[&place, arguments].concat()).await
    }

    /// Waits until neither container nor run folder of a job is there, and says how long that took.
    pub async fn gone(&self, job: JobId, within: Duration) -> Duration {
        let named = |names: Vec<String>| names.iter().any(|name| name.contains(&job.to_string()));
        let look = async || !named(self.run_folders()) && !named(self.containers().await);
        comes_true(&format!("container and run folder of {job} gone"), scaled(within), look).await
    }

    /// Ends the stack; fails when anything is left over.
    pub async fn finish(mut self) {
        let admin = User::at(self.base(), Some(self.token("the-harness", "admin").await));
        let jobs = admin.jobs().await;
        for job in &jobs {
            assert!(job.state.is_finished(), "a story leaves no open job: {} is {}", job.id, job.state);
            check_events(job, &admin.events(job.id).await);
        }
        let empty = async || self.run_folders().is_empty() && self.containers().await.is_empty();
        comes_true("no container and no run folder is left", scaled(GONE_WITHIN), empty).await;
        self.stop().await;
        assert_eq!(processes_of(&jobs), Vec::<String>::new(), "processes are left");
        assert_eq!((self.run_folders(), self.containers().await), (vec![], vec![]), "left after the end");
    }
}

impl Drop for Stack {
    /// A story that failed leaves nothing either, but for what its process said last.
    #[expect(clippy::print_stderr, reason = "shown with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.lines();
            eprintln!("gantry said last:\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
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
        assert!(finished || std::thread::panicking(), "a story ends with stack.finish().await");
    }
}

/// Processes of this machine that a container of these jobs holds, as `pid command`.
pub fn processes_of(jobs: &[JobSummary]) -> Vec<String> {
    let ids: Vec<&str> =
        jobs.iter().filter_map(|job| job.container.as_ref().and_then(|container| container.id.as_deref())).collect();
    let folders = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let held = folders.filter(|folder| {
        let cgroups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
        ids.iter().any(|id| cgroups.contains(id))
    });
    held.map(|folder| {
        let command = fs::read_to_string(folder.join("cmdline")).unwrap_or_default().replace('\0', " ");
        format!("{} {command}", folder.display())
    })
    .collect()
}

/// A shell command that waits until the test says go with [`go`].
pub const GATE: &str = "until [ -e go ]; do sleep 0.05; done";

/// Opens the gate of a job.
pub fn go(stack: &Stack, job: JobId) {
    fs::write(stack.workspace(job).join("go"), "").expect("the workspace is there");
}

/// A job that runs a command.
pub fn running(command: &str) -> Value {
    json!({"prompt": format!("run: {command}")})
}

/// The agent has called a tool.
pub fn is_tool_use(event: &Event) -> bool {
    matches!(event.data, EventData::ToolUse { .. })
}

/// Follows a job to its end; what its only tool call gave.
pub async fn tool_result(user: &User, job: JobId) -> (Job, bool, String) {
    let ended = user.wait_for_end(job).await;
    let results: Vec<_> = user
        .events(job)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::ToolResult { success, output, .. } => Some((success, output)),
            _ => None,
        })
        .collect();
    let [(success, output)] = results.as_slice() else { panic!("one result of {ended:#?}, but {results:#?}") };
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    (ended, *success, output.clone())
}
