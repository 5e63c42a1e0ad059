//! The worker API: what a worker and the orchestrator say to each other over the job's socket.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentEvent, CallId, JobId, JobMode, JobReason, Limits, Message, PartialResult, PromptId, PromptMode, ToolDefinition,
};

/// The header with the secret of a worker's session, sent with every call (contract: sandbox, Transport and identity).
pub const SESSION_HEADER: &str = "x-gantry-session";

/// `GET /worker/{id}/job`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobAssignment {
    /// The job.
    pub job_id: JobId,
    /// This container's try at it.
    pub attempt: u32,
    /// For people.
    pub title: String,
    /// The task.
    pub prompt: String,
    /// Whose loop does it.
    pub mode: JobMode,
    /// With `mode: command`.
    #[serde(default)]
    pub command: Vec<String>,
    /// Plan first.
    pub plan: bool,
    /// What it may use.
    pub limits: Limits,
    /// The pinned model, for information.
    pub model: String,
    /// What the model may see.
    pub tools: Vec<ToolDefinition>,
    /// The conversation of an earlier attempt to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Vec<Message>>,
    /// The lease; heartbeats come each third of it.
    pub lease_seconds: u64,
    /// What the network offers.
    pub egress: EgressView,
    /// The model's context window in tokens; 0 or absent when it is not known.
    #[serde(default)]
    pub context_tokens: u64,
    /// How long the loop asks a model that does not answer before the job fails; an older orchestrator does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_patience_seconds: Option<u64>,
}

/// Who refused a model call with `rate_limited`; the problem's `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitOrigin {
    /// A provider: it is limited, or does not answer. Such refusals in a row end a job.
    Provider,
    /// The orchestrator, before a provider was asked: an open circuit, a full queue, a limit on failed calls. The caller
    /// waits for as long as it takes.
    Local,
}

/// The problem's `reason` of a model call whose request exceeds the model's context window; its code is `llm_error`.
pub const CONTEXT_LENGTH: &str = "context_length";

impl RateLimitOrigin {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Local => "local",
        }
    }

    /// By its name on the wire. Refusals that name no provider are the orchestrator's own, such as limits of its transport.
    pub fn of_reason(reason: Option<&str>) -> Self {
        if reason == Some("provider") { Self::Provider } else { Self::Local }
    }
}

/// What of the network a job may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressView {
    /// Whether anything is.
    pub enabled: bool,
    /// The entries.
    pub allow: Vec<String>,
}

/// One event from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerEvent {
    /// From 1 within the attempt, without gaps; makes sending twice harmless.
    pub client_seq: u64,
    /// `kind` and `data`. The type has only what a worker may send; the rest are the orchestrator's to write.
    #[serde(flatten)]
    pub data: AgentEvent,
}

/// `POST …/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventBatch {
    /// In order of `client_seq`.
    pub events: Vec<WorkerEvent>,
}

/// Its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAck {
    /// Everything up to here is stored.
    pub last_client_seq: u64,
}

/// `GET …/tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolList {
    /// What the model may see.
    pub tools: Vec<ToolDefinition>,
}

/// `POST …/tools/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCallRequest {
    /// The same id again gets the recorded answer.
    pub call_id: CallId,
    /// Checked against the tool's schema.
    pub arguments: Value,
}

/// Its answer: 200 also when refused, for the model to read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallReply {
    /// Whether it worked.
    pub success: bool,
    /// What the model reads when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether the output was cut.
    #[serde(default)]
    pub truncated: bool,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: u64,
    /// Why not, when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolFailure>,
}

/// A tool's failure as told to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFailure {
    /// Which kind.
    pub kind: ToolErrorKind,
    /// What happened and what to do.
    pub message: String,
    /// With `rate_limited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}

/// Kinds of tool failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolErrorKind {
    /// The arguments do not fit the schema.
    InvalidParameters,
    /// The tool ran and failed.
    Failed,
    /// It took too long.
    Timeout,
    /// A policy or permission refuses it.
    NotAuthorized,
    /// Too many calls.
    RateLimited,
    /// Something outside failed.
    External,
    /// The sandbox refused it or could not do it.
    Sandbox,
    /// It needs a person, and none is there.
    AutonomousUnavailable,
    /// No such tool in reach.
    NotFound,
}

impl ToolErrorKind {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidParameters => "invalid_parameters",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::NotAuthorized => "not_authorized",
            Self::RateLimited => "rate_limited",
            Self::External => "external",
            Self::Sandbox => "sandbox",
            Self::AutonomousUnavailable => "autonomous_unavailable",
            Self::NotFound => "not_found",
        }
    }
}

/// `GET …/prompt`: the next prompt, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptDelivery {
    /// Which.
    pub prompt_id: PromptId,
    /// The text.
    pub content: String,
    /// When it is to be seen.
    pub mode: PromptMode,
    /// No more will come.
    pub done: bool,
}

/// `POST …/status`: the heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusReport {
    /// Model calls so far.
    pub iteration: u32,
    /// What is going on.
    #[serde(default)]
    pub message: Option<String>,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReply {
    /// The job is to stop.
    pub cancel: bool,
    /// When the lease runs out unless renewed.
    pub lease_expires_at: DateTime<Utc>,
}

/// How a worker says its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedOutcome {
    /// Done.
    Completed,
    /// It cannot go on.
    Failed,
    /// A limit was reached.
    Limit,
    /// It was told to stop.
    Stopped,
    /// Anything else counts as failed.
    #[serde(other)]
    Unknown,
}

impl ReportedOutcome {
    /// The name in the `result` event of a job that did not complete.
    pub const fn as_failure(self) -> &'static str {
        match self {
            Self::Completed | Self::Failed | Self::Unknown => "failed",
            Self::Limit => "limit",
            Self::Stopped => "stopped",
        }
    }
}

/// `POST …/complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompleteReport {
    /// How it ended.
    pub outcome: ReportedOutcome,
    /// Why, when not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<JobReason>,
    /// For people, when not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result, or what there is of it.
    pub text: String,
    /// What was done, when not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialResult>,
    /// Model calls made.
    #[serde(default)]
    pub iterations: u32,
}

impl CompleteReport {
    /// The reason of a job that ends by this report; none when it completed.
    pub fn job_reason(&self) -> Option<JobReason> {
        // The rest are the orchestrator's to find.
        let given = self.reason.filter(|reason| reason.from_worker());
        match self.outcome {
            // An empty reply is never delivered as a result.
            ReportedOutcome::Completed if self.text.trim().is_empty() => Some(JobReason::EmptyReply),
            ReportedOutcome::Completed => None,
            // A worker that stops unasked was sent a signal from outside.
            ReportedOutcome::Stopped => Some(given.unwrap_or(JobReason::WorkerCrashed)),
            ReportedOutcome::Failed | ReportedOutcome::Limit | ReportedOutcome::Unknown => {
                Some(given.unwrap_or(JobReason::Internal))
            }
        }
    }
}

/// Its answer. With prompts waiting that the worker has not fetched, a `completed` report is refused with 409
/// `prompts_waiting`: the worker takes them and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompleteReply {
    /// Always true; a refusal is a problem.
    pub accepted: bool,
}
