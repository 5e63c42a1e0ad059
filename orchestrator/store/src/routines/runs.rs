//! Runs: which may start, how they start, what they may use, and how they end. Contents only.

pub(super) mod budgets;
pub(super) mod cancel;
mod conversation;
pub(super) mod finish;
mod histogram;
pub(super) mod list;
pub(super) mod run_log;
pub(super) mod start;
pub(super) mod startable;
