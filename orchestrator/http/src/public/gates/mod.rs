//! `/api/gates`: tool calls of chat threads that wait for a person. Contents only.

pub(super) mod by_thread;
pub(super) mod get;
pub(super) mod list;
pub(super) mod resolve;
