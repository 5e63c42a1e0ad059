//! A job, as the public API returns it.

pub(crate) mod container_name;
pub(crate) mod file;
pub(crate) mod metadata;
pub(crate) mod request;
pub(crate) mod workspace_path;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{Effort, Egress, JobId, Metadata, TokenUsage, names::wire_enum};

wire_enum! {
    /// The state of a job.
    #[derive(PartialOrd, Ord)]
    #[expect(missing_docs, reason = "the orchestrator's domain::job documents the machine")]
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
}

impl JobState {
    /// Whether the state is final.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Accepted | Self::Failed | Self::Cancelled)
    }
}

wire_enum! {
    /// Why a job is failed, stuck or cancelled.
    #[expect(missing_docs, reason = "the names are self-explanatory")]
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
}

impl JobReason {
    /// Whether a worker may report it; the other reasons are found by the orchestrator.
    pub const fn is_reportable_by_worker(self) -> bool {
        matches!(
            self,
            Self::PidsLimit
                | Self::IterationLimit
                | Self::ToolCallLimit
                | Self::TokenBudget
                | Self::CostBudget
                | Self::LlmError
                | Self::DuplicateCalls
                | Self::EmptyReply
                | Self::Internal
        )
    }
}

wire_enum! {
    /// Which agent runs the job.
    #[derive(Default)]
    pub enum JobMode {
        /// The worker's own.
        #[default]
        Worker,
        /// A third-party agent command line. Not available in this version.
        Command,
    }
}

/// Where a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In a sandbox.
    Container,
    /// In the orchestrator, with orchestrator-domain tools only.
    Host,
}

wire_enum! {
    /// The creator of a job.
    #[expect(missing_docs, reason = "the words say it")]
    pub enum Source {
        Api,
        Routine,
        Tool,
        Chat,
        Cli,
    }
}

/// Limits of a job. Zero for `max_tokens` and `max_cost_usd` means the operator's ceiling.
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

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state")]
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
    pub metadata: Metadata,
    pub limits: Limits,
    pub egress: Option<Egress>,
    /// The tools that it was narrowed to, as in the request.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// Tools that may run without asking.
    #[serde(default)]
    pub approve: Vec<String>,
    #[serde(default)]
    pub image: String,
    /// Whether its work starts with a plan.
    #[serde(default)]
    pub plan: bool,
    pub model: String,
    pub effort: Option<Effort>,
    /// Whether it waits in the queue until it is started.
    #[serde(default)]
    pub held: bool,
    /// Whether a person accepts or rejects its result.
    #[serde(default)]
    pub review: bool,
    /// Whether a prompt with `done: true` was its last one.
    #[serde(default)]
    pub prompts_closed: bool,
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
    /// Where a pending job stands in the queue, from 1 for the next; an estimate, since users take turns. Only in the response to
    /// `GET /api/jobs/{id}`; null for a job that is held or not pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<u64>,
}

/// A job in a list: without its prompt, result and metadata, which may be large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in Job")]
pub struct JobSummary {
    pub id: JobId,
    pub user_id: String,
    pub title: String,
    /// The first 200 characters of the prompt.
    pub prompt_preview: String,
    pub mode: JobMode,
    pub placement: Placement,
    pub state: JobState,
    pub reason: Option<JobReason>,
    pub message: Option<String>,
    pub priority: i32,
    pub labels: BTreeMap<String, String>,
    pub limits: Limits,
    pub egress: Option<Egress>,
    pub model: String,
    pub effort: Option<Effort>,
    /// Whether it waits in the queue until it is started.
    #[serde(default)]
    pub held: bool,
    /// Whether a person accepts or rejects its result.
    #[serde(default)]
    pub review: bool,
    /// Whether a prompt with `done: true` was its last one.
    #[serde(default)]
    pub prompts_closed: bool,
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
    /// What it does now, such as `shell: pytest -q`; null while it waits for its model, and when it does not run.
    #[serde(default)]
    pub activity: Option<String>,
    pub usage: Usage,
    pub container: Option<ContainerInfo>,
}

/// Characters of a prompt that a list shows.
pub const PROMPT_PREVIEW_CHARS: usize = 200;

impl Job {
    /// The job as lists return it, without what it does now.
    pub fn summary(&self) -> JobSummary {
        let job = self.clone();
        JobSummary {
            id: job.id,
            user_id: job.user_id,
            title: job.title,
            prompt_preview: job.prompt.chars().take(PROMPT_PREVIEW_CHARS).collect(),
            mode: job.mode,
            placement: job.placement,
            state: job.state,
            reason: job.reason,
            message: job.message,
            priority: job.priority,
            labels: job.labels,
            limits: job.limits,
            egress: job.egress,
            model: job.model,
            effort: job.effort,
            held: job.held,
            review: job.review,
            prompts_closed: job.prompts_closed,
            source: job.source,
            routine_id: job.routine_id,
            run_id: job.run_id,
            parent_id: job.parent_id,
            restarted_from: job.restarted_from,
            attempt: job.attempt,
            repair_attempts: job.repair_attempts,
            created_at: job.created_at,
            started_at: job.started_at,
            last_activity_at: job.last_activity_at,
            cancel_requested_at: job.cancel_requested_at,
            finished_at: job.finished_at,
            activity: None,
            usage: job.usage,
            container: job.container,
        }
    }
}

impl JobSummary {
    /// When its work ended: a review begins then, and may take days.
    pub fn work_ended_at(&self) -> Option<DateTime<Utc>> {
        let is_of_review =
            matches!(self.state, JobState::Submitted | JobState::Accepted) || self.reason == Some(JobReason::Rejected);
        if self.review && is_of_review { self.last_activity_at } else { self.finished_at }
    }
}

/// The line at the end of an answer that the output limit of the model cut.
pub const CUT_NOTE: &str = "[The answer was cut at the output limit of the model.]";

/// The result of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobResult {
    /// The agent's final answer.
    pub text: Option<String>,
    /// The partial result of a job that did not complete.
    pub partial: Option<PartialResult>,
    /// Whether the output limit of the model cut the answer, which then ends with a line about it. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// The partial result of a job that did not complete.
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

/// Usage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "name and unit say it")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// The sum of all calls; null when any of them had no price.
    pub cost_usd: Option<f64>,
    pub llm_calls: u64,
    /// Without calls that were refused for `limits.max_tool_calls`, which are recorded.
    pub tool_calls: u64,
    pub iterations: u64,
}

impl Default for Usage {
    /// The usage of a job without calls, which costs nothing.
    fn default() -> Self {
        Self {
            input_tokens: 0,
            output_tokens: 0,
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            cost_usd: Some(0.0),
            llm_calls: 0,
            tool_calls: 0,
            iterations: 0,
        }
    }
}

/// The job's current or last container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerInfo {
    /// The engine's id; `null` until the container is created.
    pub id: Option<String>,
    /// `gantry-job-<id>-<attempt>`.
    pub name: String,
    /// The image.
    pub image: String,
    /// `docker`.
    pub engine: String,
    /// `runc`, `runsc`, …
    pub runtime: String,
    /// `unix` or `tcp`.
    pub transport: String,
    /// How the workspace's size is limited: `fsize+sweep`, …
    pub workspace: String,
    /// The engine's host name.
    pub node: Option<String>,
    /// Digest of the security posture that the container was checked against.
    pub posture: String,
    /// Exit code; `null` while it runs.
    pub exit_code: Option<i64>,
    /// Whether the kernel killed it for memory; `null` while it runs.
    pub oom_killed: Option<bool>,
}
