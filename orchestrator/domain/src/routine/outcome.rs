//! What the end of a run means: the reading of its reply, what follows a failure, whether the owner is notified, and the human-readable
//! status of the routine.
//!
//! Pure. Never counts anything: the numbers are the caller's.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{CUT_NOTE, Retry, RoutineStatus, RunReason, RunStatus};

#[cfg(test)]
mod tests;

/// The reply that says that there is nothing to report.
pub const ROUTINE_OK: &str = "ROUTINE_OK";
/// The longest text of a result that a run keeps: as long as a tool's output.
pub const MAX_RESULT_BYTES: usize = 100_000;
/// The longest text of a result in lists, notifications and the main session.
pub(crate) const MAX_SUMMARY_CHARS: usize = 4_000;
/// The longest text of a result that the next run gets.
pub(crate) const MAX_STATE_CHARS: usize = 2_000;

/// Waits of one run that providers may ask for.
const MAX_RATE_LIMIT_WAITS: u32 = 10;
/// The time in which a run that providers ask to wait must have started again, from its first start.
const MAX_RATE_LIMIT_TIME: TimeDelta = TimeDelta::hours(6);
/// The first wait for a provider that does not say how long; it doubles with each wait.
const RATE_LIMIT_BACKOFF: TimeDelta = TimeDelta::seconds(30);
/// The longest of these waits.
const RATE_LIMIT_BACKOFF_MAX: TimeDelta = TimeDelta::hours(1);
/// The part of a wait that is drawn at random.
const JITTER: f64 = 0.2;
/// The time in which the same failure of a routine is not told again.
const ALERT_INTERVAL: TimeDelta = TimeDelta::hours(24);

/// What a run's reply says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is nothing to report.
    Nothing,
    /// This text is for the owner.
    Attention(String),
    /// It says nothing, which is a failure.
    Empty,
}

/// Reads the reply of a run.
pub fn reply(text: &str) -> Reply {
    match text.trim() {
        "" => Reply::Empty,
        ROUTINE_OK => Reply::Nothing,
        text => Reply::Attention(text.to_owned()),
    }
}

/// The beginning of a text, at most `max_chars` characters. A cut is marked by an ellipsis, which counts. An answer that the
/// model's output limit cut keeps the line that says it.
pub fn shortened(text: &str, max_chars: usize) -> String {
    cut(text, max_chars, "…")
}

/// The beginning of a result, at most `max_chars` characters. Where it is cut, it says that there is more.
pub(crate) fn excerpt(text: &str, max_chars: usize) -> String {
    cut(text, max_chars, "… [shortened]")
}

fn cut(text: &str, max_chars: usize, mark: &str) -> String {
    if text.char_indices().nth(max_chars).is_none() {
        return text.to_owned();
    }
    let end = if text.ends_with(CUT_NOTE) { format!("{mark}\n\n{CUT_NOTE}") } else { mark.to_owned() };
    let kept: String = text.chars().take(max_chars.saturating_sub(end.chars().count())).collect();
    kept + &end
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// The run is tried again.
    Retry {
        at: DateTime<Utc>,
        /// Whether the next attempt has a new number; a wait that a provider asks for uses up none.
        counts_attempt: bool,
    },
    /// The run has failed.
    Final,
    /// The run has failed, and so would every other: the routine is disabled.
    FinalAndDisable,
}

/// What is known of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailureFacts {
    /// Why it failed.
    pub reason: RunReason,
    /// Its number, from 1.
    pub attempt: u32,
    /// When the first attempt started.
    pub started_at: DateTime<Utc>,
    /// How often the run has waited for a provider.
    pub rate_limit_waits: u32,
    /// What the routine says about further attempts.
    pub retry: Retry,
    /// Whether the routine still exists and lets its queued runs start.
    pub may_retry: bool,
    /// How long the provider asks to wait.
    pub retry_after: Option<TimeDelta>,
    pub now: DateTime<Utc>,
    /// A random number, at least 0 and less than 1.
    pub jitter: f64,
}

/// Decides what follows a failed attempt.
pub(crate) fn after_failure(facts: &FailureFacts) -> AfterFailure {
    match facts.reason {
        RunReason::ProviderAccount => AfterFailure::FinalAndDisable,
        _ if !facts.may_retry => AfterFailure::Final,
        RunReason::RateLimited => after_rate_limit(facts),
        reason if !is_retried(reason) || facts.attempt >= facts.retry.max_attempts => AfterFailure::Final,
        _ => {
            let (first, longest) = (seconds(facts.retry.backoff_seconds), seconds(facts.retry.backoff_max_seconds));
            let wait = backoff(first, longest, facts.attempt - 1);
            AfterFailure::Retry { at: facts.now + reduced(wait, facts.jitter), counts_attempt: true }
        }
    }
}

/// A rate limit is waited for without a separate attempt, until the run has waited too often or for too long.
fn after_rate_limit(facts: &FailureFacts) -> AfterFailure {
    if facts.rate_limit_waits >= MAX_RATE_LIMIT_WAITS {
        return AfterFailure::Final;
    }
    let wait = match facts.retry_after {
        Some(asked) if asked > MAX_RATE_LIMIT_TIME => return AfterFailure::Final,
        // Not earlier than the provider says. What was limited together is tried again apart.
        Some(asked) => asked + random_part(asked.min(RATE_LIMIT_BACKOFF_MAX), facts.jitter),
        None => reduced(backoff(RATE_LIMIT_BACKOFF, RATE_LIMIT_BACKOFF_MAX, facts.rate_limit_waits), facts.jitter),
    };
    let wait = wait.max(TimeDelta::seconds(1));
    let waited = (facts.now - facts.started_at).max(TimeDelta::zero());
    if waited + wait > MAX_RATE_LIMIT_TIME {
        return AfterFailure::Final;
    }
    AfterFailure::Retry { at: facts.now + wait, counts_attempt: false }
}

/// Whether the failure is retryable.
const fn is_retried(reason: RunReason) -> bool {
    match reason {
        RunReason::Timeout
        | RunReason::LlmError
        | RunReason::RateLimited
        | RunReason::EmptyReply
        | RunReason::IterationLimit
        | RunReason::SandboxUnavailable
        | RunReason::JobFailed
        | RunReason::LimitReached
        | RunReason::Internal => true,
        // It may have had its effect.
        RunReason::OrchestratorRestart
        // Somebody wants no further attempt.
        | RunReason::CancelledByUser
        | RunReason::CancelledByOverlap
        | RunReason::JobCancelled
        // It would be refused again.
        | RunReason::JobRefused
        | RunReason::ProviderAccount
        // It has not started.
        | RunReason::Cooldown
        | RunReason::Overlap
        | RunReason::Duplicate
        | RunReason::Budget
        | RunReason::Depth
        | RunReason::MaxRuns
        | RunReason::Until
        | RunReason::FireRate
        | RunReason::RoutineChanged
        | RunReason::Late
        | RunReason::AutomationDisabled => false,
    }
}

/// Whether a run that ended for this reason counts as a failure of its routine. One that was cancelled on purpose does not, and its
/// owner is not notified.
pub(crate) const fn counts_as_failure(reason: RunReason) -> bool {
    !matches!(
        reason,
        RunReason::CancelledByUser | RunReason::CancelledByOverlap | RunReason::RoutineChanged | RunReason::FireRate
    )
}

/// `first`, doubled `doublings` times, at most `longest`. Attempts and waits are limited to a few.
fn backoff(first: TimeDelta, longest: TimeDelta, doublings: u32) -> TimeDelta {
    (first * (1 << doublings)).min(longest)
}

/// Without its random part, so that what failed together is not tried again together.
fn reduced(wait: TimeDelta, jitter: f64) -> TimeDelta {
    wait - random_part(wait, jitter)
}

/// The random part of a wait; none of one that is over.
fn random_part(wait: TimeDelta, jitter: f64) -> TimeDelta {
    let wait = wait.to_std().unwrap_or_default();
    TimeDelta::from_std(wait.mul_f64(JITTER * jitter)).unwrap_or_default()
}

const fn seconds(seconds: u64) -> TimeDelta {
    TimeDelta::seconds(seconds.cast_signed())
}

/// A failure of a routine whose owner has been notified of it since its last successful run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifiedFailure {
    /// Why a run failed.
    pub reason: RunReason,
    /// When the owner was notified.
    pub notified_at: DateTime<Utc>,
}

/// Whether the owner is notified of a failed run. `known`: the notifications since the last successful run.
pub(crate) fn should_notify(reason: RunReason, known: &[NotifiedFailure], now: DateTime<Utc>) -> bool {
    // A time in the future is one from before the clock was set back.
    let is_recent = |alert: &NotifiedFailure| (now - alert.notified_at).abs() < ALERT_INTERVAL;
    counts_as_failure(reason) && !known.iter().any(|alert| alert.reason == reason && is_recent(alert))
}

/// What the status of a routine depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusFacts {
    /// Whether it fires.
    pub enabled: bool,
    /// Whether a run of it is in progress.
    pub is_running: bool,
    /// Whether it has had a successful run since its trigger or action changed.
    pub verified: bool,
    /// Failed runs since the last good one.
    pub consecutive_failures: u32,
    /// The status of the last run that ended.
    pub last_status: Option<RunStatus>,
}

/// The human-readable status of a routine: the first that is true.
pub const fn routine_status(facts: &StatusFacts) -> RoutineStatus {
    match facts {
        StatusFacts { enabled: false, .. } => RoutineStatus::Disabled,
        StatusFacts { is_running: true, .. } => RoutineStatus::Running,
        StatusFacts { verified: false, .. } => RoutineStatus::Unverified,
        StatusFacts { consecutive_failures: 1.., .. } => RoutineStatus::Failing,
        StatusFacts { last_status: Some(RunStatus::Attention), .. } => RoutineStatus::Attention,
        StatusFacts { .. } => RoutineStatus::Active,
    }
}
