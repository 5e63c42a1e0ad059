//! The worker API: requests and answers between a worker and the orchestrator over the job's socket.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentEvent, CallId, EgressName, JobId, JobMode, JobReason, Limits, Message, PartialResult, PromptId, PromptMode,
    ToolDefinition, names::wire_enum,
};

/// The header with the secret of a worker's session, sent with every call.
pub const SESSION_HEADER: &str = "x-gantry-session";

/// `GET /worker/{id}/job`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAssignment {
    /// The job.
    pub job_id: JobId,
    /// The attempt that this container makes.
    pub attempt: u32,
    /// A human-readable title.
    pub title: String,
    /// The first message of its conversation: the title, where it says more than the prompt, and the task.
    pub prompt: String,
    /// Which agent runs the job.
    pub mode: JobMode,
    /// The command line of a job with `mode: command`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Whether the work starts with a plan.
    pub plan: bool,
    /// The limits that are left for this attempt; 0 means that nothing is left.
    pub limits: Limits,
    /// The pinned model, for information.
    pub model: String,
    /// The temperature in the owner's settings, 0 to 2; absent to send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The tools that the job may use.
    pub tools: Vec<ToolDefinition>,
    /// Tools that always require approval and may run without asking.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// The conversation of an earlier attempt, which this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Vec<Message>>,
    /// Of the markers around tool results in what the model reads: the same for all attempts of a job. Absent from older
    /// orchestrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter_nonce: Option<String>,
    /// The lease; a worker sends a heartbeat each third of it.
    pub lease_seconds: u64,
    /// The hosts that the job may reach.
    pub egress: EgressView,
    /// The names of the hosts inside the container, where the worker listens for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress_names: Vec<EgressName>,
    /// The model's context window in tokens; 0 or absent when it is not known.
    #[serde(default)]
    pub context_tokens: u64,
    /// Whether tool calls that the model writes as text are run.
    #[serde(default)]
    pub text_tool_calls: bool,
    /// How long the loop asks a model that does not answer before the job fails; absent from older orchestrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_patience_seconds: Option<u64>,
    /// How long after its lease has expired the worker gives up; absent from older orchestrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_patience_seconds: Option<u64>,
}

wire_enum! {
    /// Who refused a model call with `rate_limited`; the problem's `reason`.
    pub enum RateLimitOrigin {
        /// A provider that limits requests or does not answer. Several such refusals in a row end a job.
        Provider,
        /// The orchestrator, since every provider that could be asked has failed repeatedly (an open circuit). The time
        /// counts as one without an answer.
        Circuit,
        /// The orchestrator, before a provider was asked: a full queue, a limit on failed calls. The caller waits for
        /// as long as it takes.
        Local,
    }
}

/// The problem's `reason` of a model call whose request exceeds the model's context window; its code is `llm_error`.
pub const CONTEXT_LENGTH: &str = "context_length";

impl RateLimitOrigin {
    /// By its name on the wire. Refusals without one are the orchestrator's own, such as limits of its transport.
    pub fn from_reason(reason: Option<&str>) -> Self {
        reason.and_then(Self::parse).unwrap_or(Self::Local)
    }
}

/// The hosts that a job may reach. Its container has no network: tools and the egress proxy reach them for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressView {
    /// Whether any host can be reached.
    pub enabled: bool,
    /// The entries of the allow-list.
    pub allow: Vec<String>,
}

/// One event from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerEvent {
    /// From 1 within the attempt, without gaps. An event that is sent twice is stored once.
    pub client_seq: u64,
    /// `kind` and `data`. The type has only what a worker may send; only the orchestrator writes the others.
    #[serde(flatten)]
    pub data: AgentEvent,
}

/// `POST …/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventBatch {
    /// The events, in order of `client_seq`.
    pub events: Vec<WorkerEvent>,
}

/// The answer to an [`EventBatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAck {
    /// The number of the last stored event.
    pub last_client_seq: u64,
}

/// `GET …/tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolList {
    /// The tools that the job may use.
    pub tools: Vec<ToolDefinition>,
}

/// `POST …/tools/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCallRequest {
    /// The call's id; a repeated id gets the recorded answer.
    pub call_id: CallId,
    /// The arguments, validated against the tool's schema.
    pub arguments: Value,
}

/// The answer to a [`ToolCallRequest`]. A rejected call is answered with 200, too: the model reads the error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallReply {
    /// Whether the call succeeded.
    pub success: bool,
    /// The output that the model reads, unless there is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether the output was cut.
    #[serde(default)]
    pub truncated: bool,
    /// How long the tool ran.
    #[serde(default)]
    pub duration_ms: u64,
    /// Why there is no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolFailure>,
}

/// A tool call's error, as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFailure {
    /// The kind.
    pub kind: ToolErrorKind,
    /// An explanation, and what to do.
    pub message: String,
    /// With `rate_limited`: how long to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}

wire_enum! {
    /// Kinds of tool failure.
    pub enum ToolErrorKind {
        /// The arguments do not fit the schema.
        InvalidParameters,
        /// The tool ran and failed.
        Failed,
        /// The time limit was reached.
        Timeout,
        /// A policy, a permission or a limit forbids the call.
        NotAuthorized,
        /// Too many calls.
        RateLimited,
        /// A system outside Gantry failed.
        External,
        /// The sandbox refused the call or failed.
        Sandbox,
        /// The call requires approval by a person, and none is available.
        AutonomousUnavailable,
        /// No tool of this name is available.
        NotFound,
    }
}

/// `GET …/prompt`: the next prompt, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptDelivery {
    /// The prompt's id; the next poll acknowledges it.
    pub prompt_id: PromptId,
    /// The text.
    pub content: String,
    /// When the agent sees it.
    pub mode: PromptMode,
    /// Whether this is the last prompt.
    pub done: bool,
}

/// `POST …/status`: the heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusReport {
    /// Model calls made.
    pub iteration: u32,
    /// A human-readable progress message.
    #[serde(default)]
    pub message: Option<String>,
}

/// The answer to a [`StatusReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReply {
    /// Whether the job is to stop.
    pub cancel: bool,
    /// When the lease runs out unless renewed.
    pub lease_expires_at: DateTime<Utc>,
}

/// How the work of a job ended, as a worker reports it and the `result` event shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReportedOutcome {
    /// The work is done.
    Completed,
    /// The work cannot continue.
    Failed,
    /// A limit was reached.
    Limit,
    /// The work was stopped.
    Stopped,
    /// A name that this version does not know; counts as failed.
    #[serde(other)]
    Unknown,
}

impl ReportedOutcome {
    /// The outcome of a job that did not complete, whatever its worker reports.
    #[must_use]
    pub const fn as_failure(self) -> Self {
        match self {
            Self::Completed | Self::Failed | Self::Unknown => Self::Failed,
            Self::Limit => Self::Limit,
            Self::Stopped => Self::Stopped,
        }
    }
}

/// `POST …/complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompleteReport {
    /// How the work ended.
    pub outcome: ReportedOutcome,
    /// Why the work did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<JobReason>,
    /// A human-readable explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result, complete or partial.
    pub text: String,
    /// Whether the output limit of the model cut the result of a job that completed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The partial result, if the work did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialResult>,
    /// Model calls made.
    #[serde(default)]
    pub iterations: u32,
}

impl CompleteReport {
    /// The reason of a job that ends by this report; none when it completed.
    pub fn job_reason(&self) -> Option<JobReason> {
        // The other reasons are found by the orchestrator itself.
        let given = self.reason.filter(|reason| reason.is_reportable_by_worker());
        match self.outcome {
            // An empty reply is never delivered as a result.
            ReportedOutcome::Completed if self.text.trim().is_empty() => Some(JobReason::EmptyReply),
            ReportedOutcome::Completed => None,
            // A worker that stops without being asked to received a signal from elsewhere.
            ReportedOutcome::Stopped => Some(given.unwrap_or(JobReason::WorkerCrashed)),
            ReportedOutcome::Failed | ReportedOutcome::Limit | ReportedOutcome::Unknown => {
                Some(given.unwrap_or(JobReason::Internal))
            }
        }
    }
}

/// The answer to a [`CompleteReport`]. While prompts wait that the worker has not fetched, a `completed` report is refused with 409
/// `prompts_waiting`: the worker takes them and continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompleteReply {
    /// Always true: a refusal is a problem.
    pub accepted: bool,
}
