//! `POST …/complete`: the worker's report. Idempotent: the same report again gets the same answer.

use std::sync::Arc;

use axum::{Json, extract::State};
use protocol::{CompleteReply, CompleteReport, ErrorCode, JobReason, JobState, ReportedOutcome};

use super::{
    WorkerApi,
    caller::{Caller, TokenHolder, ended, fenced},
};
use domain::job::JobRecord;
use store::{Reported, Transition};

use crate::{completion::run_to_completion, extract::WorkerJson, problem::ApiError};

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    holder: TokenHolder,
    WorkerJson { value: report, .. }: WorkerJson<CompleteReport>,
) -> Result<Json<CompleteReply>, ApiError> {
    let job = match &holder {
        TokenHolder::Live(Caller { job, .. }) | TokenHolder::Ended { job, .. } => job,
    };
    let report = api.ingestion.shown_report(job, report).await?;
    let Caller { job, attempt } = match holder {
        TokenHolder::Live(caller) => caller,
        TokenHolder::Ended { job, attempt } if attempt < job.attempt => return Err(fenced()),
        // The answer to an earlier report was lost; the report was not.
        TokenHolder::Ended { job, attempt } if attempt == job.attempt && is_recorded(&job, &report) => {
            return Ok(Json(CompleteReply { accepted: true }));
        }
        TokenHolder::Ended { .. } => return Err(ended()),
    };
    let key = attempt.key();
    if report.outcome == ReportedOutcome::Completed && !job.is_stopping() {
        // Runs to its end even if the worker disconnects: the container may be paused.
        if run_to_completion(&api.tasks, fail_over_quota(api.clone(), Arc::clone(&job))).await? {
            return Err(ended());
        }
    }
    if let Err(error) = api.ingestion.record_egress_sums(&attempt, api.clock.now(), true).await {
        if error.is_transient() {
            return Err(error.into());
        }
        // A job that has used up its events can still report.
        let error = &error as &dyn std::error::Error;
        tracing::warn!(job.id = %key.job, error, "what a job's connections carried is not recorded");
    }
    api.ingestion.finish_logs(&attempt, api.clock.now()).await?;
    match api.store.complete(key.job, key.attempt, api.clock.now(), &report).await? {
        Reported::Decided(Transition::Applied(_)) => {
            // The dispatcher gives the worker time to exit by itself, so this response arrives.
            api.waker.wake();
            Ok(Json(CompleteReply { accepted: true }))
        }
        Reported::PromptsWaiting => {
            Err(ApiError::new(ErrorCode::PromptsWaiting, "prompts have arrived; fetch them and continue"))
        }
        Reported::Decided(Transition::Refused(_) | Transition::NotFound) => Err(ended()),
    }
}

/// Fails a job whose workspace exceeds its disk limit. Returns whether it did. Its container may stay paused; the dispatcher
/// removes it as it is.
async fn fail_over_quota(api: WorkerApi, job: Arc<JobRecord>) -> Result<bool, ApiError> {
    let Some(violation) = api.workspace_measurer.check_completed(&job).await else { return Ok(false) };
    let now = api.clock.now();
    let fail = move |job: JobRecord| job.fail(now, JobReason::DiskLimit, violation.message);
    api.store.transition(job.id, now, None, fail).await?;
    api.waker.wake();
    Ok(true)
}

/// Whether the job ended by this same report, or by a cancel that came first.
fn is_recorded(job: &JobRecord, report: &CompleteReport) -> bool {
    let Some(result) = &job.result() else { return false };
    let is_result =
        report.outcome == ReportedOutcome::Completed && result.text.as_deref() == Some(report.text.as_str());
    match job.state() {
        JobState::Completed | JobState::Submitted | JobState::Accepted => is_result,
        // A review of the result does not change that it was reported.
        JobState::Failed if job.reason() == Some(JobReason::Rejected) => is_result,
        JobState::Failed => report.outcome != ReportedOutcome::Completed && job.reason() == report.job_reason(),
        // Reported while being stopped: the token went with the report, the state follows the container.
        _ => job.is_stopping(),
    }
}
