//! Containers and run directories that belong to no open attempt.

use std::collections::{HashMap, HashSet};

use chrono::TimeDelta;
use protocol::{ContainerName, JobId};

use super::{Action, Facts, Plan, Subject};
use domain::job::OpenJob;
use engine::{ContainerRole, ContainerStatus, ContainerView};

/// A worker that has reported exits by itself; its container is removed if it has not by then, so that it is
/// gone within 2 s.
pub(super) const EXIT_GRACE: TimeDelta = TimeDelta::milliseconds(1_200);

/// Removes what belongs to no open attempt. Without an answer of the engine, nothing.
pub(super) fn plan(facts: &Facts<'_>, plan: &mut Plan) {
    let Some(containers) = facts.containers else { return };
    let jobs: HashMap<JobId, &OpenJob> = facts.jobs.iter().map(|job| (job.open.id, &job.open)).collect();
    for container in containers {
        plan_container(facts, &jobs, container, plan);
    }
    plan_run_dirs(facts, &jobs, containers, plan);
}

fn plan_container(facts: &Facts<'_>, jobs: &HashMap<JobId, &OpenJob>, container: &ContainerView, plan: &mut Plan) {
    // Probes and MCP servers have owners that remove them.
    let has_other_owner = matches!(container.role, Some(ContainerRole::Probe | ContainerRole::Mcp));
    if has_other_owner || facts.busy.contains(&Subject::Container(container.name.clone())) {
        return;
    }
    if let Some(job) = container.job_id {
        if facts.is_busy(job) || facts.unreadable.contains(&job) {
            return;
        }
        let is_current = |open: &&OpenJob| open.attempt == container.attempt && open.is_running();
        if jobs.get(&job).is_some_and(is_current) {
            return;
        }
        if container.status == ContainerStatus::Running
            && let Some(until) = facts.ended.get(&job).map(|at| *at + EXIT_GRACE)
            // A later end is a clock that was set back.
            && until > facts.now
            && until <= facts.now + EXIT_GRACE
        {
            plan.replan_at(facts.now, until);
            return;
        }
    }
    plan.actions.push(Action::RemoveContainer { container: container.name.clone() });
}

fn plan_run_dirs(facts: &Facts<'_>, jobs: &HashMap<JobId, &OpenJob>, containers: &[ContainerView], plan: &mut Plan) {
    let in_use: HashSet<&str> = jobs
        .values()
        .filter(|job| job.is_running())
        .filter_map(|job| job.container.as_ref().map(|container| container.name.as_str()))
        .chain(containers.iter().map(|container| container.name.as_str()))
        .collect();
    for run_dir in facts.run_dirs {
        let job = run_dir.parse::<ContainerName>().ok().and_then(|name| name.job_id());
        // A start in progress may have created its run directory after the rows were read.
        let is_busy =
            facts.busy.contains(&Subject::Container(run_dir.clone())) || job.is_some_and(|id| facts.is_busy(id));
        let is_unreadable = job.is_some_and(|id| facts.unreadable.contains(&id));
        if !is_busy && !is_unreadable && !in_use.contains(run_dir.as_str()) {
            plan.actions.push(Action::RemoveRunDir { run_dir: run_dir.clone() });
        }
    }
}
