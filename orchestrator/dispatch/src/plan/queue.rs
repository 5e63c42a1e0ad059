//! Queued jobs: which start now, which fail instead, which wait.

use std::cmp::Reverse;

use chrono::TimeDelta;
use protocol::{JobId, Placement};

use super::{Action, Facts, JobFacts, Plan, StartPolicy, facts::JobsById, leftovers::EXIT_GRACE, slots::Slots};
use domain::job::{OpenJob, OpenStage};
use engine::{ContainerRole, ContainerStatus, ContainerView};

/// Twice the longest backoff between attempts (2 s): a later time means that the
/// clock was set back.
const MAX_PLAUSIBLE_BACKOFF: TimeDelta = TimeDelta::seconds(4);

/// Starts queued jobs by priority, then age, as far as the slots reach.
pub(super) fn plan(facts: &Facts<'_>, jobs: &JobsById<'_>, plan: &mut Plan) {
    plan_starts(facts, jobs, Placement::Host, plan);
    match facts.start_policy {
        StartPolicy::Allow => plan_starts(facts, jobs, Placement::Container, plan),
        StartPolicy::Wait => {}
        StartPolicy::Disabled => {
            let in_containers = facts.jobs.iter().filter(|job| !job.open.is_on_host());
            let waiting = in_containers.filter(|job| !facts.is_busy(job.open.id) && is_startable(job));
            plan.actions.extend(waiting.map(|job| Action::FailSandboxDisabled { job: job.open.id }));
        }
    }
}

fn plan_starts(facts: &Facts<'_>, jobs: &JobsById<'_>, placement: Placement, plan: &mut Plan) {
    let mut slots = Slots::new(facts, placement, count_lingering(facts, jobs, placement));
    let mut candidates: Vec<&JobFacts<'_>> = vec![];
    for job in facts.jobs.iter().filter(|job| job.open.placement == placement) {
        if has_slot(facts, job.open) {
            slots.add(job.open);
        } else if is_startable(job) && !is_in_backoff(facts, job.open, plan) {
            match facts.over_budget.get(&*job.open.user) {
                Some(exceeded) => {
                    plan.actions.push(Action::FailOverBudget { job: job.open.id, exceeded: *exceeded });
                }
                None => candidates.push(job),
            }
        }
    }
    candidates.sort_by_key(|job| (Reverse(job.open.priority), job.open.id));
    for job in candidates {
        if slots.has_room_for(job.open) && !may_have_container(facts, job) {
            slots.add(job.open);
            plan.actions.push(Action::Start { job: job.open.id });
        }
    }
}

/// Whether a job is queued, and neither held nor to be cancelled with its parent.
fn is_startable(job: &JobFacts<'_>) -> bool {
    !job.open.is_running() && !job.open.is_held() && !job.is_orphaned
}

/// Whether a job takes a slot: it has an attempt, or one is being started.
fn has_slot(facts: &Facts<'_>, job: &OpenJob) -> bool {
    job.is_running() || facts.is_busy(job.id)
}

/// Whether a job waits for the end of its backoff, at which the plan is made again.
fn is_in_backoff(facts: &Facts<'_>, job: &OpenJob, plan: &mut Plan) -> bool {
    match job.stage {
        OpenStage::Queued { not_before: Some(at), .. } if at > facts.now && at <= facts.now + MAX_PLAUSIBLE_BACKOFF => {
            plan.replan_at(facts.now, at);
            true
        }
        _ => false,
    }
}

/// Whether a container of an earlier attempt is not confirmed gone: no retry starts beside it.
fn may_have_container(facts: &Facts<'_>, job: &JobFacts<'_>) -> bool {
    let exists = job.container.is_some() || job.has_stale_container;
    job.open.attempt > 0 && !job.open.is_on_host() && (facts.containers.is_none() || exists)
}

/// Containers and loops that still run although their jobs have ended: a slot is free only once they are gone. A
/// container whose worker has just reported does not count, since it exits by itself.
fn count_lingering(facts: &Facts<'_>, jobs: &JobsById<'_>, placement: Placement) -> usize {
    let has_slot = |id: &JobId| jobs.get(id).is_some_and(|job| has_slot(facts, job.open));
    if placement == Placement::Host {
        return facts.host_runs.iter().filter(|id| !has_slot(id)).count();
    }
    let is_exiting = |job: JobId| {
        let has_just_ended = facts.ended.get(&job).is_some_and(|at| *at + EXIT_GRACE > facts.now && *at <= facts.now);
        has_just_ended && !facts.is_busy(job)
    };
    let is_lingering = |container: &&ContainerView| {
        container.role == Some(ContainerRole::Job)
            && matches!(container.status, ContainerStatus::Running | ContainerStatus::Unknown)
            && container.job_id.is_some_and(|job| !has_slot(&job) && !is_exiting(job))
    };
    facts.containers.into_iter().flatten().filter(is_lingering).count()
}
