//! Plans about jobs that run.

use super::*;
use crate::plan::failures;

#[test]
fn with_the_sandbox_disabled_queued_jobs_fail_and_running_ones_continue() {
    let (waiting, retried) = (job("a", JobState::Pending, 0), job("a", JobState::Pending, 1));
    let held = queued(0, Queued { held: true, ..Queued::default() });
    let (runs, made, stuck) =
        (job("a", JobState::InProgress, 1), job("a", JobState::InProgress, 1), job("a", JobState::Stuck, 1));
    let stuck = JobRecord { repair_attempts: 1, ..stuck };
    let ended = job("a", JobState::InProgress, 1);
    let containers = vec![
        container_of(&runs, 1, RUNNING),
        container_of(&made, 1, ContainerStatus::Created),
        container_of(&stuck, 1, RUNNING),
        container_of(&ended, 1, exit(1, false)),
    ];
    let jobs = [&waiting, &retried, &held, &runs, &made, &stuck, &ended].map(JobRecord::clone).to_vec();
    let mut scene = Scene::of(jobs, containers);
    scene.start_policy = StartPolicy::Disabled;
    let failed = |job: &JobRecord, failure| Action::FailAttempt { job: job.id, version: job.version(), failure };
    assert_eq!(
        scene.actions(),
        [
            failed(&made, failures::sandbox_disabled()),
            failed(&stuck, failures::sandbox_disabled()),
            failed(&ended, failures::exited(1, false)),
            Action::FailSandboxDisabled { job: waiting.id },
            Action::FailSandboxDisabled { job: retried.id },
        ]
    );
}

#[test]
fn with_the_sandbox_disabled_a_running_job_is_cancelled_and_expires() {
    let cancelled = stopping(job("a", JobState::InProgress, 1));
    let late = job("a", JobState::InProgress, 1);
    let containers = vec![container_of(&cancelled, 1, RUNNING), container_of(&late, 1, RUNNING)];
    let mut scene = Scene::of(vec![cancelled.clone(), late.clone()], containers);
    scene.start_policy = StartPolicy::Disabled;
    let over = Duration::from_secs(late.brief.limits.timeout_seconds);
    scene.liveness.insert(late.id, Liveness { job_age: over, ..Liveness::default() });
    assert_eq!(scene.actions(), [Action::Cancel { job: cancelled.id }, Action::Expire { job: late.id }]);
}

#[test]
fn a_new_attempt_of_a_stuck_job_waits_for_the_sandbox() {
    let stuck = JobRecord { repair_attempts: 1, ..job("a", JobState::Stuck, 1) };
    let mut scene = Scene::of(vec![stuck.clone()], vec![container_of(&stuck, 1, RUNNING)]);
    assert_eq!(scene.actions(), [Action::StartAgain { job: stuck.id }]);
    scene.start_policy = StartPolicy::Wait;
    assert_eq!(scene.actions(), []);
}

#[rstest]
#[case::ran_out_of_memory(exit(137, true), JobReason::OomKilled, false)]
#[case::killed_from_outside(exit(137, false), JobReason::WorkerCrashed, false)]
#[case::a_child_ran_out_of_memory(exit(0, true), JobReason::WorkerLost, true)]
#[case::crashed_after_a_childs_oom(exit(1, true), JobReason::WorkerCrashed, false)]
#[case::crashed(exit(3, false), JobReason::WorkerCrashed, false)]
#[case::left_without_a_word(exit(0, false), JobReason::WorkerLost, true)]
fn an_exit_fails_the_attempt_with_its_reason(
    #[case] status: ContainerStatus,
    #[case] reason: JobReason,
    #[case] is_retryable: bool,
) {
    let lost = job("a", JobState::InProgress, 1);
    let scene = Scene::of(vec![lost.clone()], vec![container_of(&lost, 1, status)]);
    let actions = scene.actions();
    let [Action::FailAttempt { job, failure, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((*job, failure.reason, failure.is_retryable), (lost.id, reason, is_retryable));
}

#[test]
fn a_vanished_container_is_a_lost_worker_unless_the_engine_does_not_answer() {
    let lost = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![lost.clone()], vec![]);
    assert_eq!(
        scene.actions(),
        [Action::FailAttempt { job: lost.id, version: lost.version(), failure: failures::vanished() }]
    );
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}

#[rstest]
#[case::silent(JobState::InProgress, Liveness { since_contact: LEASE, ..Liveness::default() })]
#[case::idle(JobState::InProgress, Liveness { since_progress: STUCK_AFTER, ..Liveness::default() })]
#[case::stuck(JobState::Stuck, Liveness { since_contact: LEASE, ..Liveness::default() })]
fn a_container_of_unknown_status_gets_no_action(#[case] state: JobState, #[case] liveness: Liveness) {
    let hangs = job("a", state, 1);
    let mut scene = Scene::of(vec![hangs.clone()], vec![container_of(&hangs, 1, ContainerStatus::Unknown)]);
    scene.liveness.insert(hangs.id, liveness);
    assert_eq!(scene.actions(), []);
    scene.jobs[0] = stopping(hangs.clone());
    assert_eq!(
        scene.actions(),
        [Action::Cancel { job: hangs.id }],
        "what it asks of the engine is confirmed or not done"
    );
}

#[rstest]
#[case(JobState::InProgress, false)]
#[case(JobState::Stuck, false)]
#[case(JobState::InProgress, true)]
fn a_stale_container_is_removed_before_anything_else_happens_to_its_job(#[case] state: JobState, #[case] cancel: bool) {
    let overtaken = job("a", state, 2);
    let overtaken = if cancel { stopping(overtaken) } else { overtaken };
    for status in [RUNNING, ContainerStatus::Unknown] {
        let old = container_of(&overtaken, 1, status);
        let name = old.name.clone();
        assert_eq!(
            Scene::of(vec![overtaken.clone()], vec![old]).actions(),
            [Action::RemoveContainer { container: name }]
        );
    }
}

#[test]
fn a_container_that_was_only_created_or_is_not_served_is_resumed() {
    let cut = job("a", JobState::InProgress, 1);
    let scene = Scene::of(vec![cut.clone()], vec![container_of(&cut, 1, ContainerStatus::Created)]);
    assert_eq!(scene.actions(), [Action::TakeOver { job: cut.id }]);
    let mut adopted = Scene::of(vec![cut.clone()], vec![container_of(&cut, 1, RUNNING)]);
    adopted.served.clear();
    assert_eq!(adopted.actions(), [Action::TakeOver { job: cut.id }]);
}

#[test]
fn a_worker_that_never_calls_fails_after_the_start_timeout() {
    let mut silent = job("a", JobState::InProgress, 1);
    silent.running_mut().worker_seen_at = None;
    let mut scene = Scene::of(vec![silent.clone()], vec![container_of(&silent, 1, RUNNING)]);
    assert_eq!(scene.plan().replan_in, Some(START_TIMEOUT));
    assert_eq!(scene.actions(), []);
    scene.liveness.insert(silent.id, Liveness { attempt_age: START_TIMEOUT, ..Liveness::default() });
    let actions = scene.actions();
    let [Action::FailAttempt { failure, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(failure.reason, JobReason::StartTimeout);
}

#[test]
fn a_cancellation_has_precedence_and_needs_the_engine() {
    let doomed = stopping(job("a", JobState::InProgress, 1));
    let mut scene = Scene::of(vec![doomed.clone()], vec![container_of(&doomed, 1, exit(1, false))]);
    assert_eq!(scene.actions(), [Action::Cancel { job: doomed.id }]);
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}

#[test]
fn a_job_expires_by_monotonic_time() {
    let long = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![long.clone()], vec![container_of(&long, 1, RUNNING)]);
    let almost = Duration::from_secs(3599);
    scene.liveness.insert(long.id, Liveness { job_age: almost, ..Liveness::default() });
    assert_eq!(scene.plan(), Plan { actions: vec![], replan_in: Some(Duration::from_secs(1)) });
    scene.now = now() + TimeDelta::hours(2);
    assert_eq!(scene.actions(), [], "a step of the clock ends nothing");
    scene.liveness.insert(long.id, Liveness { job_age: Duration::from_hours(1), ..Liveness::default() });
    assert_eq!(scene.actions(), [Action::Expire { job: long.id }]);
}

const fn liveness(silent_seconds: u64, idle_seconds: u64) -> Liveness {
    Liveness {
        since_contact: Duration::from_secs(silent_seconds),
        since_progress: Duration::from_secs(idle_seconds),
        attempt_age: Duration::from_mins(50),
        job_age: Duration::from_mins(50),
    }
}

#[rstest]
#[case::works(liveness(0, 0), false, None)]
#[case::thinks(liveness(29, 299), false, None)]
#[case::silent(liveness(30, 0), false, Some("its worker runs but has not called for 30 s"))]
#[case::idle(liveness(3, 300), false, Some("no progress for 300 s"))]
#[case::waits_for_its_tool(liveness(3, 4_000), true, None)]
#[case::silent_at_its_tool(liveness(31, 4_000), true, Some("its worker runs but has not called for 31 s"))]
fn stuck_is_judged_by_activity_never_by_age(
    #[case] liveness: Liveness,
    #[case] at_tool: bool,
    #[case] stuck: Option<&str>,
) {
    let live = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![live.clone()], vec![container_of(&live, 1, RUNNING)]);
    scene.liveness.insert(live.id, liveness);
    scene.waiting_for_tools.extend(at_tool.then_some(live.id));
    let expected: Vec<Action> =
        stuck.map(|message| Action::MarkStuck { job: live.id, message: message.to_owned() }).into_iter().collect();
    assert_eq!(scene.actions(), expected);
}

#[rstest]
#[case::still_calls(0, Some(RUNNING), liveness(1, 300), "nudge")]
#[case::nudged_before(1, Some(RUNNING), liveness(1, 300), "again")]
#[case::deaf(0, Some(RUNNING), liveness(30, 300), "again")]
#[case::dead(0, Some(exit(1, false)), liveness(1, 300), "again")]
#[case::gone(0, None, liveness(1, 300), "again")]
#[case::the_last_repair(2, Some(RUNNING), liveness(1, 300), "again")]
#[case::repaired_enough(3, Some(RUNNING), liveness(1, 300), "fail")]
#[case::repaired_enough_and_gone(3, None, liveness(1, 300), "fail")]
fn a_stuck_job_is_nudged_then_started_again_then_failed(
    #[case] repair_attempts: u32,
    #[case] status: Option<ContainerStatus>,
    #[case] liveness: Liveness,
    #[case] expected: &str,
) {
    let stuck = JobRecord { repair_attempts, ..job("a", JobState::Stuck, 1) };
    let mut scene = Scene::of(vec![stuck.clone()], status.map(|s| container_of(&stuck, 1, s)).into_iter().collect());
    scene.liveness.insert(stuck.id, liveness);
    let actions = scene.actions();
    match (expected, actions.as_slice()) {
        ("nudge", [Action::Nudge { job }]) | ("again", [Action::StartAgain { job }]) => assert_eq!(*job, stuck.id),
        ("fail", [Action::FailAttempt { failure, .. }]) => assert_eq!(failure.reason, JobReason::Stuck),
        _ => panic!("{expected}: {actions:?}"),
    }
}

#[rstest]
#[case(JobState::Pending, 0)]
#[case(JobState::InProgress, 1)]
fn a_child_is_cancelled_with_its_parent(#[case] state: JobState, #[case] attempt: u32) {
    let child = job("a", state, attempt);
    let mut scene = Scene::of(vec![child.clone()], vec![]);
    scene.start_policy = StartPolicy::Wait;
    scene.orphaned.insert(child.id);
    assert_eq!(scene.actions(), [Action::CancelWithParent { job: child.id }]);
}

#[test]
fn a_job_over_its_disk_quota_is_stopped() {
    let full = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![full.clone()], vec![container_of(&full, 1, RUNNING)]);
    scene.over_quota.insert(full.id, 7);
    assert_eq!(scene.actions(), [Action::FailOverQuota { job: full.id, bytes: 7 }]);
}
