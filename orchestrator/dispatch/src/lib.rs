//! The dispatcher: creates jobs, and makes containers match the database; and what arrives from outside and leads to
//! work, or is posted about it. Contents only.

mod attempts;
mod disk;
mod dispatcher;
mod engine_watch;
mod event_ingestion;
mod executor;
mod host_runs;
mod inbound;
mod listeners;
mod notification_destinations;
mod notification_sender;
mod notification_slots;
mod open_jobs;
pub mod plan;
mod routine_editor;
mod routine_waker;
mod run_jobs;
mod sandbox;
mod submit;
#[cfg(any(test, feature = "test-util"))]
mod test_util;

pub use attempts::{
    Attempt, AttemptKey, AttemptRegistry, AttemptStopCause, ChildWait, HostRunState, InFlightCall, JobLimits, Liveness,
    MAX_EVENT_BYTES_HARD, Poll, RateLimiter,
};
pub use disk::{DiskSweep, Violation, WorkspaceMeasurer};
pub use dispatcher::{Dispatcher, DispatcherWaker};
pub use engine_watch::EngineWatch;
pub use event_ingestion::{EventIngestion, IngestError};
pub use executor::ActionExecutor;
pub use host_runs::{HostRuns, RunHostJob};
pub use inbound::{
    EventError, EventHandler, InboundEvent, MatchError, PendingEventWorker, RoutineMatchers, WebhookAnswer,
    WebhookHandler, WebhookRefused, WebhookRequest,
};
pub use listeners::{ServeSocket, TokenFiles, WorkerListeners, bind_sockets};
pub use notification_destinations::{InvalidDestination, NotificationDestinations};
pub use notification_sender::NotificationSender;
pub use open_jobs::{DatabaseWatch, OpenJobs};
pub use routine_editor::{ManualRun, RoutineCaller, RoutineEditor, RoutineError};
pub use routine_waker::RoutineWaker;
pub use run_jobs::RunJobs;
pub use sandbox::{Prober, Sandbox};
pub use submit::{JobSubmitter, NewJob, Submission, SubmitError, Submitted};
#[cfg(any(test, feature = "test-util"))]
pub use test_util::{PlanScene, SubmitScene};
