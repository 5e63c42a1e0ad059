//! Runs of routines.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{EventData, JobId, RoutineId, RunId, names::wire_enum};

/// One firing of a routine, and its outcome; or firings that were skipped or missed, which are counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutineRun {
    /// Its id.
    pub id: RunId,
    /// The routine, which may have been deleted since.
    pub routine_id: RoutineId,
    /// The name of the routine when it fired.
    pub routine_name: String,
    /// The owner.
    pub user_id: String,
    /// What fired it.
    pub trigger_type: TriggerType,
    /// What is known of what fired it: the digest of a payload, or the payload itself with `persist_payload`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub trigger_detail: Value,
    /// The time of the schedule that it is for.
    pub due_at: Option<DateTime<Utc>>,
    /// When its first attempt started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub completed_at: Option<DateTime<Utc>>,
    /// Its outcome.
    pub status: RunStatus,
    /// Why it failed, was skipped or was missed.
    pub reason: Option<RunReason>,
    /// A human-readable message about `reason`.
    pub message: Option<String>,
    /// The beginning of its result, at most 4,000 characters.
    pub result_summary: Option<String>,
    /// Whether its result is longer than `result_summary`. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// The text of its result, at most 100,000 bytes. Left out in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Whether the output limit of the model cut its result. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Tokens of its model calls.
    pub tokens_used: u64,
    /// Cost of its model calls; null when a call had no price.
    pub cost_usd: Option<f64>,
    /// Its job.
    pub job_id: Option<JobId>,
    /// The number of its last attempt.
    pub attempt: u32,
    /// When it is tried again, or may start at the earliest.
    pub not_before: Option<DateTime<Utc>>,
    /// For `missed`: the first time that was missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_from: Option<DateTime<Utc>>,
    /// For `missed`: the last time that was missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_to: Option<DateTime<Utc>>,
    /// For `missed`: the number of times that were missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_count: Option<u64>,
    /// For firings that were skipped: how many there were for this reason within the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_count: Option<u64>,
    /// For firings that were skipped: when the last of them was. The first was at `created_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_skipped_at: Option<DateTime<Utc>>,
    /// For firings that were skipped: what is known of what fired the last of them; `trigger_detail` is of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub last_skipped_detail: Option<Value>,
    /// When the firing was recorded.
    pub created_at: DateTime<Utc>,
}

/// An entry of the conversation of a lightweight run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunMessage {
    /// From 1 within the run.
    pub seq: u64,
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// When it was recorded.
    pub at: DateTime<Utc>,
    /// `kind` and `data`, as in the events of a job: messages, reasoning, tool calls, results and limits.
    #[serde(flatten)]
    pub data: EventData,
}

wire_enum! {
    /// The outcome of a firing.
    pub enum RunStatus {
        /// It waits to start, or to be tried again.
        Queued,
        /// It is in progress.
        Running,
        /// It succeeded, with nothing to report.
        Ok,
        /// It succeeded, with something to report.
        Attention,
        /// It failed.
        Failed,
        /// A guardrail stopped it.
        Skipped,
        /// Its time passed unnoticed.
        Missed,
    }
}

impl RunStatus {
    /// Whether the status is final.
    pub const fn is_finished(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// Whether the run did what it was for.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ok | Self::Attention)
    }
}

wire_enum! {
    /// Why a run failed, was skipped or was missed.
    pub enum RunReason {
        /// Skipped: the cooldown of an earlier run has not passed.
        Cooldown,
        /// Skipped: `max_concurrent` runs are in progress.
        Overlap,
        /// Skipped: the same payload fired within the window.
        Duplicate,
        /// Skipped: the budget of the period is spent.
        Budget,
        /// Skipped: the chain of routines that fire each other is too long.
        Depth,
        /// Skipped: `max_runs` has been reached.
        MaxRuns,
        /// Skipped: `until` has passed.
        Until,
        /// Skipped: the routine started too many runs in a minute.
        FireRate,
        /// Skipped: the routine was deleted, disabled or changed before the run started.
        RoutineChanged,
        /// Missed: the scheduled time passed while the scheduler was not running, and `catch_up` does not cover it.
        Late,
        /// Missed, or not started: automation was switched off.
        AutomationDisabled,
        /// Failed: a user cancelled it.
        CancelledByUser,
        /// Failed: a later firing replaced it.
        CancelledByOverlap,
        /// Failed: the orchestrator stopped while it was in progress.
        OrchestratorRestart,
        /// Failed: its time was up.
        Timeout,
        /// Failed: the model did not answer.
        LlmError,
        /// Failed: the provider asked to wait, longer or more often than the run may.
        RateLimited,
        /// Failed: the provider refused the key, or the account is empty.
        ProviderAccount,
        /// Failed: the model answered nothing.
        EmptyReply,
        /// Failed: the agent's loop reached a limit.
        IterationLimit,
        /// Failed: the sandbox is not ready.
        SandboxUnavailable,
        /// Failed: the job was refused when it was created.
        JobRefused,
        /// Failed: the job failed; `message` has its reason.
        JobFailed,
        /// Failed: the job was cancelled.
        JobCancelled,
        /// Failed: a budget, the job queue or the disk limit was reached.
        LimitReached,
        /// Failed: a fault of the orchestrator.
        Internal,
    }
}

wire_enum! {
    /// What fired a run.
    #[expect(missing_docs, reason = "each is documented on RoutineTrigger")]
    pub enum TriggerType {
        Cron,
        Every,
        At,
        Event,
        SystemEvent,
        Webhook,
        Manual,
    }
}

impl TriggerType {
    /// Whether the trigger has times.
    pub const fn is_schedule(self) -> bool {
        matches!(self, Self::Cron | Self::Every | Self::At)
    }
}

/// `POST /api/routines/{id}/trigger`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TriggerRoutine {
    /// Data for the run, which it reads as untrusted; at most 256 KiB as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub payload: Option<Value>,
    /// Seconds to wait for the end of the run, at most 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
}
