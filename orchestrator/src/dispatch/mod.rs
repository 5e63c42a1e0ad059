//! The dispatcher: makes containers match the database. Contents only.

mod apply;
mod attempts;
mod disk;
mod dispatcher;
mod listeners;
pub mod plan;
mod sandbox;

pub use attempts::{
    Attempt, AttemptKey, AttemptRegistry, EventAllowance, InFlightCall, JobLimits, Liveness, MAX_EVENT_BYTES,
    MAX_EVENT_BYTES_HARD, Poll, RateLimiter, StopCause, ToolCallError, is_essential,
};
pub use disk::{DiskGauge, DiskSweep, Violation};
pub use dispatcher::{Dispatcher, DispatcherSettings, Wake};
pub use listeners::{ServeSocket, TokenFiles, WorkerListeners};
pub use sandbox::{Prober, Sandbox};
