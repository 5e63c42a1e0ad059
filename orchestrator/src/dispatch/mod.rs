//! The dispatcher: creates jobs, and makes containers match the database. Contents only.

mod attempts;
mod disk;
mod dispatcher;
mod engine_watch;
mod event_ingestion;
mod executor;
mod host_runs;
mod listeners;
pub mod plan;
mod sandbox;
mod submit;

pub use attempts::{
    Attempt, AttemptKey, AttemptRegistry, ChildWait, HostRunState, InFlightCall, JobLimits, Liveness,
    MAX_EVENT_BYTES_HARD, Poll, RateLimiter, StopCause,
};
pub use disk::{DiskSweep, Violation, WorkspaceMeter};
pub use dispatcher::{Dispatcher, DispatcherWaker};
pub use engine_watch::EngineWatch;
pub use event_ingestion::{EventIngestion, IngestError};
pub use executor::ActionExecutor;
pub use host_runs::{HostRuns, RunHostJob};
pub use listeners::{ServeSocket, TokenFiles, WorkerListeners};
pub use sandbox::{Prober, Sandbox};
#[cfg(test)]
pub(crate) use submit::tests::Scene as SubmitScene;
pub use submit::{JobSubmitter, NewJob, Submission, SubmitError, Submitted};
