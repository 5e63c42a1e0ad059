//! An orchestrator for tests: the worker API on a Unix socket, a scripted model, and a record of all that was said.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::ListenerExt,
};
use protocol::{
    AgentEvent, CallId, CompleteReply, CompleteReport, Completion, CompletionRequest, EgressView, ErrorCode, EventAck,
    EventBatch, FinishReason, JobAssignment, JobId, JobMode, Limits, Message, Problem, PromptDelivery, PromptId,
    PromptMode, ReportedOutcome, SESSION_HEADER, StatusReply, ToolCall, ToolCallReply, ToolCallRequest, ToolDefinition,
    ToolDomain, WorkerEvent,
};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::UnixListener,
    process::{Child, Command},
    runtime::{Builder, Runtime},
    sync::watch,
};

pub(crate) const TOKEN: &str = "the-secret-token-of-this-job";

/// For a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the model does when it is asked.
#[derive(Clone)]
pub(crate) enum Step {
    Say(Completion),
    Refuse(ErrorCode),
    Hang,
}

pub(crate) fn says(text: &str) -> Step {
    Step::Say(Completion {
        content: text.to_owned(),
        tool_calls: Vec::new(),
        reasoning: None,
        finish_reason: FinishReason::Stop,
        usage: protocol::TokenUsage::default(),
        notice: None,
    })
}

pub(crate) fn calls(calls: &[(&str, Value)]) -> Step {
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| ToolCall {
        id: format!("{name}-{index}-{}", CallId::generate()),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
        thought_signatures: Vec::new(),
    };
    Step::Say(Completion {
        content: String::new(),
        tool_calls: calls.iter().enumerate().map(call).collect(),
        reasoning: None,
        finish_reason: FinishReason::ToolCalls,
        usage: protocol::TokenUsage::default(),
        notice: None,
    })
}

/// All that was said, and what is still to be.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) script: VecDeque<Step>,
    pub(crate) requests: Vec<CompletionRequest>,
    pub(crate) answered: HashMap<CallId, Completion>,
    pub(crate) events: Vec<WorkerEvent>,
    /// Answers to the next batches instead of taking them.
    pub(crate) event_refusals: VecDeque<ErrorCode>,
    /// The same for calls of the orchestrator's tools.
    pub(crate) tool_refusals: VecDeque<ErrorCode>,
    /// Larger batches are refused.
    pub(crate) events_at_most: Option<usize>,
    pub(crate) remote_calls: Vec<(String, ToolCallRequest)>,
    pub(crate) prompts: Vec<PromptDelivery>,
    /// How many of them the worker has acknowledged.
    pub(crate) acknowledged: usize,
    /// A prompt that arrives at the very moment of the first `complete`.
    pub(crate) late_prompt: Option<PromptDelivery>,
    pub(crate) reports: Vec<CompleteReport>,
    pub(crate) refused_reports: usize,
    pub(crate) cancel: bool,
    pub(crate) attempt_over: bool,
    pub(crate) heartbeats: usize,
    /// What came in the session's header, by call.
    pub(crate) sessions: Vec<Option<String>>,
    /// How many were accepted, and how many of them before the first model call.
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
    pub(crate) folder: tempfile::TempDir,
    shared: Shared,
    /// A runtime of its own: taking it away breaks every connection, as a kill does.
    server: Option<Runtime>,
}

impl World {
    pub(crate) fn new(script: impl IntoIterator<Item = Step>) -> Self {
        Self::with_lease(script, 30)
    }

    pub(crate) fn with_lease(script: impl IntoIterator<Item = Step>, lease_seconds: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        std::fs::write(folder.path().join("token"), TOKEN).unwrap();
        let record = Record { script: script.into_iter().collect(), ..Record::default() };
        let shared = Shared {
            job: Arc::new(assignment(lease_seconds)),
            record: Arc::new(Mutex::new(record)),
            changed: watch::Sender::new(()),
        };
        let mut world = Self { folder, shared, server: None };
        world.appear();
        world
    }

    /// The orchestrator starts: a new socket file at the same path.
    pub(crate) fn appear(&mut self) {
        let listener = std::os::unix::net::UnixListener::bind(self.socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = router(self.shared.clone());
        let record = Arc::clone(&self.shared.record);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        drop(runtime.spawn(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            axum::serve(listener.tap_io(move |_| record.lock().unwrap().connections += 1), router).await.unwrap();
        }));
        self.server = Some(runtime);
    }

    /// The orchestrator is killed: connections break, the socket file is removed.
    pub(crate) fn vanish(&mut self) {
        if let Some(runtime) = self.server.take() {
            runtime.shutdown_background();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("worker.sock")
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.shared.record()
    }

    /// A prompt for the worker; whoever polls for one gets it now.
    pub(crate) fn prompt(&self, content: &str, mode: PromptMode) {
        self.record().prompts.push(prompt(content, mode));
        self.shared.changed.send_replace(());
    }

    /// Waits until the record shows it.
    pub(crate) async fn until(&self, what: &str, shown: impl Fn(&Record) -> bool) {
        let mut changes = self.shared.changed.subscribe();
        let wait = async {
            while !shown(&self.record()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    pub(crate) fn worker(&self, arguments: &[&str]) -> Worker {
        self.start_worker(arguments, Path::new("/usr/bin:/bin"))
    }

    /// A worker whose commands have this `PATH`.
    pub(crate) fn worker_with_path(&self, path: &Path) -> Worker {
        self.start_worker(&[], path)
    }

    fn start_worker(&self, arguments: &[&str], path: &Path) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry-worker"));
        command.args(arguments).env_clear().env("PATH", path).env("HOME", self.folder.path());
        command.env("GANTRY_JOB_ID", self.shared.job.job_id.to_string()).env("GANTRY_SOCKET", self.socket());
        command.env("GANTRY_TOKEN_FILE", self.folder.path().join("token")).env("GANTRY_WORKSPACE", self.workspace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Worker(command.spawn().unwrap())
    }

    /// What was journalled, once its numbers are seen to have no gap.
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

    /// The search process that runs below this worker, once there is one.
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
        tokio::time::timeout(PATIENCE, wait).await.expect("a search runs")
    }

    /// Its end, and all that it printed. The token is never among it.
    pub(crate) async fn end(self) -> (ExitStatus, String) {
        let output = tokio::time::timeout(PATIENCE, self.0.wait_with_output()).await;
        let output = output.expect("the worker ends").unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains(TOKEN), "{text}");
        (output.status, text)
    }
}

/// The children of a process, as far as there is one.
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
    JobAssignment {
        job_id: JobId::generate(),
        attempt: 1,
        title: "a story".to_owned(),
        prompt: "do it".to_owned(),
        mode: JobMode::Worker,
        command: Vec::new(),
        plan: false,
        limits: Limits::default(),
        model: "scripted".to_owned(),
        tools,
        transcript: None,
        lease_seconds,
        egress: EgressView::default(),
        context_tokens: 128_000,
        outage_patience_seconds: None,
    }
}

pub(crate) fn prompt(content: &str, mode: PromptMode) -> PromptDelivery {
    PromptDelivery { prompt_id: PromptId::generate(), content: content.to_owned(), mode, done: false }
}

fn problem(code: ErrorCode) -> Response {
    let problem = Problem {
        kind: format!("urn:gantry:problem:{}", code.as_str()),
        title: code.title().to_owned(),
        status: code.status(),
        detail: "scripted".to_owned(),
        code,
        reason: None,
        request_id: "r".to_owned(),
        errors: Vec::new(),
    };
    (StatusCode::from_u16(code.status()).unwrap(), Json(problem)).into_response()
}

fn router(shared: Shared) -> Router {
    let worker = Router::new()
        .route("/job", get(async |State(shared): State<Shared>| Json(JobAssignment::clone(&shared.job))))
        .route("/llm/complete", post(complete_model))
        .route("/llm/complete_with_tools", post(complete_model))
        .route("/tools", get(async || Json(json!({"tools": []}))))
        .route("/tools/{name}", post(call_tool))
        .route("/events", post(take_events))
        .route("/prompt", get(give_prompt))
        .route("/status", post(take_heartbeat))
        .route("/complete", post(take_report))
        .layer(from_fn_with_state(shared.clone(), admit));
    Router::new()
        .route("/health", get(async || "ok"))
        .nest(&format!("/worker/{}", shared.job.job_id), worker)
        .with_state(shared)
}

async fn admit(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let known = request.headers().get(AUTHORIZATION).is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    let session = request.headers().get(SESSION_HEADER).map(|value| value.to_str().unwrap().to_owned());
    let rejected = {
        let mut record = shared.record();
        record.sessions.push(session.clone());
        record.sessions.first() != Some(&session) || record.attempt_over
    };
    if !known || rejected {
        return problem(ErrorCode::Unauthorized);
    }
    let response = next.run(request).await;
    shared.changed.send_replace(());
    response
}

async fn complete_model(State(shared): State<Shared>, Json(request): Json<CompletionRequest>) -> Response {
    let step = {
        let mut record = shared.record();
        record.requests.push(request.clone());
        let connections = record.connections;
        record.connections_at_first_model_call.get_or_insert(connections);
        if let Some(answer) = record.answered.get(&request.call_id) {
            return Json(answer.clone()).into_response();
        }
        record.script.pop_front().expect("the script goes on")
    };
    shared.changed.send_replace(());
    match step {
        Step::Say(answer) => {
            shared.record().answered.insert(request.call_id, answer.clone());
            Json(answer).into_response()
        }
        Step::Refuse(code) => problem(code),
        Step::Hang => std::future::pending().await,
    }
}

async fn call_tool(
    State(shared): State<Shared>,
    axum::extract::Path(name): axum::extract::Path<String>,
    Json(request): Json<ToolCallRequest>,
) -> Response {
    if let Some(code) = shared.record().tool_refusals.pop_front() {
        return problem(code);
    }
    let output = request.arguments["message"].clone();
    shared.record().remote_calls.push((name, request));
    let reply = ToolCallReply { success: true, output: Some(output), truncated: false, duration_ms: 1, error: None };
    Json(reply).into_response()
}

async fn take_events(State(shared): State<Shared>, Json(batch): Json<EventBatch>) -> Response {
    let mut record = shared.record();
    if let Some(code) = record.event_refusals.pop_front() {
        return problem(code);
    }
    if record.events_at_most.is_some_and(|most| batch.events.len() > most) {
        return problem(ErrorCode::TooLarge);
    }
    for event in batch.events {
        if event.client_seq > record.events.len() as u64 {
            record.events.push(event);
        }
    }
    Json(EventAck { last_client_seq: record.events.len() as u64 }).into_response()
}

#[derive(Deserialize)]
struct Poll {
    wait_seconds: u64,
    after: PromptId,
}

async fn give_prompt(State(shared): State<Shared>, Query(poll): Query<Poll>) -> Response {
    let mut changes = shared.changed.subscribe();
    let next = async {
        loop {
            {
                let mut record = shared.record();
                let seen = record.prompts.iter().position(|prompt| prompt.prompt_id == poll.after);
                let seen = seen.map_or(0, |index| index + 1);
                if seen > record.acknowledged {
                    record.acknowledged = seen;
                    shared.changed.send_replace(());
                }
                if let Some(next) = record.prompts.get(seen) {
                    return next.clone();
                }
            }
            changes.changed().await.unwrap();
        }
    };
    match tokio::time::timeout(Duration::from_secs(poll.wait_seconds), next).await {
        Ok(prompt) => Json(prompt).into_response(),
        Err(_) => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn take_heartbeat(State(shared): State<Shared>) -> Json<Value> {
    let mut record = shared.record();
    record.heartbeats += 1;
    let reply: StatusReply =
        serde_json::from_value(json!({"cancel": record.cancel, "lease_expires_at": "2030-01-01T00:00:00Z"})).unwrap();
    Json(serde_json::to_value(reply).unwrap())
}

async fn take_report(State(shared): State<Shared>, Json(report): Json<CompleteReport>) -> Response {
    let mut record = shared.record();
    if let Some(late) = record.late_prompt.take() {
        record.prompts.push(late);
    }
    if report.outcome == ReportedOutcome::Completed && record.acknowledged < record.prompts.len() {
        record.refused_reports += 1;
        return problem(ErrorCode::PromptsWaiting);
    }
    record.reports.push(report);
    Json(CompleteReply { accepted: true }).into_response()
}

/// The results of the last tool calls before a model call, in order.
pub(crate) fn tool_results(messages: &[Message]) -> Vec<String> {
    let results = messages.iter().rev().map_while(|message| match message {
        Message::Tool { content, .. } => Some(content.clone()),
        _ => None,
    });
    let mut results: Vec<_> = results.collect();
    results.reverse();
    results
}

/// Whether no process is left that has `argument` among its arguments.
pub(crate) fn is_gone(argument: &str) -> bool {
    let has = |line: Vec<u8>| line.split(|byte| *byte == 0).any(|one| one == argument.as_bytes());
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    !all.map(|entry| entry.path().join("cmdline")).any(|line| std::fs::read(line).is_ok_and(has))
}

/// Waits for a file that a command makes.
pub(crate) async fn appears(path: &Path) {
    let wait = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {}", path.display()));
}
