//! The final report of a session: that of its outcome, unless the session itself stopped the loop.
//!
//! Pure. Never sends it.

use agent::{FailureReason, LoopOutcome, failure_report, outcome_report};
use protocol::{CompleteReport, JobReason, PartialResult};

use crate::session::stop::StopCause;

const IMPERSONATED: &str =
    "another process in the container sent events in the worker's name; the record of this job is not reliable";
const EVENTS_REFUSED: &str = "the orchestrator refused the events of this job, so its work cannot be recorded";
const PIDS_EXHAUSTED: &str = "the worker could not start processes because of the pids limit";

/// The report of a session that was stopped before its job was fetched.
pub(crate) fn stopped_early() -> CompleteReport {
    report(LoopOutcome::Stopped, Some(StopCause::Requested), PartialResult::default())
}

/// The report of a job that had completed when its events turned out to be forged or refused. None for other causes.
pub(crate) fn completed_unrecorded(done: &CompleteReport, cause: StopCause) -> Option<CompleteReport> {
    let message = match cause {
        StopCause::Impersonated => IMPERSONATED,
        StopCause::EventsRefused => EVENTS_REFUSED,
        _ => return None,
    };
    let partial = PartialResult { iterations: done.iterations, ..PartialResult::default() };
    Some(CompleteReport {
        text: done.text.clone(),
        partial: Some(partial),
        iterations: done.iterations,
        ..failure_report(JobReason::Internal, message)
    })
}

/// The report of an outcome. A loop that the session has stopped by itself has failed.
pub(crate) fn report(outcome: LoopOutcome, cause: Option<StopCause>, partial: PartialResult) -> CompleteReport {
    let failure = match cause.filter(|_| outcome == LoopOutcome::Stopped) {
        Some(StopCause::PidsExhausted) => Some((FailureReason::PidsLimit, PIDS_EXHAUSTED)),
        Some(StopCause::Impersonated) => Some((FailureReason::Internal, IMPERSONATED)),
        Some(StopCause::EventsRefused) => Some((FailureReason::Internal, EVENTS_REFUSED)),
        Some(StopCause::Requested | StopCause::AttemptEnded | StopCause::OrchestratorUnreachable) | None => None,
    };
    let failed = failure.map(|(reason, message)| LoopOutcome::Failed { reason, message: message.to_owned() });
    outcome_report(failed.unwrap_or(outcome), partial)
}

#[cfg(test)]
mod tests {
    use protocol::ReportedOutcome;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stopped(Some(StopCause::Requested), ReportedOutcome::Stopped, None)]
    #[case::pids(Some(StopCause::PidsExhausted), ReportedOutcome::Failed, Some(JobReason::PidsLimit))]
    #[case::impersonated(Some(StopCause::Impersonated), ReportedOutcome::Failed, Some(JobReason::Internal))]
    fn a_stop_is_reported_with_its_cause_and_the_partial_result(
        #[case] cause: Option<StopCause>,
        #[case] reported: ReportedOutcome,
        #[case] reason: Option<JobReason>,
    ) {
        let partial = PartialResult { text: "so far".into(), iterations: 3, ..PartialResult::default() };
        let report = report(LoopOutcome::Stopped, cause, partial.clone());
        assert_eq!((report.outcome, report.reason, report.iterations), (reported, reason, 3));
        assert_eq!(
            (report.text.as_str(), report.partial),
            ("so far", Some(PartialResult { text: String::new(), ..partial }))
        );
    }

    #[test]
    fn a_cause_changes_no_other_outcome() {
        let completed = LoopOutcome::Completed { text: "done".into(), cut: false };
        let report = report(completed, Some(StopCause::PidsExhausted), PartialResult::default());
        assert_eq!((report.outcome, report.reason), (ReportedOutcome::Completed, None));
    }
}
