//! `POST …/complete`: the worker's report. Once; the same report again gets the same answer.

use axum::{Json, extract::State};
use protocol::{CompleteReply, CompleteReport, ErrorCode, JobReason, JobState, ReportedOutcome};

use super::{
    WorkerApi,
    caller::{Known, ended, fenced},
};
use crate::{
    domain::job::JobRecord,
    http::{extract::WorkerJson, problem::ApiError},
    store::Changed,
};

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    known: Known,
    WorkerJson(report): WorkerJson<CompleteReport>,
) -> Result<Json<CompleteReply>, ApiError> {
    if known.attempt < known.job.attempt {
        return Err(fenced());
    }
    if !known.current {
        // The answer to an earlier report was lost on its way; the report was not.
        return if known.attempt == known.job.attempt && is_told(&known.job, &report) {
            Ok(Json(CompleteReply { accepted: true }))
        } else {
            Err(ended())
        };
    }
    if report.outcome == ReportedOutcome::Completed
        && known.job.cancel_requested_at.is_none()
        && let Some(violation) = api.gauge.check_completed(&known.job).await
    {
        let now = api.clock.now();
        // Its container may be paused: the dispatcher removes it as it is.
        let fail = |job: JobRecord| job.fail(now, JobReason::DiskLimit, violation.message);
        api.store.end(known.job.id, now, fail).await?;
        api.wake.wake();
        return Err(ended());
    }
    match api.store.complete(known.job.id, known.attempt, api.clock.now(), &report).await? {
        Changed::Done(_) => {
            // The dispatcher gives the worker a moment to leave by itself, so this answer arrives.
            api.wake.wake();
            Ok(Json(CompleteReply { accepted: true }))
        }
        Changed::PromptsWaiting => {
            Err(ApiError::new(ErrorCode::PromptsWaiting, "prompts have arrived; fetch them and go on"))
        }
        Changed::Refused(_) | Changed::Missing => Err(ended()),
    }
}

/// Whether the job ended by this very report, or by a cancel that it came too late for.
fn is_told(job: &JobRecord, report: &CompleteReport) -> bool {
    let Some(result) = &job.result else { return false };
    let is_result =
        report.outcome == ReportedOutcome::Completed && result.text.as_deref() == Some(report.text.as_str());
    match job.state {
        JobState::Completed | JobState::Submitted | JobState::Accepted => is_result,
        // A person's answer to the result does not change that it was reported.
        JobState::Failed if job.reason == Some(JobReason::Rejected) => is_result,
        JobState::Failed => report.outcome != ReportedOutcome::Completed && job.reason == report.job_reason(),
        // Reported while being stopped: the token went with the report, the state follows the container.
        _ => job.cancel_requested_at.is_some(),
    }
}
