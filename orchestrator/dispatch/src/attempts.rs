//! The live attempts: what the process keeps in memory about each, in one registry. Contents only.

mod activity;
mod attempt;
mod egress_meter;
mod event_quota;
mod host_run;
mod job_limits;
mod log_tails;
mod rate_limiter;
mod registry;

pub use activity::Liveness;
pub(crate) use attempt::AttemptFacts;
pub use attempt::{Attempt, AttemptKey, AttemptStopCause, ChildWait, InFlightCall};
pub(crate) use egress_meter::Taken;
pub use egress_meter::{EgressCounts, EgressDirection, EgressKind, EgressMeter, EgressQuota};
pub use event_quota::MAX_EVENT_BYTES_HARD;
pub(super) use event_quota::{EventAllowance, MAX_EVENT_BYTES, is_essential};
pub(super) use host_run::HostRun;
pub use host_run::HostRunState;
pub use job_limits::JobLimits;
pub(super) use log_tails::LogTails;
pub use rate_limiter::RateLimiter;
pub use registry::AttemptRegistry;
