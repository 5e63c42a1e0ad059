//! Hooks: the operator's own rules and webhooks, which decide about tool calls, messages and jobs.
//!
//! `asked` runs the hooks of a point in their order. `rule` and `webhook` are the two kinds of hooks. `job_end` tells
//! webhooks about jobs that have ended.

mod asked;
mod error;
mod event;
mod job_end;
mod rule;
mod webhook;

pub use asked::Hooks;
pub use error::{HookRefused, InvalidHook};
pub use event::HookEvent;
pub use job_end::JobEndNotices;
