//! A fake orchestrator: the worker API on a Unix socket, a scripted model, and a record of all requests.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::serve::ListenerExt;
use protocol::{
    AgentEvent, CallId, CompleteReport, Completion, CompletionRequest, EgressView, ErrorCode, FinishReason,
    JobAssignment, JobId, JobMode, Limits, Message, PromptDelivery, PromptId, PromptMode, ToolCall, ToolCallRequest,
    ToolDefinition, ToolDomain, WorkerEvent,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    net::UnixListener,
    process::{Child, Command},
    runtime::{Builder, Runtime},
    sync::watch,
};

mod api;

pub(crate) const TOKEN: &str = "the-secret-token-of-this-job";

/// Deadline of every wait. Generous, for a busy machine.
const DEADLINE: Duration = Duration::from_mins(1);

/// The model's response to a request.
#[derive(Clone)]
pub(crate) enum Step {
    Say(Box<Completion>),
    Refuse(ErrorCode),
    Hang,
}

pub(crate) fn reply(text: &str) -> Step {
    Step::Say(Box::new(Completion {
        content: text.to_owned(),
        tool_calls: Vec::new(),
        reasoning: None,
        native: None,
        finish_reason: FinishReason::Stop,
        usage: protocol::TokenUsage::default(),
        notice: None,
        text_tool_calls: None,
    }))
}

pub(crate) fn calls(calls: &[(&str, Value)]) -> Step {
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| ToolCall {
        id: format!("{name}-{index}-{}", CallId::generate()),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
    };
    Step::Say(Box::new(Completion {
        content: String::new(),
        tool_calls: calls.iter().enumerate().map(call).collect(),
        reasoning: None,
        native: None,
        finish_reason: FinishReason::ToolCalls,
        usage: protocol::TokenUsage::default(),
        notice: None,
        text_tool_calls: None,
    }))
}

/// The script of the fake orchestrator, and a record of the worker's requests.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) script: VecDeque<Step>,
    pub(crate) requests: Vec<CompletionRequest>,
    pub(crate) answered: HashMap<CallId, Completion>,
    pub(crate) events: Vec<WorkerEvent>,
    /// Errors for the next event batches.
    pub(crate) event_refusals: VecDeque<ErrorCode>,
    /// Errors for the next calls of orchestrator tools.
    pub(crate) tool_refusals: VecDeque<ErrorCode>,
    /// Event batches are accepted and not stored.
    pub(crate) acknowledges_nothing: bool,
    /// Larger event batches are refused.
    pub(crate) max_batch_events: Option<usize>,
    pub(crate) remote_calls: Vec<(String, ToolCallRequest)>,
    pub(crate) prompts: Vec<PromptDelivery>,
    /// The number of prompts that the worker has acknowledged.
    pub(crate) acknowledged: usize,
    /// A prompt that arrives together with the first `complete`.
    pub(crate) late_prompt: Option<PromptDelivery>,
    pub(crate) reports: Vec<CompleteReport>,
    pub(crate) refused_reports: usize,
    pub(crate) cancel: bool,
    pub(crate) attempt_over: bool,
    pub(crate) heartbeats: usize,
    /// The session header of each request.
    pub(crate) sessions: Vec<Option<String>>,
    /// The number of accepted connections, in total and before the first model call.
    pub(crate) connections: usize,
    pub(crate) connections_at_first_model_call: Option<usize>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    job: Arc<JobAssignment>,
    record: Arc<Mutex<Record>>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }
}

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    shared: Shared,
    /// A separate runtime: shutting it down breaks every connection, as killing the orchestrator does.
    server: Option<Runtime>,
}

impl World {
    pub(crate) fn new(script: impl IntoIterator<Item = Step>) -> Self {
        Self::with_lease(script, 30)
    }

    pub(crate) fn with_lease(script: impl IntoIterator<Item = Step>, lease_seconds: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("workspace")).unwrap();
        std::fs::write(directory.path().join("token"), TOKEN).unwrap();
        let record = Record { script: script.into_iter().collect(), ..Record::default() };
        let shared = Shared {
            job: Arc::new(assignment(lease_seconds)),
            record: Arc::new(Mutex::new(record)),
            changed: watch::Sender::new(()),
        };
        let mut world = Self { directory, shared, server: None };
        world.start();
        world
    }

    /// Starts the orchestrator with a new socket file at the same path.
    pub(crate) fn start(&mut self) {
        let listener = std::os::unix::net::UnixListener::bind(self.socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = api::router(self.shared.clone());
        let record = Arc::clone(&self.shared.record);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        drop(runtime.spawn(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            axum::serve(listener.tap_io(move |_| record.lock().unwrap().connections += 1), router).await.unwrap();
        }));
        self.server = Some(runtime);
    }

    /// Kills the orchestrator: connections break, and the socket file is removed.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.server.take() {
            runtime.shutdown_background();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("worker.sock")
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.shared.record()
    }

    /// Queues a prompt for the worker and answers a waiting poll.
    pub(crate) fn prompt(&self, content: &str, mode: PromptMode) {
        self.record().prompts.push(prompt(content, mode));
        self.shared.changed.send_replace(());
    }

    /// Waits until `condition` holds for the record.
    pub(crate) async fn until(&self, name: &str, condition: impl Fn(&Record) -> bool) {
        let mut changes = self.shared.changed.subscribe();
        let wait = async {
            while !condition(&self.record()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("timed out waiting for {name}"));
    }

    pub(crate) fn worker(&self, arguments: &[&str]) -> Worker {
        self.start_worker(arguments, Path::new("/usr/bin:/bin"))
    }

    /// Starts a worker whose commands have this `PATH`.
    pub(crate) fn worker_with_path(&self, path: &Path) -> Worker {
        self.start_worker(&[], path)
    }

    fn start_worker(&self, arguments: &[&str], path: &Path) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry-worker"));
        command.args(arguments).env_clear().env("PATH", path).env("HOME", self.directory.path());
        command.env("GANTRY_JOB_ID", self.shared.job.job_id.to_string()).env("GANTRY_SOCKET", self.socket());
        command.env("GANTRY_TOKEN_FILE", self.directory.path().join("token")).env("GANTRY_WORKSPACE", self.workspace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Worker(command.spawn().unwrap())
    }

    /// The stored events. Asserts that their numbers have no gaps.
    pub(crate) fn events(&self) -> Vec<AgentEvent> {
        let record = self.record();
        let numbers: Vec<u64> = record.events.iter().map(|event| event.client_seq).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        record.events.iter().map(|event| event.data.clone()).collect()
    }

    pub(crate) fn only_report(&self) -> CompleteReport {
        let record = self.record();
        let [report] = record.reports.as_slice() else { panic!("{:?}", record.reports) };
        report.clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(runtime) = self.server.take() {
            runtime.shutdown_background();
        }
    }
}

pub(crate) struct Worker(pub(crate) Child);

impl Worker {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id().unwrap()).unwrap()
    }

    /// Waits for the search process of this worker.
    pub(crate) async fn search(&self) -> i32 {
        let wait = async {
            loop {
                let grandchildren = children(self.pid()).into_iter().flat_map(children);
                let searches = |pid: &i32| {
                    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    line.split(|byte| *byte == 0).nth(1) == Some(b"search")
                };
                if let Some(search) = grandchildren.into_iter().find(searches) {
                    return search;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("no search process")
    }

    /// Waits for the exit and returns the status and the output. Asserts that the output does not contain the token.
    pub(crate) async fn end(self) -> (ExitStatus, String) {
        let output = tokio::time::timeout(DEADLINE, self.0.wait_with_output()).await;
        let output = output.expect("the worker did not exit").unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains(TOKEN), "{text}");
        (output.status, text)
    }
}

/// The children of a process, or none if it does not exist.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn assignment(lease_seconds: u64) -> JobAssignment {
    let container = ["shell", "read_file", "write_file", "list_dir", "apply_patch", "glob", "grep", "unknown"];
    let parameters = json!({"type": "object", "properties": {"message": {"type": "string"}}});
    let define = |name: &str, domain| ToolDefinition::new(name, name, parameters.clone(), domain);
    let mut tools: Vec<_> = container.iter().map(|name| define(name, ToolDomain::Container)).collect();
    tools.push(define("echo", ToolDomain::Orchestrator));
    tools.push(define("fetch", ToolDomain::Orchestrator));
    tools.push(ToolDefinition::new("bad_schema", "b", json!({"type": 7}), ToolDomain::Orchestrator));
    JobAssignment {
        approve: vec![],
        job_id: JobId::generate(),
        attempt: 1,
        title: "a story".to_owned(),
        prompt: "do it".to_owned(),
        mode: JobMode::Worker,
        command: Vec::new(),
        plan: false,
        limits: Limits::default(),
        model: "scripted".to_owned(),
        temperature: Some(0.25),
        tools,
        transcript: None,
        delimiter_nonce: None,
        lease_seconds,
        egress: EgressView::default(),
        egress_names: Vec::new(),
        context_tokens: 128_000,
        text_tool_calls: false,
        outage_patience_seconds: None,
        worker_patience_seconds: None,
    }
}

pub(crate) fn prompt(content: &str, mode: PromptMode) -> PromptDelivery {
    PromptDelivery { prompt_id: PromptId::generate(), content: content.to_owned(), mode, done: false }
}

/// The tool results at the end of `messages`, in order, without the markers around them.
pub(crate) fn tool_results(messages: &[Message]) -> Vec<String> {
    let results = messages.iter().rev().map_while(|message| match message {
        Message::Tool { content, .. } => Some(agent::safety::unwrap_untrusted(content).to_owned()),
        _ => None,
    });
    let mut results: Vec<_> = results.collect();
    results.reverse();
    results
}

/// Whether no process has `argument` on its command line.
pub(crate) fn is_gone(argument: &str) -> bool {
    let has = |line: Vec<u8>| line.split(|byte| *byte == 0).any(|one| one == argument.as_bytes());
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    !all.map(|entry| entry.path().join("cmdline")).any(|line| std::fs::read(line).is_ok_and(has))
}

/// Waits until a file exists.
pub(crate) async fn wait_for_file(path: &Path) {
    let wait = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("timed out waiting for {}", path.display()));
}
