//! A world: one orchestrator in which everything but the containers is real.
//!
//! Owns its lifecycle. A test ends with [`World::finish`], which fails if anything is left over. A world that is
//! dropped without it fails too.

use std::{str::FromStr as _, sync::Arc, time::Duration};

use orchestrator::{
    Environment,
    app::{App, ServeError, TestOverrides},
    auth::{Role, SigningKey},
    clock::{Clock, ManualClock},
    config::{Config, Sources},
    dispatch::{JobSubmitter, Submission, SubmitError, Submitted},
    egress::LookUp,
    engine::{Engine, ReadinessReason},
    store::Store,
    workspace::ReadDiskSpace,
};
use protocol::{CreateJob, Event, EventData, JobId, JobState, JobSummary, Source};
use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{FakeEngine, ManualWorker, Metrics, User, Workers, echo_script, query_plans};

/// Signs every token of a world.
const SECRET: &str = "a story's own secret, at least 32 bytes long";

/// Builds a world.
pub struct WorldBuilder {
    workers: Workers,
    script: String,
    config_file: Option<String>,
    clock: Option<ManualClock>,
    settings: Vec<(&'static str, String)>,
    not_ready: Option<ReadinessReason>,
    space: Option<ReadDiskSpace>,
    look_up: Option<LookUp>,
}

/// A running orchestrator with its data and engine.
pub struct World {
    config: Config,
    engine: FakeEngine,
    clock: Clock,
    key: SigningKey,
    space: Option<ReadDiskSpace>,
    look_up: Option<LookUp>,
    running: Option<Running>,
    directory: TempDir,
}

struct Running {
    base: String,
    metrics: Option<String>,
    drain: CancellationToken,
    submitter: Arc<JobSubmitter>,
    task: JoinSet<Result<(), ServeError>>,
}

impl WorldBuilder {
    /// Uses real worker processes instead of [`ManualWorker`]s.
    pub fn processes(mut self) -> Self {
        self.workers = Workers::Process;
        self
    }

    /// Sets the model's script.
    pub fn script(mut self, script: impl Into<String>) -> Self {
        self.script = script.into();
        self
    }

    /// Sets the text of `gantry.toml`.
    pub fn config_file(mut self, text: impl Into<String>) -> Self {
        self.config_file = Some(text.into());
        self
    }

    /// Sets a setting by its variable.
    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts are written here as they are")]
    pub fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    /// Uses a clock that the test moves.
    pub fn clock(mut self, clock: &ManualClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes the engine's first probe fail.
    pub fn not_ready(mut self, reason: ReadinessReason) -> Self {
        self.not_ready = Some(reason);
        self
    }

    /// Replaces the free space of the workspaces' file system.
    pub fn space(mut self, space: ReadDiskSpace) -> Self {
        self.space = Some(space);
        self
    }

    /// Resolves the names of hosts for jobs, in place of the system.
    pub fn look_up(mut self, look_up: LookUp) -> Self {
        self.look_up = Some(look_up);
        self
    }

    /// Builds the world and starts the orchestrator.
    pub async fn build(self) -> World {
        // In /tmp because socket paths must be short.
        let directory = tempfile::Builder::new().prefix("gw").tempdir_in("/tmp").expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(path("script.yaml"), &self.script).expect("the script is written");
        let floor_mb = if self.space.is_some() { "5120" } else { "0" };
        let mut settings = vec![
            ("GANTRY_DATA_DIR", path("data")),
            ("GANTRY_RUN_DIR", path("run")),
            ("GANTRY_JWT_SECRET", SECRET.to_owned()),
            ("GANTRY_LLM_PROVIDER", "scripted".to_owned()),
            ("GANTRY_LLM_SCRIPT", path("script.yaml")),
            // Disk checks are off by default, so that tests do not depend on the machine's free space.
            ("GANTRY_DISK_FLOOR_MB", floor_mb.to_owned()),
        ];
        settings.extend(self.settings);
        let environment = Environment::from_pairs(settings.iter().map(|(name, value)| (*name, value.as_str())));
        let file = self.config_file.map(|text| {
            std::fs::write(path("gantry.toml"), text).expect("the configuration is written");
            directory.path().join("gantry.toml")
        });
        let config = Config::load(&environment, Sources { file, ..Sources::default() }).expect("valid settings");
        std::fs::create_dir_all(directory.path().join("engine")).expect("a directory for the engine");
        let engine = FakeEngine::new(self.workers, directory.path().join("engine"));
        if let Some(reason) = self.not_ready {
            engine.not_ready(reason);
        }
        let clock = self.clock.map_or_else(Clock::system, Clock::Manual);
        let key = SigningKey::from_secret(SECRET.as_bytes());
        let mut world =
            World { config, engine, clock, key, space: self.space, look_up: self.look_up, running: None, directory };
        world.start().await;
        world
    }
}

impl World {
    /// A builder with workers driven by the test and a model that echoes.
    pub fn builder() -> WorldBuilder {
        WorldBuilder {
            workers: Workers::Manual,
            script: echo_script(),
            config_file: None,
            clock: None,
            settings: vec![],
            not_ready: None,
            space: None,
            look_up: None,
        }
    }

    /// A world with workers driven by the test and a model that echoes.
    pub async fn new() -> Self {
        Self::builder().build().await
    }

    /// The engine.
    pub fn engine(&self) -> &FakeEngine {
        &self.engine
    }

    /// The key that signs this world's tokens.
    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// The current time of this world.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The current configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A client with the role `user`.
    pub fn user(&self, name: &str) -> User {
        self.someone(name, Role::User)
    }

    /// A client with this role.
    pub fn someone(&self, name: &str, role: Role) -> User {
        User::at(self.base(), Some(self.fresh(name, role)))
    }

    /// A token that is valid for one hour.
    pub fn fresh(&self, name: &str, role: Role) -> String {
        self.key.issue(name, role, self.clock.now(), chrono::Duration::hours(1)).expect("a token").token
    }

    /// A client without a token.
    pub fn anonymous(&self) -> User {
        User::at(self.base(), None)
    }

    /// Creates a job as chats and tools do: where the sandbox is disabled, the orchestrator runs it itself.
    pub async fn submit(&self, user: &str, request: CreateJob) -> Result<JobId, SubmitError> {
        let submission = Submission { source: Source::Tool, key: None, audit: None, thread: None };
        let submitter = &self.running.as_ref().expect("the orchestrator runs").submitter;
        match submitter.submit_request(user.to_owned(), submission, request).await? {
            Submitted::Created(job) => Ok(job.id),
            Submitted::Replayed { .. } => panic!("a submission without a key was replayed"),
        }
    }

    /// Becomes the worker of a job as soon as its container is running.
    pub async fn manual_worker(&self, job: protocol::JobId) -> ManualWorker {
        self.engine.manual_worker(job).await
    }

    /// Waits until the job's worker has acknowledged every prompt.
    pub async fn prompts_taken(&self, job: protocol::JobId) {
        let store = self.store().await;
        crate::until("the prompts to be acknowledged", async || {
            // A nil `after` acknowledges nothing.
            let next = store.next_prompt(job, Some(protocol::PromptId::nil()), self.clock.now());
            next.await.expect("the database responds").is_none()
        })
        .await;
        store.close().await;
    }

    /// Restarts the orchestrator on the same data with other settings. Containers keep running.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut Config)) {
        self.stop().await;
        change(&mut self.config);
        self.start().await;
    }

    /// Restarts the orchestrator on the same data. Containers keep running.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    /// Drains and stops the orchestrator. Containers keep running.
    pub async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.drain.cancel();
        let ended = crate::within("the orchestrator to drain", running.task.join_next()).await;
        ended
            .expect("the orchestrator was running")
            .expect("it did not panic")
            .expect("the orchestrator stopped without an error");
    }

    /// Starts an orchestrator on this world's data.
    pub async fn start(&mut self) {
        query_plans::record();
        let engine: Arc<dyn Engine> = Arc::new(self.engine.clone());
        let overrides = TestOverrides {
            engine: Some(engine),
            clock: Some(self.clock.clone()),
            space: self.space.clone(),
            look_up: self.look_up.clone(),
        };
        let app = App::build(self.config.clone(), overrides).await.expect("the orchestrator builds");
        app.first_probe().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let metrics = app.metrics_address().map(|address| format!("http://{address}/metrics"));
        let (drain, submitter) = (app.drain(), app.submitter());
        let mut task = JoinSet::new();
        task.spawn(app.run(listener));
        self.running = Some(Running { base, metrics, drain, submitter, task });
    }

    /// Ends the world. Fails if anything is left over.
    pub async fn finish(mut self) {
        let admin = self.someone("the-harness", Role::Admin);
        for job in admin.jobs().await {
            assert!(job.state.is_finished(), "the test left an unfinished job: {} is {}", job.id, job.state);
            let events = admin.events(job.id).await;
            // With a short retention, the beginning of some streams may have been removed; the rest is checked.
            let trims = self.config.record_retention_days < 2;
            if !trims || events.first().is_some_and(|event| event.seq == 1) {
                check_events(&job, &events);
            }
        }
        self.engine.until_empty().await;
        self.stop().await;
        let directories: Vec<_> = match std::fs::read_dir(&self.config.run_dir) {
            Ok(entries) => entries.flatten().map(|entry| entry.file_name()).collect(),
            Err(_) => vec![],
        };
        assert!(directories.is_empty(), "run directories are left: {directories:?}");
        let store = self.store().await;
        assert_eq!(store.reserved().await.expect("the database responds"), (0, 0), "budget is still reserved");
        store.close().await;
        query_plans::check(&mut self.database().await).await;
        self.engine.close().await;
    }

    /// Opens the database, for facts that no API returns. The caller closes it.
    pub async fn store(&self) -> Store {
        Store::open(&self.config.database_url).await.expect("the database opens")
    }

    /// A connection to the database, for states that no API creates.
    pub async fn database(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::from_str(&self.config.database_url).expect("a valid URL");
        options.disable_statement_logging().connect().await.expect("the database opens")
    }

    /// Reads the metrics from their own address. Requires `GANTRY_METRICS_BIND`.
    pub async fn metrics(&self) -> Metrics {
        let at = self.running.as_ref().and_then(|running| running.metrics.clone()).expect("an address for metrics");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let answer = client.get(at).send().await.expect("the metrics endpoint responds");
        assert_eq!(answer.status(), 200);
        Metrics::of(&answer.text().await.expect("the metrics are complete"))
    }

    /// Reads the metrics until one of them has this value.
    pub async fn until_metric(&self, name: &str, value: f64) -> Metrics {
        crate::poll(&format!("{name} to be {value}"), async || {
            let metrics = self.metrics().await;
            ((metrics.value(name) - value).abs() < f64::EPSILON).then_some(metrics)
        })
        .await
    }

    fn base(&self) -> &str {
        &self.running.as_ref().expect("the orchestrator runs").base
    }

    /// Changes the configuration of the next start.
    pub fn configure(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
    }

    /// This world's directory.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// A job's workspace on the host.
    pub fn workspace(&self, job: protocol::JobId) -> std::path::PathBuf {
        self.config.workspace_dir.join(job.to_string())
    }

    /// The orchestrator's tick: the delay of everything that only a tick triggers.
    pub const TICK: Duration = Duration::from_secs(1);
}

impl Drop for World {
    fn drop(&mut self) {
        let ended = self.running.is_none() || std::thread::panicking();
        assert!(ended, "the test did not call world.finish().await");
    }
}

/// Checks the invariants of the events of a finished job.
pub fn check_events(job: &JobSummary, events: &[Event]) {
    let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
    let expected: Vec<i64> = (1_i64..).take(events.len()).collect();
    assert_eq!(seqs, expected, "gaps in the event numbers of {}", job.id);
    assert!(events.is_sorted_by(|a, b| a.cursor < b.cursor), "cursors must increase");
    assert!(events.is_sorted_by_key(|event| event.attempt), "attempt numbers must not decrease");
    assert!(events.iter().all(|event| event.v == 1 && event.job_id == job.id));
    let created = EventData::State { from: None, to: JobState::Pending, reason: None, message: None };
    assert_eq!(events.first().map(|event| &event.data), Some(&created), "event 1");
    let results: Vec<i64> =
        events.iter().filter(|event| matches!(event.data, EventData::Result { .. })).map(|event| event.seq).collect();
    // A review adds states after the end of the work.
    let ends = events.iter().rev().take_while(|event| matches!(event.data, EventData::State { .. })).count();
    let is_submission = |event: &Event| matches!(event.data, EventData::State { to: JobState::Submitted, .. });
    let reviewed = job.state != JobState::Submitted && events.iter().any(is_submission);
    assert_eq!(ends, if reviewed { 3 } else { 1 }, "the states after the work in {events:#?}");
    let before = i64::try_from(events.len() - ends).unwrap_or(i64::MAX);
    assert_eq!(results, [before], "there must be one result before the final states: {events:#?}");
    let mut state = None;
    for event in events {
        if let EventData::State { from, to, .. } = &event.data {
            assert_eq!(*from, state, "each state event must start from the previous state");
            state = Some(*to);
        }
    }
    assert_eq!(state, Some(job.state), "the last state event must match the job");
    assert!(matches!(events.last().map(|event| &event.data), Some(EventData::State { .. })));
    assert!(job.finished_at.is_some());
}
