//! Cancelling: requested by a person or by the parent's end, done once the container is gone.

use chrono::{DateTime, Utc};
use protocol::{JobReason, ReportedOutcome};

use super::{Activity, CancelRequest, End, JobRecord, Refused, Running, Stage, Step, finish::Ending};

impl JobRecord {
    /// Cancels the job because its parent ended before it.
    pub fn cancel_with_parent(self, now: DateTime<Utc>) -> Result<Step, Refused> {
        self.cancel(CancelRequest { at: now, message: Some("its parent ended".to_owned()), by_parent: true })
    }

    /// Cancels the job at the request of a job above it.
    pub fn cancel_by_ancestor(self, now: DateTime<Utc>) -> Result<Step, Refused> {
        let message = Some("a job above it cancelled it".to_owned());
        self.cancel(CancelRequest { at: now, message, by_parent: true })
    }

    /// Cancels the job at a person's request. One that has no container is cancelled at once.
    pub fn request_cancel(self, now: DateTime<Utc>, message: Option<String>) -> Result<Step, Refused> {
        self.cancel(CancelRequest { at: now, message, by_parent: false })
    }

    fn cancel(self, cancel: CancelRequest) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Queued(_) => Ok(self.end_cancelled(cancel.at, cancel)),
            // The first request stands.
            Stage::Running(Running { activity: Activity::Stopping { .. }, .. }) => Ok(Step::new(self, vec![])),
            Stage::Running(running) => {
                let stuck = match &running.activity {
                    Activity::Stuck { message } => Some(message.clone()),
                    Activity::Working | Activity::Stopping { .. } => None,
                };
                let running = Running { activity: Activity::Stopping { cancel, stuck }, ..running.clone() };
                Ok(Step::new(self.with_stage(Stage::Running(running)), vec![]))
            }
            Stage::Submitted { .. } | Stage::Finished(_) => Err(self.refuse("be cancelled")),
        }
    }

    /// The container of a job that was to be cancelled is gone.
    pub fn finish_cancel(self, now: DateTime<Utc>) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Running(Running { activity: Activity::Stopping { cancel, .. }, .. }) => {
                let cancel = cancel.clone();
                Ok(self.end_cancelled(now, cancel))
            }
            _ => Err(self.refuse("become cancelled")),
        }
    }

    fn end_cancelled(self, now: DateTime<Utc>, cancel: CancelRequest) -> Step {
        let reason = if cancel.by_parent { JobReason::CancelledByParent } else { JobReason::CancelledByUser };
        self.end_without_report(
            now,
            ReportedOutcome::Stopped,
            Ending { end: End::Cancelled, reason, message: cancel.message.clone(), cancel: Some(cancel) },
        )
    }
}
