//! The columns of `jobs` that hold the facts of a job's stage, read into a [`Stage`] and written from one.
//!
//! Columns that do not belong to the stage are NULL or their default. An inconsistent row is an error about that row.

use chrono::{DateTime, Utc};
use protocol::{JobReason, JobResult, JobState, PartialResult};
use sqlx::FromRow;

use crate::{
    StoreError,
    sqlite::rows::{RowRef, column, text},
};
use domain::job::{Activity, CancelRequest, End, Finished, Queued, Running, Stage};

#[derive(Debug, Default, FromRow)]
pub(crate) struct StageColumns {
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) held: bool,
    pub(crate) not_before: Option<DateTime<Utc>>,
    pub(crate) token_hash: Option<String>,
    pub(crate) lease_expires_at: Option<DateTime<Utc>>,
    pub(crate) calls_before_attempt: i64,
    pub(crate) worker_seen_at: Option<DateTime<Utc>>,
    pub(crate) cancel_requested_at: Option<DateTime<Utc>>,
    pub(crate) cancel_message: Option<String>,
    pub(crate) cancelled_by_parent: bool,
    pub(crate) result_text: Option<String>,
    pub(crate) result_partial: Option<String>,
    pub(crate) result_cut: bool,
    pub(crate) finished_at: Option<DateTime<Utc>>,
}

impl StageColumns {
    pub(crate) fn into_stage(self, row: RowRef) -> Result<Stage, StoreError> {
        let state = row.known("state", JobState::parse(&self.state))?;
        let reason = self.reason.map(|reason| row.known("reason", JobReason::parse(&reason))).transpose()?;
        let partial = self.result_partial.map(|json| row.json::<PartialResult>("result_partial", &json)).transpose()?;
        let cancel = self.cancel_requested_at.map(|at| CancelRequest {
            at,
            message: self.cancel_message,
            by_parent: self.cancelled_by_parent,
        });
        let end = match state {
            JobState::Pending => {
                let (held, not_before, message) = (self.held, self.not_before, self.message);
                return Ok(Stage::Queued(Queued { held, not_before, reason, message }));
            }
            JobState::InProgress | JobState::Stuck => {
                let stuck = (state == JobState::Stuck).then(|| self.message.unwrap_or_default());
                return Ok(Stage::Running(Running {
                    token_hash: self.token_hash,
                    lease_expires_at: self.lease_expires_at,
                    calls_before_attempt: row.number("calls_before_attempt", self.calls_before_attempt)?,
                    worker_seen_at: self.worker_seen_at,
                    activity: match (cancel, stuck) {
                        (Some(cancel), stuck) => Activity::Stopping { cancel, stuck },
                        (None, Some(message)) => Activity::Stuck { message },
                        (None, None) => Activity::Working,
                    },
                    reported: partial,
                }));
            }
            JobState::Submitted => {
                return Ok(Stage::Submitted {
                    result: JobResult { text: self.result_text, partial, cut: self.result_cut },
                });
            }
            JobState::Completed => End::Completed,
            JobState::Accepted => End::Accepted,
            JobState::Failed => End::Failed,
            JobState::Cancelled => End::Cancelled,
        };
        let has_result = self.result_text.is_some() || partial.is_some();
        Ok(Stage::Finished(Finished {
            end,
            at: row.known("finished_at", self.finished_at)?,
            reason,
            message: self.message,
            result: has_result.then_some(JobResult { text: self.result_text, partial, cut: self.result_cut }),
            cancel,
        }))
    }

    pub(crate) fn of(stage: &Stage) -> Result<Self, StoreError> {
        let mut columns = Self {
            state: stage.state().as_str().to_owned(),
            reason: stage.reason().map(|reason| reason.as_str().to_owned()),
            message: stage.message().map(str::to_owned),
            ..Self::default()
        };
        if let Some(cancel) = stage.cancel_request() {
            columns.cancel_requested_at = Some(cancel.at);
            columns.cancel_message.clone_from(&cancel.message);
            columns.cancelled_by_parent = cancel.by_parent;
        }
        match stage {
            Stage::Queued(queued) => {
                columns.held = queued.held;
                columns.not_before = queued.not_before;
            }
            Stage::Running(running) => {
                columns.token_hash.clone_from(&running.token_hash);
                columns.lease_expires_at = running.lease_expires_at;
                columns.calls_before_attempt = column(running.calls_before_attempt);
                columns.worker_seen_at = running.worker_seen_at;
                columns.result_partial = running.reported.as_ref().map(text).transpose()?;
            }
            Stage::Submitted { result } => columns.set_result(result)?,
            Stage::Finished(finished) => {
                columns.finished_at = Some(finished.at);
                if let Some(result) = &finished.result {
                    columns.set_result(result)?;
                }
            }
        }
        Ok(columns)
    }

    fn set_result(&mut self, result: &JobResult) -> Result<(), StoreError> {
        self.result_text.clone_from(&result.text);
        self.result_partial = result.partial.as_ref().map(text).transpose()?;
        self.result_cut = result.cut;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use domain::job::sample::{job, now, running};

    const ROW: RowRef = RowRef { table: "jobs", id: Uuid::nil() };

    #[test]
    fn every_stage_survives_the_round_trip() {
        let cancel = CancelRequest { at: now(), message: Some("enough".to_owned()), by_parent: true };
        let partial = PartialResult { text: "so far".to_owned(), ..PartialResult::default() };
        let mut stages: Vec<Stage> = JobState::ALL.iter().map(|state| job(*state).stage).collect();
        stages.push(Stage::Queued(Queued {
            held: true,
            not_before: Some(now()),
            reason: Some(JobReason::WorkerLost),
            message: Some("lost".to_owned()),
        }));
        for stuck in [None, Some("silent".to_owned())] {
            let mut stopping = running(Activity::Stopping { cancel: cancel.clone(), stuck });
            stopping.reported = Some(partial.clone());
            stopping.worker_seen_at = Some(now());
            stopping.calls_before_attempt = 3;
            stages.push(Stage::Running(stopping));
        }
        stages.push(Stage::Finished(Finished {
            end: End::Cancelled,
            at: now(),
            reason: Some(JobReason::CancelledByParent),
            message: Some("why".to_owned()),
            result: Some(JobResult { partial: Some(partial), ..JobResult::default() }),
            cancel: Some(cancel),
        }));
        stages.push(Stage::Submitted {
            result: JobResult { text: Some("half".to_owned()), cut: true, ..JobResult::default() },
        });
        for stage in stages {
            assert_eq!(StageColumns::of(&stage).unwrap().into_stage(ROW).unwrap(), stage);
        }
    }

    #[test]
    fn a_finished_row_without_its_time_makes_no_sense() {
        let mut columns = StageColumns::of(&job(JobState::Failed).stage).unwrap();
        columns.finished_at = None;
        let error = columns.into_stage(ROW).unwrap_err();
        assert!(matches!(error, StoreError::Inconsistent { column: "finished_at", .. }), "{error:?}");
    }
}
