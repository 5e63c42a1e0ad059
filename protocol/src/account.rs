//! What was done and what was used, as the public API tells it.

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};

use crate::{JobId, job::wire_names};

/// What became of what somebody did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It holds.
    Done,
    /// Nothing changed.
    Refused,
}

wire_names!(AuditOutcome { Done => "done", Refused => "refused" });

/// One row of `GET /api/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub user: String,
    /// As what.
    pub role: String,
    /// Such as `job.create`.
    pub action: String,
    /// The job that was named or made.
    pub job_id: Option<JobId>,
    /// Whether it was done.
    pub outcome: AuditOutcome,
    /// The problem's code when it was not.
    pub code: Option<String>,
    /// As in the answer's `X-Request-Id`.
    pub request_id: Option<String>,
    /// The token's id.
    pub jti: Option<String>,
    /// The address it came from, or `cli`.
    pub source: Option<String>,
}

/// How `GET /api/usage` adds up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    /// By the day in UTC, the newest first.
    #[default]
    Day,
    /// By job, the newest first.
    Job,
    /// By model, in the order of their names.
    Model,
}

wire_names!(UsageBy { Day => "day", Job => "job", Model => "model" });

/// One line of `GET /api/usage`. It names what it is about: a day, a job with its user, or a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in a job's usage")]
pub struct UsageLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<NaiveDate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: f64,
    pub llm_calls: u64,
    /// None by model: a tool call belongs to no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
}
