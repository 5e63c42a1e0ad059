//! Tables of replies, failures, alerts and statuses.

use protocol::CUT_NOTE;
use rstest::rstest;

use super::*;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

#[rstest]
#[case::sentinel("ROUTINE_OK", Reply::Nothing)]
#[case::spaces("  ROUTINE_OK \r\n\n", Reply::Nothing)]
#[case::no_break_space("\u{a0}ROUTINE_OK\t", Reply::Nothing)]
#[case::full_stop("ROUTINE_OK.", Reply::Attention("ROUTINE_OK.".to_owned()))]
#[case::lower_case("routine_ok", Reply::Attention("routine_ok".to_owned()))]
#[case::more("ROUTINE_OK and the disk is full", Reply::Attention("ROUTINE_OK and the disk is full".to_owned()))]
#[case::twice("ROUTINE_OK\nROUTINE_OK", Reply::Attention("ROUTINE_OK\nROUTINE_OK".to_owned()))]
#[case::quoted("`ROUTINE_OK`", Reply::Attention("`ROUTINE_OK`".to_owned()))]
#[case::empty("", Reply::Empty)]
#[case::blank(" \n\t ", Reply::Empty)]
#[case::text(" one issue \n", Reply::Attention("one issue".to_owned()))]
fn replies(#[case] text: &str, #[case] expected: Reply) {
    assert_eq!(reply(text), expected);
}

#[rstest]
#[case("abc", 3, "abc")]
#[case("abcd", 3, "ab…")]
#[case("äöüß", 3, "äö…")]
#[case("", 0, "")]
fn texts_are_cut_at_characters(#[case] text: &str, #[case] max: usize, #[case] expected: &str) {
    assert_eq!(shortened(text, max), expected);
}

#[test]
fn a_shortened_answer_still_says_that_it_was_cut() {
    let text = shortened(&format!("{}\n\n{CUT_NOTE}", "x".repeat(200)), 100);
    assert!(text.ends_with(&format!("x…\n\n{CUT_NOTE}")) && text.chars().count() == 100, "{text}");
}

fn facts(reason: RunReason) -> FailureFacts {
    FailureFacts {
        may_retry: true,
        reason,
        attempt: 1,
        started_at: now() - TimeDelta::seconds(5),
        rate_limit_waits: 0,
        retry: Retry { max_attempts: 3, backoff_seconds: 30, backoff_max_seconds: 100 },
        retry_after: None,
        now: now(),
        jitter: 0.0,
    }
}

fn again(seconds: i64, counts_attempt: bool) -> AfterFailure {
    AfterFailure::Retry { at: now() + TimeDelta::seconds(seconds), counts_attempt }
}

/// A reason, and whether another attempt follows.
#[rstest]
#[case(RunReason::Timeout, true)]
#[case(RunReason::LlmError, true)]
#[case(RunReason::EmptyReply, true)]
#[case(RunReason::IterationLimit, true)]
#[case(RunReason::SandboxUnavailable, true)]
#[case(RunReason::JobFailed, true)]
#[case(RunReason::LimitReached, true)]
#[case(RunReason::Internal, true)]
#[case(RunReason::OrchestratorRestart, false)]
#[case(RunReason::CancelledByUser, false)]
#[case(RunReason::CancelledByOverlap, false)]
#[case(RunReason::JobCancelled, false)]
#[case(RunReason::JobRefused, false)]
#[case(RunReason::RoutineChanged, false)]
#[case(RunReason::AutomationDisabled, false)]
fn another_attempt_follows_by_reason(#[case] reason: RunReason, #[case] is_retried: bool) {
    let expected = if is_retried { again(30, true) } else { AfterFailure::Final };
    assert_eq!(after_failure(&facts(reason)), expected);
    let last = FailureFacts { attempt: 3, ..facts(reason) };
    assert_eq!(after_failure(&last), AfterFailure::Final);
}

#[test]
fn a_refused_account_disables_the_routine_whatever_attempts_are_left() {
    for attempt in [1, 3, 9] {
        let failed = FailureFacts { attempt, ..facts(RunReason::ProviderAccount) };
        assert_eq!(after_failure(&failed), AfterFailure::FinalAndDisable);
    }
}

#[test]
fn by_default_there_is_one_attempt() {
    let failed = FailureFacts { retry: Retry::default(), ..facts(RunReason::LlmError) };
    assert_eq!(after_failure(&failed), AfterFailure::Final);
}

/// The attempt, the random number, and the wait in seconds.
#[rstest]
#[case(1, 0.0, 30)]
#[case(2, 0.0, 60)]
#[case(3, 0.0, 100)]
#[case(9, 0.0, 100)]
#[case(1, 1.0, 24)]
#[case(2, 0.5, 54)]
#[case(3, 1.0, 80)]
fn the_wait_doubles_and_has_a_limit(#[case] attempt: u32, #[case] jitter: f64, #[case] seconds: i64) {
    let retry = Retry { max_attempts: 10, ..facts(RunReason::LlmError).retry };
    let failed = FailureFacts { attempt, retry, jitter, ..facts(RunReason::LlmError) };
    assert_eq!(after_failure(&failed), again(seconds, true));
}

#[test]
fn a_run_that_started_before_the_clock_was_set_back_has_not_waited() {
    let set_back = FailureFacts { started_at: now() + TimeDelta::days(1), ..facts(RunReason::RateLimited) };
    assert_eq!(after_failure(&set_back), again(30, false));
}

/// Waits so far, what the provider asks for, the random number, the seconds since the first start, and the wait in seconds.
#[rstest]
#[case::as_told(0, Some(7), 0.0, 5, Some(7))]
#[case::never_earlier(0, Some(100), 1.0, 5, Some(120))]
#[case::at_once(0, Some(0), 0.0, 5, Some(1))]
#[case::in_the_past(0, Some(-9), 0.0, 5, Some(1))]
#[case::not_told(0, None, 0.0, 5, Some(30))]
#[case::not_told_again(2, None, 0.0, 5, Some(120))]
#[case::not_told_at_most(9, None, 0.0, 5, Some(3_600))]
#[case::too_often(10, Some(7), 0.0, 5, None)]
#[case::within_the_time(1, Some(7), 0.0, 6 * 3_600 - 7, Some(7))]
#[case::past_the_time(1, Some(7), 0.0, 6 * 3_600 - 6, None)]
#[case::asks_for_too_much(0, Some(86_400), 0.0, 5, None)]
#[case::asks_for_ever(0, Some(i64::MAX / 1_000), 0.0, 5, None)]
fn a_rate_limit_waits_as_told_within_bounds(
    #[case] waits: u32,
    #[case] asked: Option<i64>,
    #[case] jitter: f64,
    #[case] since: i64,
    #[case] expected: Option<i64>,
) {
    let limited = FailureFacts {
        rate_limit_waits: waits,
        retry_after: asked.map(TimeDelta::seconds),
        jitter,
        started_at: now() - TimeDelta::seconds(since),
        // It uses up no attempt, so that it does not matter how many there are.
        retry: Retry::default(),
        ..facts(RunReason::RateLimited)
    };
    assert_eq!(after_failure(&limited), expected.map_or(AfterFailure::Final, |seconds| again(seconds, false)));
}

/// What the owner was told: the reason, and how many hours ago. A negative number: the clock was set back since.
#[rstest]
#[case::first(RunReason::LlmError, &[], true)]
#[case::again(RunReason::LlmError, &[(RunReason::LlmError, 1)], false)]
#[case::another_reason(RunReason::Timeout, &[(RunReason::LlmError, 1)], true)]
#[case::known_among_others(RunReason::Timeout, &[(RunReason::LlmError, 30), (RunReason::Timeout, 23)], false)]
#[case::a_day_later(RunReason::LlmError, &[(RunReason::LlmError, 24)], true)]
#[case::clock_set_back(RunReason::LlmError, &[(RunReason::LlmError, -2)], false)]
#[case::clock_set_back_by_days(RunReason::LlmError, &[(RunReason::LlmError, -48)], true)]
#[case::cancelled(RunReason::CancelledByUser, &[], false)]
#[case::replaced(RunReason::CancelledByOverlap, &[], false)]
#[case::restart(RunReason::OrchestratorRestart, &[], true)]
fn the_owner_is_told_once(#[case] reason: RunReason, #[case] known: &[(RunReason, i64)], #[case] expected: bool) {
    let known: Vec<NotifiedFailure> = known
        .iter()
        .map(|(reason, hours)| NotifiedFailure { reason: *reason, notified_at: now() - TimeDelta::hours(*hours) })
        .collect();
    assert_eq!(should_notify(reason, &known, now()), expected);
}

#[test]
fn statuses_take_precedence_in_their_order() {
    let mut facts = StatusFacts {
        enabled: false,
        is_running: true,
        verified: false,
        consecutive_failures: 2,
        last_status: Some(RunStatus::Attention),
    };
    let mut seen = Vec::new();
    let changes: [fn(&mut StatusFacts); 6] = [
        |facts| facts.enabled = true,
        |facts| facts.is_running = false,
        |facts| facts.verified = true,
        |facts| facts.consecutive_failures = 0,
        |facts| facts.last_status = Some(RunStatus::Ok),
        |facts| facts.last_status = None,
    ];
    for change in changes {
        seen.push(routine_status(&facts));
        change(&mut facts);
    }
    seen.push(routine_status(&facts));
    let expected = [
        RoutineStatus::Disabled,
        RoutineStatus::Running,
        RoutineStatus::Unverified,
        RoutineStatus::Failing,
        RoutineStatus::Attention,
        RoutineStatus::Active,
        RoutineStatus::Active,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_run_of_a_disabled_or_deleted_routine_is_not_tried_again() {
    for reason in [RunReason::RateLimited, RunReason::LlmError, RunReason::Timeout] {
        let failed = FailureFacts { may_retry: false, retry_after: Some(TimeDelta::seconds(1)), ..facts(reason) };
        assert_eq!(after_failure(&failed), AfterFailure::Final, "{reason}");
    }
}
