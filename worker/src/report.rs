//! The report of how a session ended, as the orchestrator takes it.
//!
//! Pure: owns what an outcome is called and what is said with it. Never sends it.

use agent::{LimitKind, LoopOutcome};
use protocol::{CompleteReport, JobReason, PartialResult, ReportedOutcome};

use crate::stop::StopCause;

/// A failure that is not a loop's outcome.
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
    report(LoopOutcome::Stopped, Some(StopCause::Asked), PartialResult::default())
}

/// What an outcome is to the orchestrator.
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
            "the worker could not start a process any more".to_owned(),
            String::new(),
        ),
        LoopOutcome::Stopped if cause == Some(StopCause::Impersonated) => (
            ReportedOutcome::Failed,
            Some(JobReason::Internal),
            "another process in the container sent events in the worker's name; the record of this job cannot be relied on"
                .to_owned(),
            String::new(),
        ),
        LoopOutcome::Stopped => (ReportedOutcome::Stopped, None, "the work was stopped".to_owned(), String::new()),
        LoopOutcome::Limit { which, text } => {
            (ReportedOutcome::Limit, Some(which.reason()), limit_message(which).to_owned(), text)
        }
        LoopOutcome::Failed { reason, message } => (ReportedOutcome::Failed, Some(reason), message, String::new()),
    };
    let mut partial = partial;
    if !text.is_empty() {
        partial.text.clone_from(&text);
    }
    let text = if text.is_empty() { partial.text.clone() } else { text };
    CompleteReport { outcome, reason, message: Some(message), text, partial: Some(partial), iterations }
}

const fn limit_message(which: LimitKind) -> &'static str {
    match which {
        LimitKind::Iterations => "the job's limit of model calls is reached",
        LimitKind::ToolCalls => "the job's limit of tool calls is reached",
        LimitKind::Tokens => "the job's token budget is spent",
        LimitKind::Cost => "the job's cost budget is spent",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stopped(LoopOutcome::Stopped, Some(StopCause::Asked), ReportedOutcome::Stopped, None)]
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
    #[case::failed(LoopOutcome::Failed { reason: JobReason::LlmError, message: "m".into() }, None, ReportedOutcome::Failed, Some(JobReason::LlmError))]
    fn what_did_not_complete_is_told_with_its_reason_and_what_there_is(
        #[case] outcome: LoopOutcome,
        #[case] cause: Option<StopCause>,
        #[case] reported: ReportedOutcome,
        #[case] reason: Option<JobReason>,
    ) {
        let partial = PartialResult { text: "so far".into(), iterations: 3, ..PartialResult::default() };
        let report = report(outcome, cause, partial.clone());
        assert_eq!((report.outcome, report.reason, report.iterations), (reported, reason, 3));
        assert_eq!((report.text.as_str(), report.partial), ("so far", Some(partial)));
    }
}
