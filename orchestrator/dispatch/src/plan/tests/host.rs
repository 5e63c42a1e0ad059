//! Jobs whose loop runs in the orchestrator: no container, no sandbox and no lease decide about them.

use super::*;
use domain::job::AttemptFailure;
use protocol::Placement;

const RUNS: Option<HostRunState> = Some(HostRunState::Running);
const ENDED: Option<HostRunState> = Some(HostRunState::Ended);

fn on_host(user: &str, state: JobState, attempt: u32) -> JobRecord {
    let job = job(user, state, attempt).with_brief(|brief| brief.placement = Placement::Host);
    JobRecord { container: None, ..job }
}

/// A job on an engine that does not answer, in a sandbox that is disabled.
fn scene(jobs: &[&JobRecord], run: Option<HostRunState>) -> Scene {
    let mut scene = Scene::of(jobs.iter().map(|job| (*job).clone()).collect(), vec![]);
    scene.host_runs = jobs.iter().filter(|job| job.attempt > 0).filter_map(|job| Some((job.id, run?))).collect();
    (scene.containers, scene.start_policy) = (None, StartPolicy::Disabled);
    scene
}

fn aged(scene: &mut Scene, job: &JobRecord, liveness: Liveness) {
    scene.liveness.insert(job.id, liveness);
}

#[test]
fn a_queued_job_starts_whatever_the_sandbox_is() {
    let job = on_host("a", JobState::Pending, 0);
    for policy in [StartPolicy::Allow, StartPolicy::Wait, StartPolicy::Disabled] {
        let mut scene = scene(&[&job], None);
        scene.start_policy = policy;
        assert_eq!(scene.actions(), [Action::Start { job: job.id }], "{policy:?}");
    }
}

#[test]
fn a_job_in_a_container_still_fails_where_the_sandbox_is_disabled() {
    let (in_container, host) = (job("a", JobState::Pending, 0), on_host("a", JobState::Pending, 0));
    let expected = [Action::Start { job: host.id }, Action::FailSandboxDisabled { job: in_container.id }];
    assert_eq!(scene(&[&in_container, &host], None).actions(), expected);
}

#[test]
fn they_have_slots_of_their_own() {
    let jobs =
        [on_host("a", JobState::Pending, 0), on_host("a", JobState::Pending, 0), on_host("b", JobState::Pending, 0)];
    let started = scene(&jobs.each_ref(), None).actions();
    assert_eq!(started, [Action::Start { job: jobs[0].id }, Action::Start { job: jobs[2].id }], "one of each user");
    let in_container = job("b", JobState::InProgress, 1);
    let mut full = scene(&[&in_container, &jobs[0]], RUNS);
    (full.max_parallel, full.containers) = (1, Some(vec![container_of(&in_container, 1, RUNNING)]));
    full.served = full.containers.iter().flatten().map(|container| container.name.clone()).collect();
    assert_eq!(full.actions(), [Action::Start { job: jobs[0].id }], "a job in a container takes none of them");
    let running = on_host("b", JobState::InProgress, 1);
    let other = on_host("c", JobState::InProgress, 1);
    assert_eq!(scene(&[&running, &other, &jobs[0]], RUNS).actions(), [], "both are taken");
}

#[test]
fn a_loop_that_has_not_ended_keeps_its_slot() {
    let (one, two) = (on_host("a", JobState::Pending, 0), on_host("b", JobState::Pending, 0));
    let mut scene = scene(&[&one, &two], None);
    scene.host_runs = [(JobId::generate(), HostRunState::Running)].into();
    assert_eq!(scene.actions(), [Action::Start { job: one.id }]);
}

#[test]
fn a_waiting_parent_lends_its_slot_to_its_child() {
    let parent = on_host("a", JobState::InProgress, 1);
    let child = child(&parent, JobState::Pending, 0).with_brief(|brief| brief.placement = Placement::Host);
    assert_eq!(scene(&[&parent, &child], RUNS).actions(), []);
    let mut waiting = scene(&[&parent, &child], RUNS);
    waiting.waiting_for_children = [parent.id].into();
    assert_eq!(waiting.actions(), [Action::Start { job: child.id }]);
}

#[rstest]
#[case::runs(RUNS, None)]
#[case::of_an_earlier_process(None, Some(JobReason::OrchestratorRestart))]
#[case::ended_without_a_report(ENDED, Some(JobReason::Internal))]
fn a_job_fails_with_its_loop(#[case] run: Option<HostRunState>, #[case] reason: Option<JobReason>) {
    let job = on_host("a", JobState::InProgress, 1);
    let failed: Vec<JobReason> = scene(&[&job], run)
        .actions()
        .into_iter()
        .map(|action| match action {
            Action::FailAttempt { failure: AttemptFailure { reason, is_retryable: false, .. }, version, .. } => {
                assert_eq!(version, job.version());
                reason
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(failed, reason.into_iter().collect::<Vec<_>>());
}

#[test]
fn it_is_cancelled_expired_and_cancelled_with_its_parent() {
    let job = on_host("a", JobState::InProgress, 1);
    let to_cancel = stopping(job.clone());
    for run in [None, RUNS, ENDED] {
        assert_eq!(scene(&[&to_cancel], run).actions(), [Action::Cancel { job: job.id }], "{run:?}");
    }
    let mut late = scene(&[&job], RUNS);
    aged(&mut late, &job, Liveness { job_age: Duration::from_hours(24), ..Liveness::default() });
    assert_eq!(late.actions(), [Action::Expire { job: job.id }]);
    let mut orphan = scene(&[&job], RUNS);
    orphan.orphaned = [job.id].into();
    assert_eq!(orphan.actions(), [Action::CancelWithParent { job: job.id }]);
}

#[test]
fn it_is_stuck_without_progress_and_repaired_without_a_sandbox() {
    let job = on_host("a", JobState::InProgress, 1);
    let mut silent = scene(&[&job], RUNS);
    // There is no lease: only progress counts.
    aged(&mut silent, &job, Liveness { since_contact: Duration::from_hours(1), ..Liveness::default() });
    assert_eq!(silent.actions(), []);
    aged(&mut silent, &job, Liveness { since_progress: STUCK_AFTER, ..Liveness::default() });
    assert!(matches!(silent.actions()[..], [Action::MarkStuck { .. }]), "{:?}", silent.actions());
    let stuck = |repairs| JobRecord { repair_attempts: repairs, ..on_host("a", JobState::Stuck, 1) };
    let repair = |job: &JobRecord| scene(&[job], RUNS).actions();
    let (first, second, last) = (stuck(0), stuck(1), stuck(3));
    assert_eq!(repair(&first), [Action::Nudge { job: first.id }]);
    assert_eq!(repair(&second), [Action::StartAgain { job: second.id }]);
    assert!(matches!(repair(&last)[..], [Action::FailAttempt { .. }]));
}
