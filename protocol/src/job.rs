//! A job as the public API shows and takes it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{JobId, PromptId, TokenUsage};

macro_rules! wire_names {
    ($name:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire and in the store.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// From the name on the wire.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use wire_names;

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are the contract's; the orchestrator's domain::job documents the machine")]
pub enum JobState {
    Pending,
    InProgress,
    Completed,
    Submitted,
    Accepted,
    Failed,
    Stuck,
    Cancelled,
}

wire_names!(JobState {
    Pending => "pending", InProgress => "in_progress", Completed => "completed", Submitted => "submitted",
    Accepted => "accepted", Failed => "failed", Stuck => "stuck", Cancelled => "cancelled",
});

impl JobState {
    /// Nothing more will happen to it.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Accepted | Self::Failed | Self::Cancelled)
    }
}

/// Why a job is not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are the contract's and say it")]
pub enum JobReason {
    SandboxUnavailable,
    ImageMissing,
    PostureMismatch,
    StartTimeout,
    WorkerLost,
    WorkerCrashed,
    Stuck,
    EngineError,
    OomKilled,
    PidsLimit,
    DiskLimit,
    WallClock,
    IterationLimit,
    ToolCallLimit,
    TokenBudget,
    CostBudget,
    LlmError,
    DuplicateCalls,
    EmptyReply,
    CancelledByUser,
    CancelledByParent,
    Rejected,
    OrchestratorRestart,
    Internal,
}

wire_names!(JobReason {
    SandboxUnavailable => "sandbox_unavailable", ImageMissing => "image_missing", PostureMismatch => "posture_mismatch",
    StartTimeout => "start_timeout", WorkerLost => "worker_lost", WorkerCrashed => "worker_crashed", Stuck => "stuck",
    EngineError => "engine_error", OomKilled => "oom_killed", PidsLimit => "pids_limit", DiskLimit => "disk_limit",
    WallClock => "wall_clock", IterationLimit => "iteration_limit", ToolCallLimit => "tool_call_limit",
    TokenBudget => "token_budget", CostBudget => "cost_budget", LlmError => "llm_error",
    DuplicateCalls => "duplicate_calls", EmptyReply => "empty_reply", CancelledByUser => "cancelled_by_user",
    CancelledByParent => "cancelled_by_parent", Rejected => "rejected", OrchestratorRestart => "orchestrator_restart",
    Internal => "internal",
});

/// Whose loop does the work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobMode {
    /// The worker's own.
    #[default]
    Worker,
    /// A third-party agent command line.
    Command,
}

wire_names!(JobMode { Worker => "worker", Command => "command" });

/// Where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In a sandbox.
    Container,
    /// In the orchestrator, with orchestrator-domain tools only.
    Host,
}

/// Who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum Source {
    Api,
    Routine,
    Tool,
    Chat,
    Cli,
}

wire_names!(Source { Api => "api", Routine => "routine", Tool => "tool", Chat => "chat", Cli => "cli" });

/// What a job may use. Zero for `max_tokens` and `max_cost_usd` means the operator's ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "name and unit say it; defaults are in Limits::default")]
pub struct Limits {
    pub timeout_seconds: u64,
    pub max_iterations: u32,
    pub max_tool_calls: u32,
    pub max_tokens: u64,
    pub max_cost_usd: f64,
    pub max_children: u32,
    pub memory_mb: u64,
    pub cpus: f64,
    pub pids: u32,
    pub disk_mb: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout_seconds: 3600,
            max_iterations: 50,
            max_tool_calls: 500,
            max_tokens: 0,
            max_cost_usd: 0.0,
            max_children: 0,
            memory_mb: 2048,
            cpus: 1.0,
            pids: 256,
            disk_mb: 1024,
        }
    }
}

/// Limits as asked for: what is left out takes the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "as in Limits")]
pub struct LimitsRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_children: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
}

/// A file put into the workspace before the work starts: exactly one of the two contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InputFile {
    /// Relative to the workspace; no `..`, no absolute path.
    pub path: String,
    /// As text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// As base64 (standard alphabet, padded).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

/// What of the network a job may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// `host[:port]` or `*.suffix`.
    pub allow: Vec<String>,
    /// Credentials added outside the container.
    pub inject: Vec<EgressInjection>,
}

/// One credential to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressInjection {
    /// To requests for this host.
    pub host: String,
    /// In this header.
    pub header: String,
    /// From the owner's secret of this name.
    pub secret: String,
}

/// `POST /api/jobs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateJob {
    /// The task.
    pub prompt: String,
    /// For people; the prompt's first line when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Whose loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<JobMode>,
    /// With `mode: command`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// One of the operator's images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Narrows the tools in reach; all that the context allows when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Put into the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<InputFile>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsRequest>,
    /// What of the network it may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Plan first.
    #[serde(default)]
    pub plan: bool,
    /// A person accepts or rejects the result.
    #[serde(default)]
    pub review: bool,
    /// Wait in pending until `POST …/start`.
    #[serde(default)]
    pub hold: bool,
    /// Higher goes first; −100 to 100.
    #[serde(default)]
    pub priority: i32,
    /// For filters: at most 64 of 63 and 255 bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Kept as given, at most 16 KiB.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    /// One of the operator's models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the fields are the contract's and carry its words")]
pub struct Job {
    pub id: JobId,
    pub user_id: String,
    pub title: String,
    pub prompt: String,
    pub mode: JobMode,
    pub placement: Placement,
    pub state: JobState,
    pub reason: Option<JobReason>,
    pub message: Option<String>,
    pub priority: i32,
    pub labels: BTreeMap<String, String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    pub egress: Option<Egress>,
    pub model: String,
    pub source: Source,
    pub routine_id: Option<uuid::Uuid>,
    pub run_id: Option<uuid::Uuid>,
    pub parent_id: Option<JobId>,
    pub restarted_from: Option<JobId>,
    pub attempt: u32,
    pub repair_attempts: u32,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub last_activity_at: Option<DateTime<Utc>>,
    pub cancel_requested_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub result: Option<JobResult>,
    pub usage: Usage,
    pub container: Option<ContainerInfo>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobResult {
    /// The agent's last word.
    pub text: Option<String>,
    /// What there is when it did not complete.
    pub partial: Option<PartialResult>,
}

/// What a job leaves that did not complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PartialResult {
    /// The text so far.
    pub text: String,
    /// The last tool calls, newest last, as `tool: ok|error kind`.
    pub last_actions: Vec<String>,
    /// Model calls made.
    pub iterations: u32,
    /// Tool calls made.
    pub tool_calls: u32,
    /// Tokens used.
    pub usage: TokenUsage,
}

/// What a job has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "name and unit say it")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: f64,
    pub llm_calls: u64,
    pub tool_calls: u64,
    pub iterations: u64,
}

/// The job's container, as it is or was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerInfo {
    /// The engine's id; none before it is created.
    pub id: Option<String>,
    /// `gantry-job-<id>-<attempt>`.
    pub name: String,
    /// The image it was made from.
    pub image: String,
    /// `docker`.
    pub engine: String,
    /// `runc`, `runsc`, …
    pub runtime: String,
    /// `unix` or `tcp`.
    pub transport: String,
    /// How the workspace's size is held: `fsize+sweep`, …
    pub workspace: String,
    /// The engine's host name.
    pub node: Option<String>,
    /// Digest of the posture it was checked against.
    pub posture: String,
    /// Once it has ended.
    pub exit_code: Option<i64>,
    /// Once it has ended.
    pub oom_killed: Option<bool>,
}

/// `POST …/cancel`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST …/reject`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RejectRequest {
    /// For people.
    pub reason: String,
}

/// When a follow-up prompt is seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PromptMode {
    /// Before the next model call.
    #[default]
    Steer,
    /// When the agent would otherwise finish.
    Queue,
}

wire_names!(PromptMode { Steer => "steer", Queue => "queue" });

/// `POST …/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PromptRequest {
    /// The text.
    pub content: String,
    /// When it is seen.
    #[serde(default)]
    pub mode: PromptMode,
    /// No more will come.
    #[serde(default)]
    pub done: bool,
}

/// Its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PromptReceipt {
    /// Which.
    pub prompt_id: PromptId,
}

/// `POST …/restart`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// Instead of the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// In the list's order.
    pub items: Vec<T>,
    /// Give it as `cursor` for what follows; none at the end.
    pub next_cursor: Option<String>,
}

/// Jobs by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the states' names")]
pub struct StateCounts {
    pub pending: u64,
    pub in_progress: u64,
    pub completed: u64,
    pub submitted: u64,
    pub accepted: u64,
    pub failed: u64,
    pub stuck: u64,
    pub cancelled: u64,
}

/// `GET /api/jobs/summary`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSummary {
    /// The caller's jobs (an admin's: all).
    pub states: StateCounts,
    /// Since midnight UTC.
    pub usage_today: Usage,
}

/// One row of `GET …/actions`: a tool call, refused and unknown ones too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the tool_use and tool_result events")]
pub struct ToolActionRecord {
    pub call_id: String,
    pub attempt: u32,
    pub tool: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub input: Value,
    pub success: Option<bool>,
    pub output: Option<String>,
    pub duration_ms: Option<u64>,
    pub at: DateTime<Utc>,
}

/// One row of `GET …/llm-calls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the llm_call event")]
pub struct LlmCallRecord {
    pub call_id: String,
    pub attempt: u32,
    pub provider: String,
    pub model: String,
    pub usage: TokenUsage,
    pub cost_usd: f64,
    pub duration_ms: u64,
    pub finish_reason: Option<String>,
    pub error: Option<String>,
    pub at: DateTime<Utc>,
}
