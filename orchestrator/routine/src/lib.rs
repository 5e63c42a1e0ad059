//! Routines at work: runs that wait are started and ended. Contents only.

mod conversation;
mod lightweight;
mod live_runs;
mod runner;
mod scheduler;

pub use lightweight::Lightweight;
pub use runner::{Runner, RunnerParts};
pub use scheduler::RoutineScheduler;
