//! What follows the end of an attempt: another attempt, or the end of the run with what becomes of its routine and what
//! its owner is told. Pure.
//!
//! A failure counts toward disabling the routine only if its cause is in the routine. The owner is told of a failure
//! once: by the notification that the routine was disabled, else by that of the failure, or, where the cause is outside
//! of the routine, by the one of its problems of the day.

use chrono::{DateTime, Utc};
use protocol::{DisabledReason, NotificationKind, Retry, Routine, RoutineActionKind, RunId, RunReason, RunStatus};

use super::{
    attempt::{AttemptEnd, AttemptResult, FailureOrigin},
    outcome::{
        AfterFailure, FailureFacts, MAX_RESULT_BYTES, MAX_STATE_CHARS, MAX_SUMMARY_CHARS, NotifiedFailure,
        after_failure, counts_as_failure, excerpt, shortened, should_notify,
    },
    problem::AutomationProblem,
};

/// Characters of a failure's message.
const MAX_MESSAGE_CHARS: usize = 1_000;
/// The first word of a summary.
const DEFAULT_PREFIX: &str = "Cron";

/// What is known of a run whose attempt has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndFacts<'a> {
    pub run: RunId,
    /// Its number, from 1.
    pub attempt: u32,
    /// When the first attempt started.
    pub started_at: DateTime<Utc>,
    /// How often the run has waited for a provider.
    pub rate_limit_waits: u32,
    /// Its routine, which does not count this run yet; `None` if it was deleted.
    pub routine: Option<&'a Routine>,
    /// Whether the routine has spent its budget, with what this attempt used.
    pub is_budget_spent: bool,
    /// The failures that the owner was notified of since the last successful run.
    pub notified: &'a [NotifiedFailure],
    pub now: DateTime<Utc>,
}

/// What follows the end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterAttempt {
    /// The run waits for another attempt.
    Retry(RetryPlan),
    /// The run has ended.
    End(Box<RunEnd>),
}

/// The next attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPlan {
    pub at: DateTime<Utc>,
    /// Whether the next attempt has a new number; a wait that a provider asks for uses up none.
    pub counts_attempt: bool,
    /// Why the last attempt failed.
    pub reason: RunReason,
    pub message: String,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    pub status: RunStatus,
    pub reason: Option<RunReason>,
    pub message: Option<String>,
    /// The beginning of the result.
    pub summary: Option<String>,
    /// The result, if it is longer than that.
    pub result: Option<String>,
    /// Whether the output limit of the model cut the result.
    pub cut: bool,
    /// Whether the run keeps what fired it.
    pub keeps_payload: bool,
    /// Whether other routines can fire on it.
    pub is_event: bool,
    /// What the routine counts.
    pub counted: Counted,
    /// Why the routine is disabled.
    pub disable: Option<DisabledReason>,
    pub notice: Option<Notice>,
    /// The line for the owner's main session.
    pub line: Option<String>,
}

/// What a run counts as in its routine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    Nothing,
    Failure,
    Success {
        /// The text that the next run gets; `None`: as before.
        state: Option<String>,
    },
}

/// What the owner is told of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Run {
        kind: NotificationKind,
        title: String,
        text: String,
    },
    /// A failure is noted, so that its reason is not told again.
    Failure {
        reason: RunReason,
        title: String,
        text: String,
    },
    Problem(AutomationProblem),
}

/// Decides what follows the end of an attempt.
pub fn after_attempt(result: &AttemptResult, facts: &EndFacts<'_>) -> AfterAttempt {
    let end = match &result.end {
        AttemptEnd::Ok => succeeded(RunStatus::Ok, result, facts),
        AttemptEnd::Attention => succeeded(RunStatus::Attention, result, facts),
        AttemptEnd::Skipped { reason, message } => RunEnd {
            reason: Some(*reason),
            message: Some(shortened(message, MAX_MESSAGE_CHARS)),
            ..ended(RunStatus::Skipped, result, facts)
        },
        AttemptEnd::Failed { reason, message, retry_after, origin } => {
            let after = after_failure(&FailureFacts {
                reason: *reason,
                attempt: facts.attempt,
                started_at: facts.started_at,
                rate_limit_waits: facts.rate_limit_waits,
                retry: facts.routine.map_or_else(Retry::default, |routine| routine.guardrails.retry),
                may_retry: facts.routine.is_some_and(allows_queued_runs) && !facts.is_budget_spent,
                retry_after: *retry_after,
                now: facts.now,
                jitter: jitter(facts.run, facts.attempt),
            });
            let (reason, message) = (*reason, shortened(message, MAX_MESSAGE_CHARS));
            if let AfterFailure::Retry { at, counts_attempt } = after {
                return AfterAttempt::Retry(RetryPlan { at, counts_attempt, reason, message });
            }
            let end =
                RunEnd { reason: Some(reason), message: Some(message), ..ended(RunStatus::Failed, result, facts) };
            let is_account_refused = after == AfterFailure::FinalAndDisable;
            match (facts.routine, origin) {
                (Some(routine), FailureOrigin::Routine) if counts_as_failure(reason) => {
                    own_failure(routine, reason, is_account_refused, end, facts)
                }
                (Some(routine), FailureOrigin::Infrastructure) => foreign_failure(routine, reason, end),
                _ => end,
            }
        }
    };
    AfterAttempt::End(Box::new(end))
}

/// The end that only the run itself knows of.
fn ended(status: RunStatus, result: &AttemptResult, facts: &EndFacts<'_>) -> RunEnd {
    let summary = result.text.as_ref().map(|text| excerpt(text, MAX_SUMMARY_CHARS));
    let longer = result.text.as_ref().filter(|text| summary.as_ref() != Some(text));
    RunEnd {
        status,
        reason: None,
        message: None,
        result: longer.map(|text| agent::elide(text, MAX_RESULT_BYTES)),
        summary,
        cut: result.cut,
        keeps_payload: facts.routine.is_some_and(keeps_payload),
        is_event: status != RunStatus::Skipped,
        counted: Counted::Nothing,
        disable: None,
        notice: None,
        line: None,
    }
}

fn succeeded(status: RunStatus, result: &AttemptResult, facts: &EndFacts<'_>) -> RunEnd {
    let end = ended(status, result, facts);
    let Some(routine) = facts.routine else { return end };
    let is_attention = status == RunStatus::Attention;
    let (kind, verb, is_told) = if is_attention {
        (NotificationKind::RunAttention, "Attention", routine.notify.on_attention || routine.deliver)
    } else {
        (NotificationKind::RunOk, "Done", routine.notify.on_success)
    };
    // The next run of a line puts the same line.
    let state = result.text.as_ref().filter(|_| !puts_line(routine)).map(|text| excerpt(text, MAX_STATE_CHARS));
    RunEnd {
        counted: Counted::Success { state },
        notice: is_told.then(|| Notice::Run {
            kind,
            title: format!("{verb}: {}", routine.name),
            text: end.summary.clone().unwrap_or_else(|| "The run had nothing to report.".to_owned()),
        }),
        line: is_attention.then(|| summary_line(routine, end.summary.as_deref().unwrap_or_default())).flatten(),
        ..end
    }
}

/// A failure whose cause is outside of the routine.
fn foreign_failure(routine: &Routine, reason: RunReason, end: RunEnd) -> RunEnd {
    let problem = || Notice::Problem(AutomationProblem::RunFailed { reason, message: end.message.clone() });
    RunEnd { notice: routine.notify.on_failure.then(problem), ..end }
}

/// A failure whose cause is in the routine.
fn own_failure(
    routine: &Routine,
    reason: RunReason,
    is_account_refused: bool,
    end: RunEnd,
    facts: &EndFacts<'_>,
) -> RunEnd {
    let max = routine.guardrails.disable_after_failures;
    let disable = if !routine.enabled {
        None
    } else if is_account_refused {
        Some(DisabledReason::ProviderAccount)
    } else {
        (max > 0 && routine.consecutive_failures + 1 >= max).then_some(DisabledReason::Failures)
    };
    let message = end.message.as_deref().unwrap_or_default();
    let is_told = routine.notify.on_failure && disable.is_none() && should_notify(reason, facts.notified, facts.now);
    RunEnd {
        counted: Counted::Failure,
        disable,
        notice: is_told.then(|| Notice::Failure {
            reason,
            title: format!("Failed: {}", routine.name),
            text: format!("{reason}: {message}"),
        }),
        line: summary_line(routine, &format!("failed ({reason}): {message}")),
        ..end
    }
}

/// The summary of an isolated run, if `post_to_main` is set.
fn summary_line(routine: &Routine, text: &str) -> Option<String> {
    if !routine.post_to_main || puts_line(routine) {
        return None;
    }
    let prefix = routine.post_to_main_prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
    Some(format!("{prefix}: {}: {text}", routine.name))
}

/// Whether its runs put a line of its owner into the main session, and do nothing else.
fn puts_line(routine: &Routine) -> bool {
    routine.action.kind() == RoutineActionKind::SystemEventText
}

/// The prompt of a full job has what fired the run, as long as the job is kept.
fn keeps_payload(routine: &Routine) -> bool {
    routine.persist_payload && routine.action.kind() != RoutineActionKind::FullJob
}

/// Whether runs that were admitted may start or be tried again: the routine is enabled, or its schedule has come to its
/// end.
fn allows_queued_runs(routine: &Routine) -> bool {
    routine.enabled || routine.disabled_reason.is_some_and(DisabledReason::is_end_of_schedule)
}

/// A number in [0, 1) that spreads the retries of runs that failed together. It is derived from the run and the
/// attempt, so that ending a run needs no randomness. The factor is 2³² divided by the golden ratio (multiplicative
/// hashing): seeds that differ little, as those of consecutive attempts do, get numbers that are far apart.
fn jitter(run: RunId, attempt: u32) -> f64 {
    let (_, random) = run.as_uuid().as_u64_pair();
    let [_, _, _, _, low @ ..] = random.to_be_bytes();
    let mixed = u32::from_be_bytes(low).wrapping_add(attempt).wrapping_mul(0x9E37_79B9);
    f64::from(mixed) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
