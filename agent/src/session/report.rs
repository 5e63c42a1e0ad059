//! The final report of a job's work.
//!
//! Pure. Owns the mapping of an outcome to a report, and its size. Never sends it.

use protocol::{CompleteReport, JobReason, PartialResult, ReportedOutcome, limits::MAX_REPORT_BYTES};

use crate::{LimitKind, LoopOutcome, event_size::shorten_to_fit};

/// The report of a failure outside the loop.
pub fn failure_report(reason: JobReason, message: &str) -> CompleteReport {
    CompleteReport {
        outcome: ReportedOutcome::Failed,
        reason: Some(reason),
        message: Some(message.to_owned()),
        text: String::new(),
        cut: false,
        partial: None,
        iterations: 0,
    }
}

/// Shortens the report's texts to the maximum body size: a report that is refused for its size would lose the result.
pub fn shortened_report(report: CompleteReport) -> CompleteReport {
    let Ok(mut value) = serde_json::to_value(&report) else { return report };
    if value.to_string().len() <= MAX_REPORT_BYTES {
        return report;
    }
    shorten_to_fit(&mut value, MAX_REPORT_BYTES);
    serde_json::from_value(value).unwrap_or(report)
}

/// Converts an outcome to a report. The text is in the report once: the orchestrator adds it to the partial result.
pub fn outcome_report(outcome: LoopOutcome, mut partial: PartialResult) -> CompleteReport {
    let iterations = partial.iterations;
    let (outcome, reason, message, text) = match outcome {
        LoopOutcome::Completed { text, cut } => {
            return CompleteReport {
                outcome: ReportedOutcome::Completed,
                reason: None,
                message: None,
                text,
                cut,
                partial: None,
                iterations,
            };
        }
        LoopOutcome::Stopped => (ReportedOutcome::Stopped, None, "stopped".to_owned(), String::new()),
        LoopOutcome::Limit { which, text, .. } => {
            (ReportedOutcome::Limit, Some(which.job_reason()), limit_message(which).to_owned(), text)
        }
        // Without a person a call that needs approval is refused, never asked for.
        LoopOutcome::NeedsApproval { request } => (
            ReportedOutcome::Failed,
            Some(JobReason::Internal),
            format!("the call of {} waits for an approval that no job can get", request.tool),
            String::new(),
        ),
        LoopOutcome::Failed { reason, message } => {
            (ReportedOutcome::Failed, Some(reason.job_reason()), message, String::new())
        }
    };
    let last_text = std::mem::take(&mut partial.text);
    let text = if text.is_empty() { last_text } else { text };
    CompleteReport { outcome, reason, message: Some(message), text, cut: false, partial: Some(partial), iterations }
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
    use crate::FailureReason;

    #[rstest]
    #[case::completed(LoopOutcome::Completed { text: "x".repeat(2_000_000), cut: false })]
    #[case::limit(LoopOutcome::Limit { which: LimitKind::Iterations, message: "2".into(), text: "ü\"\n".repeat(300_000) })]
    fn a_report_that_is_too_large_is_shortened(#[case] outcome: LoopOutcome) {
        let whole = outcome_report(outcome, PartialResult::default());
        let cut = shortened_report(whole.clone());
        assert!(serde_json::to_vec(&cut).unwrap().len() <= MAX_REPORT_BYTES);
        assert_eq!((cut.outcome, cut.reason), (whole.outcome, whole.reason));
        assert!(cut.text.contains("bytes left out") && cut.text.len() > MAX_REPORT_BYTES / 8);
    }

    #[rstest]
    #[case::stopped(LoopOutcome::Stopped, ReportedOutcome::Stopped, None)]
    #[case::iterations(LoopOutcome::Limit { which: LimitKind::Iterations, message: "2".into(), text: "so far".into() }, ReportedOutcome::Limit, Some(JobReason::IterationLimit))]
    #[case::cost(LoopOutcome::Limit { which: LimitKind::Cost, message: "m".into(), text: "so far".into() }, ReportedOutcome::Limit, Some(JobReason::CostBudget))]
    #[case::failed(LoopOutcome::Failed { reason: FailureReason::LlmError, message: "m".into() }, ReportedOutcome::Failed, Some(JobReason::LlmError))]
    fn an_incomplete_job_is_reported_with_its_reason_and_partial_result(
        #[case] outcome: LoopOutcome,
        #[case] reported: ReportedOutcome,
        #[case] reason: Option<JobReason>,
    ) {
        let partial = PartialResult { text: "so far".into(), iterations: 3, ..PartialResult::default() };
        let report = outcome_report(outcome, partial.clone());
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
        let report = outcome_report(LoopOutcome::Stopped, partial);
        assert_eq!(shortened_report(report).text, text);
    }
}
