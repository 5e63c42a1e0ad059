//! Containers and run directories that belong to no open attempt.

use std::collections::HashSet;

use chrono::TimeDelta;
use protocol::ContainerName;

use super::{Action, Facts, JobFacts, Plan, facts::JobsById};
use engine::{ContainerRole, ContainerStatus, ContainerView};

/// A worker that has reported exits by itself; its container is removed if it has not by then, so that it is
/// gone within 2 s.
pub(super) const EXIT_GRACE: TimeDelta = TimeDelta::milliseconds(1_200);

/// Removes what belongs to no open attempt. Without an answer of the engine, nothing.
pub(super) fn plan(facts: &Facts<'_>, jobs: &JobsById<'_>, plan: &mut Plan) {
    let Some(containers) = facts.containers else { return };
    for container in containers {
        plan_container(facts, jobs, container, plan);
    }
    plan_run_dirs(facts, containers, plan);
}

fn plan_container(facts: &Facts<'_>, jobs: &JobsById<'_>, container: &ContainerView, plan: &mut Plan) {
    // Probes and MCP servers have owners that remove them.
    let has_other_owner = matches!(container.role, Some(ContainerRole::Probe | ContainerRole::Mcp));
    if has_other_owner || facts.is_container_busy(&container.name) {
        return;
    }
    if let Some(job) = container.job_id {
        if facts.is_busy(job) || facts.unreadable.contains(&job) {
            return;
        }
        let is_current = |job: &&JobFacts<'_>| job.open.attempt == container.attempt && job.open.is_running();
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

fn plan_run_dirs(facts: &Facts<'_>, containers: &[ContainerView], plan: &mut Plan) {
    let running = facts.jobs.iter().filter(|job| job.open.is_running());
    let of_jobs = running.filter_map(|job| job.open.container.as_ref()).map(|container| container.name.as_str());
    let mut in_use: HashSet<&str> = HashSet::with_capacity(facts.jobs.len().max(containers.len()));
    in_use.extend(of_jobs.chain(containers.iter().map(|container| container.name.as_str())));
    for run_dir in facts.run_dirs.iter().filter(|run_dir| !in_use.contains(run_dir.as_str())) {
        let job = run_dir.parse::<ContainerName>().ok().and_then(|name| name.job_id());
        // A start in progress may have created its run directory after the jobs were listed.
        let is_busy = facts.is_container_busy(run_dir) || job.is_some_and(|id| facts.is_busy(id));
        if !is_busy && !job.is_some_and(|id| facts.unreadable.contains(&id)) {
            plan.actions.push(Action::RemoveRunDir { run_dir: run_dir.clone() });
        }
    }
}
