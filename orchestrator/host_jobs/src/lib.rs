//! Jobs that the orchestrator runs itself, with the loop that workers run and the orchestrator's tools only. Contents only.

mod journal;
mod model;
mod session;

pub use session::HostJobs;
