//! A session: from fetching the job to the final report.
//!
//! Owns the order of these steps and the lifetime of every part. All parts run in one future: none outlives it, and a stop
//! stops them all.

pub(crate) mod heartbeat;
pub(crate) mod report;
pub(crate) mod secret;
pub(crate) mod stop;

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use agent::{
    Agent, DEFAULT_OUTAGE_PATIENCE, Delivery, DeltaSink, JobSession, Journal as _, LoopOutcome, Settings, Signals,
    ToolExecutor, ToolRegistry, Unrecorded, failure_report,
    safety::{DELIMITER_NOTICE, DelimiterNonce},
    shortened_report, start_attempt,
};
use protocol::{
    CompleteReply, CompleteReport, ErrorCode, JobAssignment, JobMode, JobReason, PartialResult, PromptDelivery,
    PromptId, ReportedOutcome, limits::MAX_PROMPT_WAIT_SECONDS,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use self::{
    heartbeat::Heartbeat,
    report::{completed_unrecorded, report, stopped_early},
    secret::{SessionSecret, token},
    stop::{StopCause, StopSwitch},
};
use crate::{
    cgroup::Cgroup,
    client::{Call, CallError, Identity, OrchestratorClient},
    egress::{EgressListeners, Upstream},
    environment::{Environment, ShellEnvironment},
    journal::{EventQueue, journal},
    model::GatewayModel,
    supervisor::Processes,
    tools::{Launcher, LimitMonitor, ToolDeps, Workspace, build_tools, context},
};

/// How long the agent loop may take to return after a stop. With the final report, a stop takes less than 3 s.
const STOP_GRACE: Duration = Duration::from_millis(1_200);
/// Timeout of the last events and the final report after a stop.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait of one poll for a prompt: shorter than what the orchestrator allows, so that a lost connection is noticed.
const POLL_WAIT_SECONDS: u64 = 25;
const _: () = assert!(POLL_WAIT_SECONDS <= MAX_PROMPT_WAIT_SECONDS);
/// Delay between polls that return at once without a prompt, so that a server that does not hold polls is not flooded.
const POLL_RETRY_DELAY: Duration = Duration::from_millis(200);
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The report was delivered, or timed out after a stop, or there was none to send.
    Reported,
    /// The attempt had already ended; nothing was reported.
    AttemptEnded,
    /// The orchestrator was unreachable for too long.
    OrchestratorUnreachable,
}

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A system resource is unavailable.
    #[error("cannot use {0}")]
    System(&'static str, #[source] io::Error),
    /// The orchestrator refused the job, or its report.
    #[error("refused by the orchestrator: {0}")]
    Refused(String),
}

/// Runs a session to its end.
pub async fn run(environment: &Environment) -> Result<SessionEnd, SessionError> {
    let workspace =
        Workspace::open(&environment.workspace).map_err(|error| SessionError::System("the workspace", error))?;
    let host = SessionHost {
        environment,
        workspace: Arc::new(workspace),
        processes: Arc::new(Processes::new()),
        stop: StopSwitch::default(),
    };
    let never = tokio::select! {
        end = host.run_session() => return end,
        never = host.watch_signals() => never,
        never = host.processes.reap_children() => never,
    };
    match never.map_err(|error| SessionError::System("the signals", error))? {}
}

/// The parts of a session that exist before its job is known.
struct SessionHost<'a> {
    environment: &'a Environment,
    workspace: Arc<Workspace>,
    processes: Arc<Processes>,
    stop: StopSwitch,
}

async fn carry_egress(listeners: Option<EgressListeners>) -> Infallible {
    match listeners {
        Some(listeners) => listeners.run().await,
        None => std::future::pending().await,
    }
}

impl SessionHost<'_> {
    async fn run_session(&self) -> Result<SessionEnd, SessionError> {
        let token = tokio::select! {
            biased;
            token = token(&self.environment.token_file) => token,
            // Nothing can be reported without a token.
            () = self.stop.token().cancelled() => return Ok(SessionEnd::Reported),
        };
        let token = token.map_err(|error| SessionError::System("the token file", error))?;
        let secret = SessionSecret::generate().map_err(|error| SessionError::System("the random generator", error))?;
        let identity = Identity {
            job_id: self.environment.job_id,
            token: &token,
            session: &secret,
            traceparent: self.environment.traceparent.as_deref(),
        };
        let client = OrchestratorClient::new(&self.environment.socket, &identity, self.stop.clone())
            .map_err(|error| SessionError::Refused(error.to_string()))?;
        let client = Arc::new(client);
        let (queue, mut pump) = journal(Arc::clone(&client));
        let upstream = Arc::new(Upstream::new(self.environment.socket.clone(), &token, &secret));
        let session = Session { host: self, client, queue, upstream };
        tokio::select! {
            end = session.run() => end,
            never = pump.run() => match never {},
        }
    }

    async fn watch_signals(&self) -> io::Result<Infallible> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            self.stop.stop(StopCause::Requested);
        }
    }
}

struct Session<'a> {
    host: &'a SessionHost<'a>,
    client: Arc<OrchestratorClient>,
    queue: EventQueue,
    /// Carries connections to other hosts.
    upstream: Arc<Upstream>,
}

impl Session<'_> {
    async fn run(&self) -> Result<SessionEnd, SessionError> {
        let fetched = tokio::select! {
            biased;
            fetched = self.client.ask::<JobAssignment>(Call::get(&["job"])) => fetched,
            () = self.host.stop.token().cancelled() => {
                self.deliver_report(&stopped_early()).await?;
                return Ok(self.end());
            }
        };
        let job = match fetched {
            Ok(job) => job,
            Err(CallError::Stopped) => return Ok(self.end()),
            Err(error) => return Err(SessionError::Refused(error.to_string())),
        };
        let lease = Duration::from_secs(job.lease_seconds.max(1));
        self.client.set_lease(lease, job.worker_patience_seconds.map(Duration::from_secs));
        // Must happen before the first command, which could exhaust the socket's connections.
        self.client.open_connections().await;
        // As well: afterwards no command can have these addresses.
        let listeners = self.egress_listeners(&job).await;
        tracing::info!(job.id = %job.job_id, attempt = job.attempt, "session started");
        let signals = Signals { stop: self.host.stop.token().clone(), ..Signals::default() };
        let iteration = signals.iteration.subscribe();
        let heartbeat = Heartbeat { client: Arc::clone(&self.client), iteration, period: lease / 3 };
        let worked = tokio::select! {
            worked = self.work(&job, &signals) => worked,
            never = heartbeat.run() => match never {},
            never = carry_egress(listeners) => match never {},
        };
        // Background processes may run until here.
        self.host.processes.end_all();
        worked.map(|()| self.end())
    }

    /// The listeners for other hosts; none for a job without a list.
    async fn egress_listeners(&self, job: &JobAssignment) -> Option<EgressListeners> {
        if !job.egress.enabled {
            return None;
        }
        let opened = EgressListeners::open(&job.egress_names, Arc::clone(&self.upstream)).await;
        opened.inspect_err(|error| tracing::warn!(%error, "cannot listen for connections to other hosts")).ok()
    }

    /// The end of a session that has run its job.
    fn end(&self) -> SessionEnd {
        match self.host.stop.cause() {
            Some(StopCause::AttemptEnded) => SessionEnd::AttemptEnded,
            Some(StopCause::OrchestratorUnreachable) => SessionEnd::OrchestratorUnreachable,
            Some(
                StopCause::Requested | StopCause::Impersonated | StopCause::EventsRefused | StopCause::PidsExhausted,
            )
            | None => SessionEnd::Reported,
        }
    }

    async fn work(&self, job: &JobAssignment, signals: &Signals) -> Result<(), SessionError> {
        if job.mode == JobMode::Command {
            let report = failure_report(JobReason::Internal, "this worker cannot run third-party command lines yet");
            return self.deliver_report(&report).await.map(|_| ());
        }
        let tools = self.tools(job);
        let model = GatewayModel { client: Arc::clone(&self.client), context_tokens: job.context_tokens };
        let (settings, deltas) = (settings(job), DeltaSink::discard());
        let agent =
            Agent { model: &model, tools: &tools, journal: &self.queue, signals, settings: &settings, deltas: &deltas };
        let system = system_prompt(job, &self.host.workspace.root().display().to_string());
        let recorded = job.transcript.as_deref().unwrap_or_default();
        let nonce = job.delimiter_nonce.as_deref().map(DelimiterNonce::from_text);
        let (transcript, run) = start_attempt(system, &job.prompt, recorded, nonce);
        agent.run_job(transcript, run, self).await
    }

    fn tools(&self, job: &JobAssignment) -> ToolExecutor {
        let cgroup = Cgroup::at(CGROUP_ROOT);
        let limits = LimitMonitor::new(cgroup, job.limits, self.queue.clone(), Arc::clone(&self.host.processes));
        let launcher = Launcher { processes: Arc::clone(&self.host.processes), limits, stop: self.host.stop.clone() };
        let deps = ToolDeps {
            workspace: Arc::clone(&self.host.workspace),
            shell: ShellEnvironment { has_egress: job.egress.enabled, ..self.host.environment.shell.clone() },
            launcher: Arc::new(launcher),
            journal: self.queue.clone(),
            client: Arc::clone(&self.client),
        };
        let mut registry = ToolRegistry::new();
        for tool in build_tools(job, &deps) {
            // An invalid definition from the orchestrator costs the tool, not the job.
            if let Err(error) = registry.register(tool) {
                tracing::warn!(error = &error as &dyn std::error::Error, "skipping a tool");
            }
        }
        ToolExecutor::new(registry, context(job), Arc::new(Unrecorded))
    }

    /// Sends the remaining events and then the report: a report must never overtake the events before it.
    async fn deliver_report(&self, report: &CompleteReport) -> Result<Delivery, SessionError> {
        let report_deadline = async {
            self.host.stop.token().cancelled().await;
            tokio::time::sleep(FINAL_REPORT_TIMEOUT).await;
        };
        let answer = tokio::select! {
            answer = async {
                // A closed journal stops the session with its own cause, which the report states.
                let _ = self.queue.flush().await;
                let cause = self.host.stop.cause().filter(|_| report.outcome == ReportedOutcome::Completed);
                let report = cause.and_then(|cause| completed_unrecorded(report, cause)).unwrap_or_else(|| report.clone());
                self.client.ask::<CompleteReply>(Call::post(&["complete"], &shortened_report(report))?).await
            } => answer,
            () = report_deadline => {
                tracing::warn!("the report was not answered in time");
                return Ok(Delivery::Done);
            }
        };
        match answer {
            Ok(_) | Err(CallError::Stopped) => Ok(Delivery::Done),
            Err(CallError::Refused(refusal)) if refusal.code == Some(ErrorCode::PromptsWaiting) => {
                Ok(Delivery::PromptsWaiting)
            }
            Err(error) => Err(SessionError::Refused(error.to_string())),
        }
    }
}

impl JobSession for Session<'_> {
    type Error = SessionError;

    async fn next_prompt(&self, after: PromptId, wait: bool) -> Option<PromptDelivery> {
        let (wait_seconds, polled_at) = (if wait { POLL_WAIT_SECONDS } else { 0 }, Instant::now());
        let call = Call::get(&["prompt"])
            .query("wait_seconds", &wait_seconds)
            .query("after", &after)
            .timeout(Duration::from_secs(wait_seconds + 30));
        match self.client.poll::<PromptDelivery>(call).await {
            Ok(Some(delivery)) if delivery.prompt_id != after => return Some(delivery),
            // The same prompt again: the acknowledgement has not been processed yet.
            Ok(_) | Err(CallError::Stopped) => {}
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a poll for prompts was refused"),
        }
        if wait && self.host.stop.cause().is_some() {
            std::future::pending::<()>().await;
        }
        if wait && polled_at.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(POLL_RETRY_DELAY).await;
        }
        None
    }

    /// Returns [`STOP_GRACE`] after a stop.
    async fn stop_deadline(&self) {
        self.host.stop.token().cancelled().await;
        tokio::time::sleep(STOP_GRACE).await;
    }

    async fn deliver(&self, outcome: LoopOutcome, partial: PartialResult) -> Result<Delivery, SessionError> {
        if self.host.stop.cause().is_some() {
            self.host.processes.end_all();
        }
        if self.end() != SessionEnd::Reported {
            return Ok(Delivery::Done);
        }
        self.deliver_report(&report(outcome, self.host.stop.cause(), partial)).await
    }
}

fn settings(job: &JobAssignment) -> Settings {
    Settings {
        max_iterations: job.limits.max_iterations,
        max_tool_calls: job.limits.max_tool_calls,
        temperature: job.temperature,
        plan: job.plan,
        text_tool_calls: job.text_tool_calls,
        outage_patience: job.outage_patience_seconds.map_or(DEFAULT_OUTAGE_PATIENCE, Duration::from_secs),
        ..Settings::default()
    }
}

fn system_prompt(job: &JobAssignment, workspace: &str) -> String {
    let network = if job.egress.enabled && !job.egress.allow.is_empty() {
        format!(
            "Only these hosts can be reached, by commands (https, and http on port 80) and by the tool http: {}.",
            job.egress.allow.join(", ")
        )
    } else {
        "There is no network.".to_owned()
    };
    format!(
        "You are an agent that does one job in a locked-down container, without a person to ask. \
         Your files are in {workspace}; keep what you make there. {network} Use the tools to look, to act and to check \
         what you did. When the job is completed, answer with its result in plain text and call no tool. {DELIMITER_NOTICE}"
    )
}
