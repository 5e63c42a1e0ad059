//! The live attempts: what the process keeps in memory about each, in one registry. Contents only.

mod activity;
mod attempt;
mod job_limits;
mod long_poll;
mod quota;
mod rate_limiter;
mod registry;

pub use activity::Liveness;
pub use attempt::{Attempt, AttemptKey, InFlightCall, StopCause, ToolCallError};
pub use job_limits::JobLimits;
pub use long_poll::Poll;
pub use quota::{EventAllowance, MAX_EVENT_BYTES, MAX_EVENT_BYTES_HARD, is_essential};
pub use rate_limiter::RateLimiter;
pub use registry::AttemptRegistry;
