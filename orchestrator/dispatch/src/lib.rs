//! The dispatcher: creates jobs, and makes containers match the database; and what arrives from outside and leads to
//! work, or is posted about it. Contents only.

mod attempts;
mod disk;
mod dispatcher;
mod event_ingestion;
mod host_runs;
mod inbound;
mod listeners;
mod notifications;
mod open_jobs;
pub mod plan;
mod readiness;
mod routines;
mod sandbox;
mod submit;
#[cfg(any(test, feature = "test-util"))]
mod test_util;

pub use attempts::{
    Attempt, AttemptKey, AttemptRegistry, AttemptStopCause, ChildWait, EgressCounts, EgressDirection, EgressKind,
    EgressMeter, EgressQuota, HostRunState, InFlightCall, JobLimits, Liveness, MAX_EVENT_BYTES_HARD, RateLimiter,
};
pub use disk::{DiskSweep, Violation, WorkspaceMeasurer};
pub use dispatcher::{Dispatcher, DispatcherWaker, engine_watch::EngineWatch, executor::ActionExecutor};
pub use event_ingestion::{EventIngestion, IngestError};
pub use host_runs::{HostRuns, RunHostJob};
pub use inbound::{
    EventError, EventHandler, InboundEvent, MatchError, RoutineMatchers, WebhookAnswer, WebhookHandler, WebhookRefused,
    WebhookRequest,
};
pub use listeners::{ServeSocket, TokenFiles, WorkerListeners, bind_sockets};
pub use notifications::{
    destinations::{InvalidDestination, NotificationDestinations},
    sender::NotificationSender,
};
pub use open_jobs::{DatabaseWatch, OpenJobs};
pub use readiness::{Readiness, ReadinessWatch};
pub use routines::{
    editor::{ManualRun, RoutineCaller, RoutineEditor, RoutineError},
    run_jobs::RunJobs,
    waker::RoutineWaker,
};
pub use sandbox::{Prober, Sandbox};
pub use submit::{JobSubmitter, NewJob, Submission, SubmitError, Submitted};
#[cfg(any(test, feature = "test-util"))]
pub use test_util::{PlanScene, SubmitScene};
