//! Audit, records of calls and lists, as the public API returns them.

pub(crate) mod mcp;
pub(crate) mod memory;
pub(crate) mod model_request;
pub(crate) mod notification;
pub(crate) mod secret;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod tool;
pub(crate) mod usage;

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, JobId, TokenUsage, ToolErrorKind, Usage, names::wire_enum};

wire_enum! {
    /// The outcome of an audited action.
    pub enum AuditOutcome {
        /// The action took effect.
        Done,
        /// Nothing changed.
        Refused,
    }
}

wire_enum! {
    /// The role of an audited actor: that of a user's token, or the operator of the host.
    pub enum ActorRole {
        /// Full access to all users' objects.
        Admin,
        /// Reads and changes its own objects.
        User,
        /// Reads its own objects.
        Viewer,
        /// The command line on the server's host.
        Operator,
        /// A model, by a tool call on behalf of the user.
        Agent,
    }
}

/// One row of `GET /api/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// When the action took place.
    pub at: DateTime<Utc>,
    /// The user.
    pub user: String,
    /// The user's role.
    pub role: ActorRole,
    /// The action's name, such as `job.create`.
    pub action: String,
    /// The job that the action names or creates.
    pub job_id: Option<JobId>,
    /// Whether it was done.
    pub outcome: AuditOutcome,
    /// The problem's code of a refused action.
    pub code: Option<String>,
    /// The response's `X-Request-Id`.
    pub request_id: Option<String>,
    /// The token's id.
    pub jti: Option<String>,
    /// The address it came from, or `cli`.
    pub source: Option<String>,
}

wire_enum! {
    /// What a user stores. The texts of jobs and runs are without events and calls, which are deleted after a time.
    pub enum StorageKind {
        /// Documents with their versions.
        Memory,
        /// Entries of chats, what models have read, and tool calls of chats.
        Chats,
        /// Definitions and states of routines.
        Routines,
        /// Prompts, results and metadata of jobs.
        Jobs,
        /// Details and results of runs.
        Runs,
        /// What fired runs: of runs that have not ended, and of those whose routine keeps it.
        Payloads,
    }
}

/// The bytes that a user stores of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "name and unit say it")]
pub struct StoredBytes {
    pub kind: StorageKind,
    pub bytes: u64,
}

/// `GET /api/storage`: what a user stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserStorage {
    /// Of all kinds.
    pub bytes: u64,
    /// Maximum size; null without a limit. When it is reached, requests that would add to it are refused.
    pub max_bytes: Option<u64>,
    /// The largest first; only those that are not empty.
    pub kinds: Vec<StoredBytes>,
}

impl UserStorage {
    /// Whether the user may store no more.
    pub fn is_full(&self) -> bool {
        self.max_bytes.is_some_and(|max| self.bytes >= max)
    }
}

/// What a user is told who may store no more.
impl fmt::Display for UserStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.kinds.iter().take(3).map(|one| format!("{}: {}", one.kind, one.bytes));
        let (kinds, max) = (kinds.collect::<Vec<_>>().join(", "), self.max_bytes.unwrap_or_default());
        write!(f, "your data takes {} of {max} bytes ({kinds}); delete some", self.bytes)
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, in the list's order.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last page.
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
pub struct JobCounts {
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
    pub call_id: CallId,
    pub attempt: u32,
    pub tool: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub input: Value,
    /// The model's reason for the call; null if it gave none.
    pub reasoning: Option<String>,
    pub success: Option<bool>,
    pub output: Option<String>,
    pub duration_ms: Option<u64>,
    /// In US dollars: what the tool declares that a call costs at worst.
    pub estimated_cost_usd: f64,
    /// In US dollars; null when the tool does not know it.
    pub cost_usd: Option<f64>,
    pub at: DateTime<Utc>,
}

/// One row of `GET /api/chat/threads/{id}/actions`: a tool call of a chat, refused and unknown ones too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the tool_use and tool_result entries")]
pub struct ThreadActionRecord {
    pub call_id: CallId,
    /// The number of the turn in its thread, from 1.
    pub turn: u32,
    pub tool: String,
    /// Null once the thread is deleted.
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub input: Value,
    /// The model's reason for the call; null if it gave none, and once the thread is deleted.
    pub reasoning: Option<String>,
    /// Null while the call runs.
    pub success: Option<bool>,
    /// Why there is no output, if there is none.
    pub error: Option<ToolErrorKind>,
    /// Null once the thread is deleted.
    pub output: Option<String>,
    pub duration_ms: Option<u64>,
    /// In US dollars: what the tool declares that a call costs at worst.
    pub estimated_cost_usd: f64,
    /// In US dollars; null when the tool does not know it.
    pub cost_usd: Option<f64>,
    pub at: DateTime<Utc>,
}

/// One row of `GET …/llm-calls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the llm_call event")]
pub struct LlmCallRecord {
    pub call_id: CallId,
    pub attempt: u32,
    pub provider: String,
    pub model: String,
    pub usage: TokenUsage,
    /// In US dollars; null when the model had no price.
    pub cost_usd: Option<f64>,
    pub duration_ms: u64,
    pub finish_reason: Option<String>,
    pub error: Option<String>,
    pub at: DateTime<Utc>,
}

const MAX_USER_BYTES: usize = 64;

/// Whether `name` is a valid user name: 1 to 64 letters, digits and `._@-`.
pub fn is_user_name(name: &str) -> bool {
    (1..=MAX_USER_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
}
