//! A session: from fetching the job to the final report.
//!
//! Owns the order of these steps and the lifetime of every part. All parts run in one future: none outlives it, and a stop
//! stops them all.

use std::{convert::Infallible, io, ops::ControlFlow, sync::Arc, time::Duration};

use agent::{
    Agent, DEFAULT_OUTAGE_PATIENCE, DeltaSink, Inbox, Journal as _, LoopOutcome, Settings, Signals, ToolExecutor,
    ToolRegistry, Unrecorded, failure_report,
    safety::{DELIMITER_NOTICE, DelimiterNonce},
    shortened_report, start_attempt,
};
use protocol::{CompleteReply, CompleteReport, ErrorCode, JobAssignment, JobMode, JobReason, ReportedOutcome};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cgroup::Cgroup,
    client::{Call, CallError, Identity, OrchestratorClient},
    environment::Environment,
    heartbeat::Heartbeat,
    journal::{EventQueue, journal},
    model::GatewayModel,
    prompts::PromptFeed,
    report::{completed_unrecorded, report, stopped_early},
    secret::{SessionSecret, token},
    stop::{StopCause, StopSwitch},
    supervisor::Processes,
    tools::{Launcher, LimitMonitor, ToolDeps, Workspace, build_tools, context},
};

/// How long the agent loop may take to return after a stop. With the final report, a stop takes less than 3 s.
const STOP_GRACE: Duration = Duration::from_millis(1_200);
/// Timeout of the last events and the final report after a stop.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Retry delay of a report that was refused because of waiting prompts although no prompt could be received.
const COMPLETE_RETRY_DELAY: Duration = Duration::from_millis(200);
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
        let session = Session {
            environment: self.environment,
            workspace: Arc::clone(&self.workspace),
            client: Arc::new(client),
            processes: Arc::clone(&self.processes),
            stop: self.stop.clone(),
        };
        session.run().await
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
    environment: &'a Environment,
    workspace: Arc<Workspace>,
    client: Arc<OrchestratorClient>,
    processes: Arc<Processes>,
    stop: StopSwitch,
}

impl Session<'_> {
    async fn run(&self) -> Result<SessionEnd, SessionError> {
        let fetched = tokio::select! {
            biased;
            fetched = self.client.ask::<JobAssignment>(Call::get(&["job"])) => fetched,
            () = self.stop.token().cancelled() => {
                self.deliver(&stopped_early(), None).await?;
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
        tracing::info!(job.id = %job.job_id, attempt = job.attempt, "session started");
        let signals = Signals { stop: self.stop.token().clone(), ..Signals::default() };
        let (queue, mut pump) = journal(Arc::clone(&self.client));
        let iteration = signals.iteration.subscribe();
        let heartbeat = Heartbeat { client: Arc::clone(&self.client), iteration, period: lease / 3 };
        let worked = tokio::select! {
            worked = self.work(&job, queue, &signals) => worked,
            never = pump.run() => match never {},
            never = heartbeat.run() => match never {},
        };
        // Background processes may run until here.
        self.processes.end_all();
        worked.map(|()| self.end())
    }

    /// The end of a session that has run its job.
    fn end(&self) -> SessionEnd {
        match self.stop.cause() {
            Some(StopCause::AttemptEnded) => SessionEnd::AttemptEnded,
            Some(StopCause::OrchestratorUnreachable) => SessionEnd::OrchestratorUnreachable,
            Some(
                StopCause::Requested | StopCause::Impersonated | StopCause::EventsRefused | StopCause::PidsExhausted,
            )
            | None => SessionEnd::Reported,
        }
    }

    async fn work(&self, job: &JobAssignment, queue: EventQueue, signals: &Signals) -> Result<(), SessionError> {
        if job.mode == JobMode::Command {
            let report = failure_report(JobReason::Internal, "this worker cannot run third-party command lines yet");
            return self.deliver(&report, Some(&queue)).await.map(|_| ());
        }
        let tools = self.tools(job, &queue);
        let model = GatewayModel { client: Arc::clone(&self.client), context_tokens: job.context_tokens };
        let inbox = &signals.inbox;
        let mut feed = PromptFeed::new(Arc::clone(&self.client), Arc::clone(inbox));
        let (settings, deltas) = (settings(job), DeltaSink::discard());
        let agent =
            Agent { model: &model, tools: &tools, journal: &queue, signals, settings: &settings, deltas: &deltas };
        let system = system_prompt(job, &self.workspace.root().display().to_string());
        let (transcript, mut run) = start_attempt(system, &job.prompt, job.transcript.as_deref().unwrap_or_default());
        let mut transcript = match &job.delimiter_nonce {
            Some(nonce) => transcript.with_nonce(DelimiterNonce::from_text(nonce)),
            None => transcript,
        };
        loop {
            let outcome = tokio::select! {
                outcome = agent.run(&mut transcript, &mut run) => outcome,
                never = feed.follow() => match never {},
                () = self.stop_deadline() => LoopOutcome::Stopped,
            };
            if self.stop.cause().is_some() {
                self.processes.end_all();
            }
            if self.end() != SessionEnd::Reported {
                return Ok(());
            }
            let completed = matches!(outcome, LoopOutcome::Completed { .. });
            if completed && !inbox.is_empty() {
                // The prompt arrived after the loop had checked its inbox for the last time.
                continue;
            }
            let report = report(outcome, self.stop.cause(), run.partial());
            if self.deliver_all(&report, &queue, &mut feed, inbox).await?.is_break() {
                return Ok(());
            }
        }
    }

    /// Delivers the report. Continues if the orchestrator has prompts that must be processed first.
    async fn deliver_all(
        &self,
        report: &CompleteReport,
        queue: &EventQueue,
        feed: &mut PromptFeed,
        inbox: &Inbox,
    ) -> Result<ControlFlow<()>, SessionError> {
        let mut is_first = true;
        loop {
            match self.deliver(report, Some(queue)).await? {
                Delivery::Done => return Ok(ControlFlow::Break(())),
                Delivery::PromptsWaiting => feed.drain().await,
            }
            if !inbox.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            // The drain has acknowledged the waiting prompts, so the same report may be accepted now.
            if !is_first {
                tokio::time::sleep(COMPLETE_RETRY_DELAY).await;
            }
            is_first = false;
        }
    }

    fn tools(&self, job: &JobAssignment, queue: &EventQueue) -> ToolExecutor {
        let cgroup = Cgroup::at(CGROUP_ROOT);
        let limits = LimitMonitor::new(cgroup, job.limits, queue.clone(), Arc::clone(&self.processes));
        let launcher = Launcher { processes: Arc::clone(&self.processes), limits, stop: self.stop.clone() };
        let deps = ToolDeps {
            workspace: Arc::clone(&self.workspace),
            shell: self.environment.shell.clone(),
            launcher: Arc::new(launcher),
            journal: queue.clone(),
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

    /// Returns [`STOP_GRACE`] after a stop.
    async fn stop_deadline(&self) {
        self.stop.token().cancelled().await;
        tokio::time::sleep(STOP_GRACE).await;
    }

    /// Sends the remaining events and then the report: a report must never overtake the events before it.
    async fn deliver(&self, report: &CompleteReport, queue: Option<&EventQueue>) -> Result<Delivery, SessionError> {
        let report_deadline = async {
            self.stop.token().cancelled().await;
            tokio::time::sleep(FINAL_REPORT_TIMEOUT).await;
        };
        let answer = tokio::select! {
            answer = async {
                if let Some(queue) = queue {
                    // A closed journal stops the session with its own cause, which the report states.
                    let _ = queue.flush().await;
                }
                let cause = self.stop.cause().filter(|_| report.outcome == ReportedOutcome::Completed);
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

/// The result of delivering a report.
enum Delivery {
    /// The report was accepted, or cannot be delivered.
    Done,
    /// The report was refused because prompts are waiting.
    PromptsWaiting,
}

fn settings(job: &JobAssignment) -> Settings {
    Settings {
        max_iterations: job.limits.max_iterations,
        max_tool_calls: job.limits.max_tool_calls,
        plan: job.plan,
        text_tool_calls: job.text_tool_calls,
        outage_patience: job.outage_patience_seconds.map_or(DEFAULT_OUTAGE_PATIENCE, Duration::from_secs),
        ..Settings::default()
    }
}

fn system_prompt(job: &JobAssignment, workspace: &str) -> String {
    let network = if job.egress.enabled && !job.egress.allow.is_empty() {
        format!("There is no network; the tool http reaches only: {}.", job.egress.allow.join(", "))
    } else {
        "There is no network.".to_owned()
    };
    format!(
        "You are an agent that does one job in a locked-down container, without a person to ask. \
         Your files are in {workspace}; keep what you make there. {network} Use the tools to look, to act and to check \
         what you did. When the job is completed, answer with its result in plain text and call no tool. {DELIMITER_NOTICE}"
    )
}
