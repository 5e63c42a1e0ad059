//! Plans about jobs that wait.

use super::*;

#[test]
fn a_queued_job_starts() {
    let one = job("a", JobState::Pending, 0);
    assert_eq!(Scene::of(vec![one.clone()], vec![]).actions(), [Action::Start { job: one.id }]);
}

#[test]
fn a_held_job_does_not_start() {
    let held = queued(0, Queued { held: true, ..Queued::default() });
    assert_eq!(Scene::of(vec![held], vec![]).plan(), Plan::default());
}

#[test]
fn a_queued_job_waits_while_no_attempt_may_start() {
    let mut scene = Scene::of(vec![job("a", JobState::Pending, 0)], vec![]);
    scene.start_policy = StartPolicy::Wait;
    assert_eq!(scene.actions(), []);
}

#[test]
fn jobs_start_by_priority_then_age() {
    let old = job("a", JobState::Pending, 0);
    let young = job("a", JobState::Pending, 0);
    let urgent = job("a", JobState::Pending, 0).with_brief(|brief| brief.priority = 1);
    let mut scene = Scene::of(vec![young.clone(), old.clone(), urgent.clone()], vec![]);
    scene.max_parallel = 2;
    assert_eq!(scene.actions(), [Action::Start { job: urgent.id }, Action::Start { job: old.id }]);
}

#[test]
fn running_stuck_and_starting_jobs_hold_slots() {
    let running = job("a", JobState::InProgress, 1);
    let stuck = job("a", JobState::Stuck, 1);
    let starting = job("a", JobState::Pending, 0);
    let waiting = job("b", JobState::Pending, 0);
    let containers = vec![container_of(&running, 1, RUNNING), container_of(&stuck, 1, RUNNING)];
    let mut scene = Scene::of(vec![running, stuck.clone(), starting.clone(), waiting.clone()], containers);
    scene.busy.extend([Subject::Job(starting.id), Subject::Job(stuck.id)]);
    scene.max_parallel = 3;
    assert_eq!(scene.actions(), []);
    scene.max_parallel = 4;
    assert_eq!(scene.actions(), [Action::Start { job: waiting.id }]);
}

#[test]
fn one_user_cannot_take_every_slot() {
    let first = job("a", JobState::Pending, 0);
    let second = job("a", JobState::Pending, 0);
    let other = job("b", JobState::Pending, 0);
    let mut scene = Scene::of(vec![first.clone(), second, other.clone()], vec![]);
    scene.max_per_user = 1;
    assert_eq!(scene.actions(), [Action::Start { job: first.id }, Action::Start { job: other.id }]);
}

#[test]
fn a_user_over_the_budget_of_the_day_starts_nothing() {
    let (mine, other) = (job("a", JobState::Pending, 0), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![mine.clone(), other.clone()], vec![]);
    let exceeded = ExhaustedBudget { scope: domain::budget::Scope::Day, is_cost_limit: false, limit: 10 };
    scene.over_budget.insert("a".to_owned(), exceeded);
    assert_eq!(scene.actions(), [Action::FailOverBudget { job: mine.id, exceeded }, Action::Start { job: other.id }]);
}

#[test]
fn the_end_of_a_backoff_is_planned_for() {
    let rested = queued(1, Queued { not_before: Some(now() + TimeDelta::seconds(2)), ..Queued::default() });
    let plan = Scene::of(vec![rested], vec![]).plan();
    assert_eq!(plan, Plan { actions: vec![], replan_in: Some(Duration::from_secs(2)) });
}

#[test]
fn a_clock_set_back_does_not_prolong_a_backoff() {
    let rested = queued(1, Queued { not_before: Some(now() + TimeDelta::hours(1)), ..Queued::default() });
    assert_eq!(Scene::of(vec![rested.clone()], vec![]).actions(), [Action::Start { job: rested.id }]);
}

#[test]
fn no_retry_starts_beside_the_old_container() {
    let retry = job("a", JobState::Pending, 1);
    let old = container_of(&retry, 1, RUNNING);
    let scene = Scene::of(vec![retry.clone()], vec![old.clone()]);
    assert_eq!(scene.actions(), [Action::RemoveContainer { container: old.name }]);
    let mut blind = Scene::of(vec![retry], vec![]);
    blind.containers = None;
    assert_eq!(blind.actions(), []);
}

#[rstest]
#[case::its_container_is_ended(5, RUNNING, 0)]
#[case::the_engine_does_not_say(5, ContainerStatus::Unknown, 0)]
#[case::its_worker_has_just_reported(0, RUNNING, 1)]
#[case::its_container_has_ended(5, exit(0, false), 1)]
fn a_slot_is_free_when_its_container_is_gone(
    #[case] seconds_since_end: i64,
    #[case] status: ContainerStatus,
    #[case] starts: usize,
) {
    let (ended, next) = (job("a", JobState::Failed, 1), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![next.clone()], vec![container_of(&ended, 1, status)]);
    scene.max_parallel = 1;
    scene.ended.insert(ended.id, now() - TimeDelta::seconds(seconds_since_end));
    let begun = scene.actions().iter().filter(|action| matches!(action, Action::Start { .. })).count();
    assert_eq!(begun, starts);
}

#[test]
fn a_slot_is_not_free_while_an_action_ends_its_job() {
    let (ended, next) = (job("a", JobState::Failed, 1), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![next], vec![container_of(&ended, 1, RUNNING)]);
    scene.max_parallel = 1;
    scene.ended.insert(ended.id, now());
    scene.busy.insert(Subject::Job(ended.id));
    assert_eq!(scene.actions(), []);
}

#[test]
fn a_busy_job_gets_no_action() {
    let pending = job("a", JobState::Pending, 0);
    let lost = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![pending.clone(), lost.clone()], vec![]);
    scene.busy.extend([Subject::Job(pending.id), Subject::Job(lost.id)]);
    assert_eq!(scene.actions(), []);
}

#[test]
fn a_queued_child_of_an_ended_parent_is_cancelled_and_not_started() {
    let (child, other) = (job("a", JobState::Pending, 0), job("a", JobState::Pending, 0));
    let mut scene = Scene::of(vec![child.clone(), other.clone()], vec![]);
    scene.orphaned.insert(child.id);
    assert_eq!(scene.actions(), [Action::CancelWithParent { job: child.id }, Action::Start { job: other.id }]);
}

#[test]
fn an_orphaned_job_far_back_in_the_queue_is_cancelled_unless_its_row_is_invalid() {
    let child = JobId::generate();
    let mut scene = Scene::of(vec![], vec![]);
    scene.orphaned.insert(child);
    assert_eq!(scene.actions(), [Action::CancelWithParent { job: child }]);
    scene.unreadable.insert(child);
    assert_eq!(scene.actions(), []);
}
