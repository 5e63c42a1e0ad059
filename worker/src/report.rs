//! The final report of a session.
//!
//! Pure. Owns the mapping of an outcome to a report. Never sends it.

use agent::{FailureReason, LimitKind, LoopOutcome};
use protocol::{CompleteReport, JobReason, PartialResult, ReportedOutcome, limits::MAX_REPORT_BYTES};

use crate::{journal::shorten_to_fit, stop::StopCause};

const IMPERSONATED: &str =
    "another process in the container sent events in the worker's name; the record of this job is not reliable";
const EVENTS_REFUSED: &str = "the orchestrator refused the events of this job, so its work cannot be recorded";

/// The report of a failure outside the agent loop.
pub(crate) fn failed(reason: JobReason, message: &str) -> CompleteReport {
    CompleteReport {
        outcome: ReportedOutcome::Failed,
        reason: Some(reason),
        message: Some(message.to_owned()),
        text: String::new(),
        partial: None,
        iterations: 0,
    }
}

/// The report of a session that was stopped before its job was fetched.
pub(crate) fn stopped_early() -> CompleteReport {
    report(LoopOutcome::Stopped, Some(StopCause::Requested), PartialResult::default())
}

/// Shortens the report's texts to the maximum body size: a report that is refused for its size would lose the result.
pub(crate) fn shortened(report: CompleteReport) -> CompleteReport {
    let Ok(mut value) = serde_json::to_value(&report) else { return report };
    if value.to_string().len() <= MAX_REPORT_BYTES {
        return report;
    }
    shorten_to_fit(&mut value, MAX_REPORT_BYTES);
    serde_json::from_value(value).unwrap_or(report)
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
        ..failed(JobReason::Internal, message)
    })
}

/// Converts an outcome to a report. The text is in the report once: the orchestrator adds it to the partial result.
pub(crate) fn report(outcome: LoopOutcome, cause: Option<StopCause>, partial: PartialResult) -> CompleteReport {
    let iterations = partial.iterations;
    let (outcome, reason, message, text) = match outcome {
        LoopOutcome::Completed { text } => {
            return CompleteReport {
                outcome: ReportedOutcome::Completed,
                reason: None,
                message: None,
                text,
                partial: None,
                iterations,
            };
        }
        LoopOutcome::Stopped if cause == Some(StopCause::PidsExhausted) => (
            ReportedOutcome::Failed,
            Some(JobReason::PidsLimit),
            "the worker could not start processes because of the pids limit".to_owned(),
            String::new(),
        ),
        LoopOutcome::Stopped if cause == Some(StopCause::Impersonated) => {
            (ReportedOutcome::Failed, Some(JobReason::Internal), IMPERSONATED.to_owned(), String::new())
        }
        LoopOutcome::Stopped if cause == Some(StopCause::EventsRefused) => {
            (ReportedOutcome::Failed, Some(JobReason::Internal), EVENTS_REFUSED.to_owned(), String::new())
        }
        LoopOutcome::Stopped => (ReportedOutcome::Stopped, None, "stopped".to_owned(), String::new()),
        LoopOutcome::Limit { which, text } => {
            (ReportedOutcome::Limit, Some(limit_reason(which)), limit_message(which).to_owned(), text)
        }
        // Without a person a call that needs approval is refused, never asked for.
        LoopOutcome::NeedsApproval { request } => (
            ReportedOutcome::Failed,
            Some(JobReason::Internal),
            format!("the call of {} waits for an approval that no job can get", request.tool),
            String::new(),
        ),
        LoopOutcome::Failed { reason, message } => {
            (ReportedOutcome::Failed, Some(failure_reason(reason)), message, String::new())
        }
    };
    let mut partial = partial;
    let last_text = std::mem::take(&mut partial.text);
    let text = if text.is_empty() { last_text } else { text };
    CompleteReport { outcome, reason, message: Some(message), text, partial: Some(partial), iterations }
}

const fn limit_reason(which: LimitKind) -> JobReason {
    match which {
        LimitKind::Iterations => JobReason::IterationLimit,
        LimitKind::ToolCalls => JobReason::ToolCallLimit,
        LimitKind::Tokens => JobReason::TokenBudget,
        LimitKind::Cost => JobReason::CostBudget,
    }
}

const fn failure_reason(reason: FailureReason) -> JobReason {
    match reason {
        FailureReason::LlmError => JobReason::LlmError,
        FailureReason::DuplicateCalls => JobReason::DuplicateCalls,
        FailureReason::EmptyReply => JobReason::EmptyReply,
        FailureReason::Internal => JobReason::Internal,
    }
}

const fn limit_message(which: LimitKind) -> &'static str {
    match which {
        LimitKind::Iterations => "the job reached its limit of model calls",
        LimitKind::ToolCalls => "the job reached its limit of tool calls",
        LimitKind::Tokens => "the job's token budget is used up",
        LimitKind::Cost => "the job's cost budget is used up",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::completed(LoopOutcome::Completed { text: "x".repeat(2_000_000) })]
    #[case::limit(LoopOutcome::Limit { which: LimitKind::Iterations, text: "ü\"\n".repeat(300_000) })]
    fn a_report_that_is_too_large_is_shortened(#[case] outcome: LoopOutcome) {
        let whole = report(outcome, None, PartialResult::default());
        let cut = shortened(whole.clone());
        assert!(serde_json::to_vec(&cut).unwrap().len() <= MAX_REPORT_BYTES);
        assert_eq!((cut.outcome, cut.reason), (whole.outcome, whole.reason));
        assert!(cut.text.contains("bytes left out") && cut.text.len() > MAX_REPORT_BYTES / 8);
    }

    #[rstest]
    #[case::stopped(LoopOutcome::Stopped, Some(StopCause::Requested), ReportedOutcome::Stopped, None)]
    #[case::pids(
        LoopOutcome::Stopped,
        Some(StopCause::PidsExhausted),
        ReportedOutcome::Failed,
        Some(JobReason::PidsLimit)
    )]
    #[case::impersonated(
        LoopOutcome::Stopped,
        Some(StopCause::Impersonated),
        ReportedOutcome::Failed,
        Some(JobReason::Internal)
    )]
    #[case::iterations(LoopOutcome::Limit { which: LimitKind::Iterations, text: "so far".into() }, None, ReportedOutcome::Limit, Some(JobReason::IterationLimit))]
    #[case::cost(LoopOutcome::Limit { which: LimitKind::Cost, text: "so far".into() }, None, ReportedOutcome::Limit, Some(JobReason::CostBudget))]
    #[case::failed(LoopOutcome::Failed { reason: FailureReason::LlmError, message: "m".into() }, None, ReportedOutcome::Failed, Some(JobReason::LlmError))]
    fn an_incomplete_job_is_reported_with_its_reason_and_partial_result(
        #[case] outcome: LoopOutcome,
        #[case] cause: Option<StopCause>,
        #[case] reported: ReportedOutcome,
        #[case] reason: Option<JobReason>,
    ) {
        let partial = PartialResult { text: "so far".into(), iterations: 3, ..PartialResult::default() };
        let report = report(outcome, cause, partial.clone());
        assert_eq!((report.outcome, report.reason, report.iterations), (reported, reason, 3));
        assert_eq!(
            (report.text.as_str(), report.partial),
            ("so far", Some(PartialResult { text: String::new(), ..partial }))
        );
    }

    #[test]
    fn a_partial_text_of_nearly_the_maximum_size_is_reported_whole() {
        let text = "x".repeat(MAX_REPORT_BYTES - 1024);
        let partial = PartialResult { text: text.clone(), ..PartialResult::default() };
        let report = report(LoopOutcome::Stopped, Some(StopCause::Requested), partial);
        assert_eq!(shortened(report).text, text);
    }
}
