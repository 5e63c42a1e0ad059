//! Tables of the ends of jobs, and of attempts that do not start.

use protocol::{JobResult, RunReason};
use rstest::rstest;

use super::*;
use crate::job::{End, Finished, Stage, sample};

fn ended(end: End, reason: Option<JobReason>, text: Option<&str>) -> JobRecord {
    let result = text.map(|text| JobResult { text: Some(text.to_owned()), ..JobResult::default() });
    let message = reason.map(|_| "m".to_owned());
    let stage = Stage::Finished(Finished { end, at: sample::now(), reason, message, result, cancel: None });
    JobRecord { stage, ..sample::job(JobState::Failed) }
}

fn end_of(job: &JobRecord, last_error: Option<ErrorKind>) -> AttemptEnd {
    AttemptResult::of_job(job, None, last_error).end
}

fn shown(end: &AttemptEnd) -> (Option<RunReason>, FailureOrigin) {
    match end {
        AttemptEnd::Failed { reason, origin, .. } => (Some(*reason), *origin),
        _ => (None, FailureOrigin::Routine),
    }
}

#[rstest]
#[case::text(End::Completed, Some("one issue"), AttemptEnd::Attention)]
#[case::accepted(End::Accepted, Some("one issue"), AttemptEnd::Attention)]
#[case::nothing(End::Completed, Some("ROUTINE_OK"), AttemptEnd::Ok)]
#[case::blank(End::Completed, Some(" "), AttemptEnd::failed(RunReason::EmptyReply, "the job's result has no text".into()))]
#[case::absent(End::Completed, None, AttemptEnd::failed(RunReason::EmptyReply, "the job's result has no text".into()))]
fn the_result_of_a_job_is_read_as_a_reply(#[case] end: End, #[case] text: Option<&str>, #[case] expected: AttemptEnd) {
    assert_eq!(end_of(&ended(end, None, text), None), expected);
}

#[rstest]
#[case(JobReason::SandboxUnavailable, RunReason::SandboxUnavailable, FailureOrigin::Infrastructure)]
#[case(JobReason::ImageMissing, RunReason::SandboxUnavailable, FailureOrigin::Infrastructure)]
#[case(JobReason::EngineError, RunReason::SandboxUnavailable, FailureOrigin::Infrastructure)]
#[case(JobReason::PostureMismatch, RunReason::SandboxUnavailable, FailureOrigin::Infrastructure)]
#[case(JobReason::StartTimeout, RunReason::SandboxUnavailable, FailureOrigin::Infrastructure)]
#[case(JobReason::OrchestratorRestart, RunReason::OrchestratorRestart, FailureOrigin::Infrastructure)]
#[case(JobReason::WallClock, RunReason::Timeout, FailureOrigin::Routine)]
#[case(JobReason::OomKilled, RunReason::JobFailed, FailureOrigin::Routine)]
#[case(JobReason::WorkerCrashed, RunReason::JobFailed, FailureOrigin::Routine)]
#[case(JobReason::Internal, RunReason::JobFailed, FailureOrigin::Routine)]
fn a_failed_job_has_its_reason(#[case] reason: JobReason, #[case] expected: RunReason, #[case] origin: FailureOrigin) {
    let end = end_of(&ended(End::Failed, Some(reason), None), None);
    assert_eq!(shown(&end), (Some(expected), origin));
    let AttemptEnd::Failed { message, .. } = end else { panic!("{end:?}") };
    assert_eq!(message, format!("{reason}: m"));
}

#[rstest]
#[case::key(Some(ErrorKind::Auth), RunReason::ProviderAccount, FailureOrigin::Routine)]
#[case::credit(Some(ErrorKind::Quota), RunReason::ProviderAccount, FailureOrigin::Routine)]
#[case::request(Some(ErrorKind::BadRequest), RunReason::JobFailed, FailureOrigin::Routine)]
#[case::model(Some(ErrorKind::NotFound), RunReason::JobFailed, FailureOrigin::Routine)]
#[case::too_long(Some(ErrorKind::ContextLength), RunReason::JobFailed, FailureOrigin::Routine)]
#[case::outage(Some(ErrorKind::Server), RunReason::JobFailed, FailureOrigin::Infrastructure)]
#[case::network(Some(ErrorKind::Connect), RunReason::JobFailed, FailureOrigin::Infrastructure)]
#[case::limited(Some(ErrorKind::RateLimited), RunReason::JobFailed, FailureOrigin::Infrastructure)]
#[case::no_row(None, RunReason::JobFailed, FailureOrigin::Infrastructure)]
fn the_last_model_call_says_why_a_job_has_no_answer(
    #[case] last_error: Option<ErrorKind>,
    #[case] expected: RunReason,
    #[case] origin: FailureOrigin,
) {
    let job = ended(End::Failed, Some(JobReason::LlmError), None);
    assert_eq!(shown(&end_of(&job, last_error)), (Some(expected), origin));
}

#[test]
fn a_cancelled_job_has_the_reason_for_which_its_run_was_cancelled() {
    let job = ended(End::Cancelled, None, None);
    for (by, expected) in
        [(None, RunReason::JobCancelled), (Some(RunReason::CancelledByOverlap), RunReason::CancelledByOverlap)]
    {
        let end = AttemptResult::of_job(&job, by, None).end;
        assert_eq!(end, AttemptEnd::failed(expected, "the job was cancelled".to_owned()));
    }
}

/// A reason, whether the attempt has started, and whether the run is skipped.
#[rstest]
#[case(RunReason::CancelledByUser, false, false)]
#[case(RunReason::CancelledByOverlap, false, false)]
#[case(RunReason::RoutineChanged, false, true)]
#[case(RunReason::RoutineChanged, true, false)]
#[case(RunReason::FireRate, false, true)]
#[case(RunReason::FireRate, true, false)]
fn an_attempt_that_did_not_start_is_skipped_unless_it_was_cancelled(
    #[case] reason: RunReason,
    #[case] has_started: bool,
    #[case] is_skipped: bool,
) {
    let end = AttemptEnd::cancelled(reason, has_started);
    assert_eq!(matches!(end, AttemptEnd::Skipped { .. }), is_skipped, "{end:?}");
}

#[test]
fn a_spent_budget_skips_what_has_not_started() {
    assert!(matches!(AttemptEnd::out_of_budget(false), AttemptEnd::Skipped { reason: RunReason::Budget, .. }));
    assert_eq!(shown(&AttemptEnd::out_of_budget(true)), (Some(RunReason::LimitReached), FailureOrigin::Routine));
}
