//! Whose slot a job may take: a free one, or that of a job above it that waits.

use super::*;

/// A running job with its container.
fn at_work(user: &str) -> JobRecord {
    job(user, JobState::InProgress, 1)
}

fn scene(max_parallel: usize, jobs: &[&JobRecord], waiting: &[&JobRecord]) -> Scene {
    let running = jobs.iter().filter(|job| job.attempt > 0).map(|job| container_of(job, 1, RUNNING)).collect();
    let mut scene = Scene::of(jobs.iter().map(|job| (*job).clone()).collect(), running);
    scene.max_parallel = max_parallel;
    scene.waiting_for_children = waiting.iter().map(|job| job.id).collect();
    scene
}

fn start(job: &JobRecord) -> Action {
    Action::Start { job: job.id }
}

#[test]
fn a_waiting_parent_lends_its_only_slot_to_its_child() {
    let parent = at_work("a");
    let child = child(&parent, JobState::Pending, 0);
    assert_eq!(scene(1, &[&parent, &child], &[]).actions(), []);
    assert_eq!(scene(1, &[&parent, &child], &[&parent]).actions(), [start(&child)]);
    let mut of_user = scene(5, &[&parent, &child], &[&parent]);
    of_user.max_per_user = 1;
    assert_eq!(of_user.actions(), [start(&child)]);
}

#[test]
fn a_slot_is_lent_to_no_other_job() {
    let parent = at_work("a");
    let (same_user, other_user) = (job("a", JobState::Pending, 0), job("b", JobState::Pending, 0));
    let other_parent = at_work("b");
    let others_child = child(&other_parent, JobState::Pending, 0);
    let jobs = [&parent, &same_user, &other_user, &other_parent, &others_child];
    assert_eq!(scene(2, &jobs, &[&parent]).actions(), []);
}

#[test]
fn one_child_at_a_time_takes_a_lent_slot() {
    let parent = at_work("a");
    let (first, second) = (child(&parent, JobState::Pending, 0), child(&parent, JobState::Pending, 0));
    assert_eq!(scene(1, &[&parent, &first, &second], &[&parent]).actions(), [start(&first)]);
    let running = child(&parent, JobState::InProgress, 1);
    assert_eq!(scene(1, &[&parent, &running, &second], &[&parent]).actions(), []);
    let mut starting = scene(1, &[&parent, &first, &second], &[&parent]);
    starting.busy.insert(Subject::Job(first.id));
    assert_eq!(starting.actions(), [], "a child that is being started has the slot");
    assert_eq!(scene(1, &[&parent, &second], &[&parent]).actions(), [start(&second)], "the first has ended");
}

#[test]
fn a_chain_of_waiting_jobs_makes_progress_with_one_slot() {
    let parent = at_work("a");
    let middle = child(&parent, JobState::InProgress, 1);
    let lower = child(&middle, JobState::InProgress, 1);
    let lowest = child(&lower, JobState::Pending, 0);
    let jobs = [&parent, &middle, &lower, &lowest];
    assert_eq!(scene(1, &jobs, &[&parent, &middle]).actions(), [], "the one above it does not wait");
    assert_eq!(scene(1, &jobs, &[&parent, &middle, &lower]).actions(), [start(&lowest)]);
}

#[test]
fn the_slot_of_a_job_further_up_is_lent_as_well() {
    let parent = at_work("a");
    let middle = child(&parent, JobState::InProgress, 1);
    let lowest = child(&middle, JobState::Pending, 0);
    let jobs = [&parent, &middle, &lowest];
    assert_eq!(scene(1, &jobs, &[&parent]).actions(), [], "it is lent to the one in between");
    assert_eq!(scene(2, &jobs, &[&parent]).actions(), [start(&lowest)], "which then takes no other slot");
}

#[test]
fn a_parent_that_goes_on_beside_its_child_starts_nothing_more() {
    let parent = at_work("a");
    let running = child(&parent, JobState::InProgress, 1);
    let other = job("b", JobState::Pending, 0);
    assert_eq!(scene(1, &[&parent, &running, &other], &[]).actions(), []);
    assert_eq!(scene(2, &[&parent, &running, &other], &[]).actions(), []);
    assert_eq!(scene(3, &[&parent, &running, &other], &[]).actions(), [start(&other)]);
}

#[test]
fn a_waiting_parent_without_a_running_child_keeps_its_slot() {
    let parent = at_work("a");
    let other = job("b", JobState::Pending, 0);
    assert_eq!(scene(1, &[&parent, &other], &[&parent]).actions(), []);
    assert_eq!(scene(2, &[&parent, &other], &[&parent]).actions(), [start(&other)]);
}
