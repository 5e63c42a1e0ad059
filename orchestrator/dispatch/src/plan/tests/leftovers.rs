//! Plans about containers that no job has any more.

use super::*;
use crate::plan::leftovers::EXIT_GRACE;

#[test]
fn a_job_with_an_invalid_row_keeps_its_container_and_its_run_directory() {
    let (bad, good) = (job("a", JobState::InProgress, 1), job("a", JobState::Pending, 0));
    let mut scene = Scene::of(vec![good.clone()], vec![container_of(&bad, 1, RUNNING)]);
    scene.run_dirs.push(format!("gantry-job-{}-2", bad.id));
    scene.unreadable.insert(bad.id);
    assert_eq!(scene.actions(), [Action::Start { job: good.id }]);
    // Only names of containers are of a job.
    let other = format!("backup-of-{}", bad.id);
    scene.run_dirs.push(other.clone());
    assert!(scene.actions().contains(&Action::RemoveRunDir { run_dir: other }));
    scene.run_dirs.pop();
    scene.unreadable.clear();
    assert_eq!(scene.actions().len(), 3, "of no job, both would go");
}

#[test]
fn a_worker_that_has_reported_has_time_to_exit() {
    let done = job("a", JobState::Completed, 1);
    let container = container_of(&done, 1, RUNNING);
    let mut scene = Scene::of(vec![], vec![container.clone()]);
    scene.ended.insert(done.id, now());
    assert_eq!(scene.plan(), Plan { actions: vec![], replan_in: EXIT_GRACE.to_std().ok() });
    scene.now = now() + EXIT_GRACE;
    assert_eq!(scene.actions(), [Action::RemoveContainer { container: container.name.clone() }]);
    let mut left = Scene::of(vec![], vec![container_of(&done, 1, exit(0, false))]);
    left.ended.insert(done.id, now());
    assert_eq!(left.actions(), [Action::RemoveContainer { container: container.name }]);
}

#[test]
fn a_clock_set_back_keeps_no_container() {
    let done = job("a", JobState::Completed, 1);
    let mut scene = Scene::of(vec![], vec![container_of(&done, 1, RUNNING)]);
    scene.ended.insert(done.id, now() + TimeDelta::hours(1));
    assert_eq!(scene.actions().len(), 1);
}

#[test]
fn containers_without_an_open_attempt_are_removed_and_probes_and_mcp_servers_stay() {
    let unknown = container_of(&job("a", JobState::Failed, 1), 1, RUNNING);
    let current = job("a", JobState::InProgress, 2);
    let fenced = container_of(&current, 1, RUNNING);
    let own = container_of(&current, 2, RUNNING);
    let probe = ContainerView { role: Some(ContainerRole::Probe), job_id: None, ..unknown.clone() };
    let mcp = ContainerView { role: Some(ContainerRole::Mcp), ..probe.clone() };
    let scene = Scene::of(vec![current], vec![unknown.clone(), fenced.clone(), own, probe, mcp]);
    assert_eq!(
        scene.actions(),
        [Action::RemoveContainer { container: unknown.name }, Action::RemoveContainer { container: fenced.name }]
    );
}

#[test]
fn run_directories_without_a_container_are_removed_unless_their_job_is_being_started() {
    let mut scene = Scene::of(vec![], vec![]);
    let job = JobId::generate();
    let run_dir = ContainerName::job(job, 1).to_string();
    scene.run_dirs = vec![run_dir.clone()];
    assert_eq!(scene.actions(), [Action::RemoveRunDir { run_dir: run_dir.clone() }]);
    scene.busy.insert(Subject::Job(JobId::generate()));
    assert_eq!(scene.actions(), [Action::RemoveRunDir { run_dir }], "the start of another job keeps no directory");
    scene.busy.insert(Subject::Job(job));
    assert_eq!(scene.actions(), []);
    scene.busy.clear();
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}
