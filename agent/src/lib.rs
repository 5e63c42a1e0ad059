//! The agent: the only loop that asks a model and acts on its answer, and the one guarded path for tool calls.
//!
//! Owns the loop, its outcome, the [`Model`], [`Tool`] and [`Journal`] seams, reply cleaning, planning and compaction.
//! Never does I/O of its own: its callers (worker, orchestrator) bring model, tools, journal and signals.

mod journal;
mod model;
mod outcome;
mod signals;
mod tool;

pub use journal::{Journal, JournalClosed};
pub use model::{BudgetKind, Model, ModelError};
pub use outcome::{LimitKind, LoopOutcome};
pub use signals::{Prompt, Signals};
pub use tool::{ApprovalContext, ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
