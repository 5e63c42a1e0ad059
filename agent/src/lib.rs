//! The agent: the only loop that asks a model and acts on its answer, and the one executor of tool calls.
//!
//! Owns the loop, its outcome, the [`Model`], [`Tool`] and [`Journal`] traits, reply cleaning, planning, compaction and the
//! safety layer.
//! Never does I/O: its callers (worker, orchestrator) bring model, tools, journal and signals.

#![warn(missing_docs)]

mod agent;
mod clean;
mod event_size;
mod journal;
mod model;
mod run;
pub mod safety;
mod session;
mod settings;
mod text;
mod tool;
mod tools;
mod transcript;

#[cfg(test)]
mod stories;

pub use agent::Agent;
pub use event_size::{event_bytes, shortened_event};
/// The type of [`Tool::call`]: tools are kept in lists, so their futures are boxed.
pub use futures_util::future::BoxFuture;
pub use journal::{Journal, JournalError};
pub use model::{Delta, DeltaSink, Model, ModelError};
/// Declared on the wire, and used by every [`Tool`].
pub use protocol::ApprovalRequirement;
pub use run::{
    Run, add_usage,
    approvals::{ApprovalAnswer, ApprovalRequest, NothingToApprove},
    outcome::{FailureReason, LimitKind, LoopOutcome},
    signals::{Inbox, InboxFull, Prompt, Signals},
};
pub use session::{
    Delivery, JobSession,
    report::{failure_report, outcome_report, shortened_report},
    resume::start_attempt,
};
pub use settings::{DEFAULT_OUTAGE_PATIENCE, Settings};
pub use text::{elide, split_context, with_context};
pub use tool::{Invocation, Tool, ToolError, ToolOutput, ToolSpec};
pub use tools::{
    Admission, AllowList, ApprovalContext, CallHost, CallOutcome, CallResult, CheckedCall, Decision, MAX_OUTPUT_BYTES,
    OpenedRow, RecordError, RegisterError, RegisteredTool, ToolContext, ToolExecutor, ToolPolicy, ToolRegistry,
    Unrecorded,
    container::{MAX_SHELL_TIMEOUT_SECONDS, container_tool, container_tool_requirement, container_tools},
    is_denied_to_jobs, is_incomplete_escape, sanitize_piece,
};
pub use transcript::{Transcript, compact::summarised_messages, forget_native_replies};
