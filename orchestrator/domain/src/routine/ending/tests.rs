//! Tables of what follows the end of an attempt.

use chrono::TimeDelta;
use protocol::{
    Guardrails, LightweightAction, Notify, RoutineAction, RoutineId, RoutineSession, RoutineStatus, RoutineTrigger,
    WakeMode,
};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// A run whose id ends with these digits.
fn run(digits: &str) -> RunId {
    serde_json::from_value(json!(format!("018f0000-0000-7000-8000-{digits}"))).unwrap()
}

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn action(value: Value) -> RoutineAction {
    serde_json::from_value(value).unwrap()
}

fn routine() -> Routine {
    let action: LightweightAction = serde_json::from_value(json!({"prompt": "p"})).unwrap();
    Routine {
        id: RoutineId::generate(),
        user_id: "ada".to_owned(),
        name: "watch".to_owned(),
        description: None,
        enabled: true,
        disabled_reason: None,
        disabled_at: None,
        rev: 1,
        trigger: serde_json::from_value::<RoutineTrigger>(json!({"type": "manual"})).unwrap(),
        action: RoutineAction::Lightweight(action),
        guardrails: Guardrails { disable_after_failures: 3, ..Guardrails::default() },
        notify: Notify::default(),
        session: RoutineSession::Isolated,
        wake_mode: WakeMode::NextHeartbeat,
        deliver: false,
        post_to_main: true,
        post_to_main_prefix: None,
        persist_payload: true,
        state: None,
        last_run_at: None,
        next_fire_at: None,
        run_count: 1,
        consecutive_failures: 0,
        budget_used: None,
        verified: true,
        status: RoutineStatus::Active,
        created_at: now(),
        updated_at: now(),
    }
}

fn facts(routine: &Routine) -> EndFacts<'_> {
    EndFacts {
        run: run("00000000002a"),
        attempt: 1,
        started_at: now() - TimeDelta::seconds(5),
        rate_limit_waits: 0,
        routine: Some(routine),
        is_budget_spent: false,
        notified: &[],
        now: now(),
    }
}

fn of(end: AttemptEnd) -> AttemptResult {
    AttemptResult::unused(end)
}

fn failed(reason: RunReason) -> AttemptResult {
    of(AttemptEnd::failed(reason, "m".to_owned()))
}

fn end(result: &AttemptResult, facts: &EndFacts<'_>) -> RunEnd {
    match after_attempt(result, facts) {
        AfterAttempt::End(end) => *end,
        retry @ AfterAttempt::Retry(_) => panic!("{retry:?}"),
    }
}

#[test]
fn a_run_with_something_to_report_tells_its_owner_and_the_next_run() {
    let text = "x".repeat(5_000);
    let result = AttemptResult { text: Some(text.clone()), ..of(AttemptEnd::Attention) };
    let routine = routine();
    let summary = format!("{}… [shortened]", &text[..4_000 - 13]);
    let expected = RunEnd {
        status: RunStatus::Attention,
        reason: None,
        message: None,
        summary: Some(summary.clone()),
        result: Some(text.clone()),
        cut: false,
        keeps_payload: true,
        is_event: true,
        counted: Counted::Success { state: Some(excerpt(&text, MAX_STATE_CHARS)) },
        disable: None,
        notice: Some(Notice::Run {
            kind: NotificationKind::RunAttention,
            title: "Attention: watch".to_owned(),
            text: summary.clone(),
        }),
        line: Some(format!("Cron: watch: {summary}")),
    };
    assert_eq!(end(&result, &facts(&routine)), expected);
}

#[test]
fn a_run_with_nothing_to_report_is_silent_unless_successes_are_wanted() {
    let mut routine = routine();
    let silent = end(&of(AttemptEnd::Ok), &facts(&routine));
    assert_eq!((silent.notice, silent.line), (None, None));
    assert_eq!(silent.counted, Counted::Success { state: None });
    routine.notify.on_success = true;
    let text = "The run had nothing to report.".to_owned();
    let notified = Notice::Run { kind: NotificationKind::RunOk, title: "Done: watch".to_owned(), text };
    assert_eq!(end(&of(AttemptEnd::Ok), &facts(&routine)).notice, Some(notified));
}

/// Whether attention is wanted, whether it is delivered, and whether the owner is notified.
#[rstest]
#[case(true, false, true)]
#[case(false, true, true)]
#[case(false, false, false)]
fn attention_is_told_if_it_is_wanted(#[case] on_attention: bool, #[case] deliver: bool, #[case] is_told: bool) {
    let mut routine = Routine { deliver, ..routine() };
    routine.notify.on_attention = on_attention;
    assert_eq!(end(&of(AttemptEnd::Attention), &facts(&routine)).notice.is_some(), is_told);
}

/// A reason, and whether a final failure for it is the routine's own, another's, or no one's.
#[rstest]
#[case(RunReason::LlmError, Some(FailureOrigin::Routine))]
#[case(RunReason::Timeout, Some(FailureOrigin::Routine))]
#[case(RunReason::JobRefused, Some(FailureOrigin::Routine))]
#[case(RunReason::LimitReached, Some(FailureOrigin::Routine))]
#[case(RunReason::Internal, Some(FailureOrigin::Routine))]
#[case(RunReason::SandboxUnavailable, Some(FailureOrigin::Infrastructure))]
#[case(RunReason::RateLimited, Some(FailureOrigin::Infrastructure))]
#[case(RunReason::OrchestratorRestart, Some(FailureOrigin::Infrastructure))]
#[case(RunReason::CancelledByUser, None)]
#[case(RunReason::CancelledByOverlap, None)]
#[case(RunReason::FireRate, None)]
fn only_own_failures_count(#[case] reason: RunReason, #[case] origin: Option<FailureOrigin>) {
    let routine = Routine { consecutive_failures: 2, ..routine() };
    // A rate limit was waited for as often as a run may.
    let facts = EndFacts { rate_limit_waits: 10, ..facts(&routine) };
    let ended = end(&failed(reason), &facts);
    assert_eq!((ended.status, ended.reason), (RunStatus::Failed, Some(reason)));
    let problem = AutomationProblem::RunFailed { reason, message: Some("m".to_owned()) };
    let (counted, disable, notice, line) = match origin {
        Some(FailureOrigin::Routine) => {
            let line = format!("Cron: watch: failed ({reason}): m");
            (Counted::Failure, Some(DisabledReason::Failures), None, Some(line))
        }
        Some(FailureOrigin::Infrastructure) => (Counted::Nothing, None, Some(Notice::Problem(problem)), None),
        None => (Counted::Nothing, None, None, None),
    };
    assert_eq!((ended.counted, ended.disable, ended.notice, ended.line), (counted, disable, notice, line));
}

#[test]
fn an_outage_is_not_the_routines_own_whatever_its_reason_is() {
    let routine = Routine { consecutive_failures: 2, ..routine() };
    for reason in [RunReason::LlmError, RunReason::JobFailed, RunReason::LimitReached] {
        let ended = end(&of(AttemptEnd::infrastructure(reason, "m".to_owned())), &facts(&routine));
        assert_eq!((ended.counted, ended.disable), (Counted::Nothing, None), "{reason}");
        assert!(matches!(ended.notice, Some(Notice::Problem(_))), "{reason}");
    }
}

/// The failures before, the limit, whether the routine is enabled, and why it is disabled.
#[rstest]
#[case(1, 3, true, None)]
#[case(2, 3, true, Some(DisabledReason::Failures))]
#[case(2, 3, false, None)]
#[case(99, 0, true, None)]
fn failures_in_a_row_disable_the_routine(
    #[case] before: u32,
    #[case] max: u32,
    #[case] enabled: bool,
    #[case] expected: Option<DisabledReason>,
) {
    let guardrails = Guardrails { disable_after_failures: max, ..Guardrails::default() };
    let routine = Routine { consecutive_failures: before, enabled, guardrails, ..routine() };
    let ended = end(&failed(RunReason::Timeout), &facts(&routine));
    assert_eq!((ended.counted, ended.disable), (Counted::Failure, expected));
    // The owner is notified once.
    assert_eq!(ended.notice.is_some(), expected.is_none());
}

#[test]
fn a_refused_account_disables_the_routine_at_once() {
    let ended = end(&failed(RunReason::ProviderAccount), &facts(&routine()));
    assert_eq!((ended.disable, ended.notice), (Some(DisabledReason::ProviderAccount), None));
}

#[test]
fn a_failure_is_told_once_and_only_if_it_is_wanted() {
    let mut routine = routine();
    let notice = Notice::Failure {
        reason: RunReason::Timeout,
        title: "Failed: watch".to_owned(),
        text: "timeout: m".to_owned(),
    };
    assert_eq!(end(&failed(RunReason::Timeout), &facts(&routine)).notice, Some(notice));
    let notified = [NotifiedFailure { reason: RunReason::Timeout, notified_at: now() - TimeDelta::hours(1) }];
    let known = EndFacts { notified: &notified, ..facts(&routine) };
    assert_eq!(end(&failed(RunReason::Timeout), &known).notice, None);
    routine.notify.on_failure = false;
    for reason in [RunReason::Timeout, RunReason::SandboxUnavailable] {
        assert_eq!(end(&failed(reason), &facts(&routine)).notice, None);
    }
}

/// What allows another attempt, or not.
#[rstest]
#[case::enabled(|_: &mut Routine| {}, false, true)]
#[case::budget(|_: &mut Routine| {}, true, false)]
#[case::disabled(|r: &mut Routine| (r.enabled, r.disabled_reason) = (false, Some(DisabledReason::User)), false, false)]
#[case::schedule_over(|r: &mut Routine| (r.enabled, r.disabled_reason) = (false, Some(DisabledReason::Completed)), false, true)]
fn another_attempt_needs_a_routine_and_a_budget(
    #[case] change: fn(&mut Routine),
    #[case] is_budget_spent: bool,
    #[case] is_retried: bool,
) {
    let mut routine = routine();
    routine.guardrails.retry = Retry { max_attempts: 2, backoff_seconds: 100, backoff_max_seconds: 100 };
    change(&mut routine);
    for reason in [RunReason::Timeout, RunReason::SandboxUnavailable] {
        let facts = EndFacts { is_budget_spent, ..facts(&routine) };
        match after_attempt(&failed(reason), &facts) {
            AfterAttempt::Retry(plan) => {
                assert!(is_retried);
                assert_eq!((plan.reason, plan.message.as_str(), plan.counts_attempt), (reason, "m", true));
                // Its last fifth is drawn at random.
                let wait = (plan.at - now()).as_seconds_f64();
                assert!((wait - 100.0 + 20.0 * jitter(facts.run, 1)).abs() < 0.001, "{wait}");
            }
            AfterAttempt::End(_) => assert!(!is_retried),
        }
    }
    let deleted = EndFacts { routine: None, ..facts(&routine) };
    let ended = end(&failed(RunReason::Timeout), &deleted);
    assert_eq!((ended.counted, ended.keeps_payload, ended.notice), (Counted::Nothing, false, None));
}

#[test]
fn a_skipped_run_is_no_event_and_counts_as_nothing() {
    let ended = end(&of(AttemptEnd::out_of_budget(false)), &facts(&routine()));
    assert_eq!((ended.status, ended.reason), (RunStatus::Skipped, Some(RunReason::Budget)));
    assert_eq!((ended.is_event, ended.counted, ended.notice, ended.line), (false, Counted::Nothing, None, None));
}

/// An action, whether the payload is to be kept, and whether the run keeps it.
#[rstest]
#[case(json!({"type": "lightweight", "prompt": "p"}), true, true)]
#[case(json!({"type": "lightweight", "prompt": "p"}), false, false)]
#[case(json!({"type": "full_job", "description": "d"}), true, false)]
fn the_payload_is_kept_where_it_is_nowhere_else(
    #[case] value: Value,
    #[case] persist_payload: bool,
    #[case] expected: bool,
) {
    let routine = Routine { action: action(value), persist_payload, ..routine() };
    assert_eq!(end(&of(AttemptEnd::Ok), &facts(&routine)).keeps_payload, expected);
}

#[test]
fn a_summary_has_the_prefix_of_the_routine_and_only_isolated_runs_post_one() {
    let result = AttemptResult { text: Some("t".to_owned()), ..of(AttemptEnd::Attention) };
    let line = |routine: &Routine| end(&result, &facts(routine)).line;
    let named = Routine { post_to_main_prefix: Some("Night".to_owned()), ..routine() };
    assert_eq!(line(&named).as_deref(), Some("Night: watch: t"));
    assert_eq!(line(&Routine { post_to_main: false, ..routine() }), None);
    let main = Routine { action: action(json!({"type": "system_event_text", "text": "t"})), ..routine() };
    assert_eq!(line(&main), None);
}

/// The last digits of a run's id, its attempt, and the number.
#[rstest]
#[case("00000000002a", 1, 0.575_461_511_267_349_1)]
#[case("00000000002a", 2, 0.193_495_499_901_473_52)]
#[case("00000000002b", 1, 0.193_495_499_901_473_52)]
#[case("0000ffffffff", 1, 0.0)]
#[case("00007fffffff", 1, 0.5)]
fn jitter_is_a_function_of_the_run_and_the_attempt(#[case] digits: &str, #[case] attempt: u32, #[case] expected: f64) {
    let number = jitter(run(digits), attempt);
    assert!((number - expected).abs() < 1e-12, "{number}");
}

#[test]
fn jitter_spreads_runs_that_differ_little() {
    let mut numbers: Vec<f64> = (0..100_u32).map(|n| jitter(run(&format!("0000{n:08x}")), 1)).collect();
    assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    numbers.sort_by(f64::total_cmp);
    let gap = numbers.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    assert!(gap < 0.02, "100 runs leave a gap of {gap}");
}
