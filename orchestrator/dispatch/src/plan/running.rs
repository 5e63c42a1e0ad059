//! Jobs with an attempt in a container: cancelled, expired, over their quota, stuck, ended without a report, or to be
//! taken over.

use std::time::Duration;

use super::{Action, Facts, JobFacts, Plan, StartPolicy, failures, host};
use domain::job::AttemptFailure;
use engine::ContainerStatus;

/// Plans for an open job that no action works on. Of a queued one only what its parent's end requires.
pub(super) fn plan(facts: &Facts<'_>, job: &JobFacts<'_>, plan: &mut Plan) {
    let id = job.open.id;
    if job.open.is_on_host() {
        return host::plan(facts, job, plan);
    }
    if job.open.is_stopping() {
        if facts.containers.is_some() && !job.has_stale_container {
            plan.actions.push(Action::Cancel { job: id });
        }
        return;
    }
    if job.is_orphaned {
        plan.actions.push(Action::CancelWithParent { job: id });
        return;
    }
    if !job.open.is_running() || facts.containers.is_none() {
        return;
    }
    if plan_wall_clock(job, plan) {
        return;
    }
    if let Some(bytes) = job.over_quota_bytes {
        plan.actions.push(Action::FailOverQuota { job: id, bytes });
        return;
    }
    let status = job.container.as_ref().map(|container| container.status);
    // Unknown state: no action. A stale container is removed before anything else happens to its job.
    if status == Some(ContainerStatus::Unknown) || job.has_stale_container {
        return;
    }
    if job.open.is_stuck() {
        plan.actions.extend(repair(facts, job));
    } else {
        plan_attempt(facts, job, status, plan);
    }
}

/// Ends a job that has run for too long, or plans again when it has. Returns whether it is to end.
pub(super) fn plan_wall_clock(job: &JobFacts<'_>, plan: &mut Plan) -> bool {
    let timeout = Duration::from_secs(job.open.timeout_seconds);
    let is_over = job.liveness.job_age >= timeout;
    if is_over {
        plan.actions.push(Action::Expire { job: job.open.id });
    } else {
        plan.replan_in(timeout.saturating_sub(job.liveness.job_age));
    }
    is_over
}

/// Plans for an attempt that is not known to be stuck, by the status of its container.
fn plan_attempt(facts: &Facts<'_>, job: &JobFacts<'_>, status: Option<ContainerStatus>, plan: &mut Plan) {
    let id = job.open.id;
    match status {
        None => {
            // The exit code may have been recorded before the container was removed.
            let container = job.open.container.as_ref();
            let recorded = container.and_then(|container| container.exit);
            let failure =
                recorded.map_or_else(failures::vanished, |(code, oom_killed)| failures::exited(code, oom_killed));
            plan.actions.push(fail_attempt(job, failure));
        }
        Some(ContainerStatus::Created) if facts.start_policy == StartPolicy::Disabled => {
            plan.actions.push(fail_attempt(job, failures::sandbox_disabled()));
        }
        Some(ContainerStatus::Created) => plan.actions.push(Action::TakeOver { job: id }),
        Some(ContainerStatus::Exited { code, oom_killed }) => {
            plan.actions.push(fail_attempt(job, failures::exited(code, oom_killed)));
        }
        Some(ContainerStatus::Running) if !job.is_served => plan.actions.push(Action::TakeOver { job: id }),
        Some(ContainerStatus::Running) => {
            let has_called = job.open.has_worker_called();
            if has_called {
                plan_liveness(facts, job, plan);
            } else if job.liveness.attempt_age >= facts.limits.start_timeout {
                plan.actions.push(fail_attempt(job, failures::never_called(facts.limits.start_timeout)));
            } else {
                plan.replan_in(facts.limits.start_timeout.saturating_sub(job.liveness.attempt_age));
            }
        }
        // Handled by the caller.
        Some(ContainerStatus::Unknown) => {}
    }
}

pub(super) fn fail_attempt(job: &JobFacts<'_>, failure: AttemptFailure) -> Action {
    Action::FailAttempt { job: job.open.id, version: job.open.version(), failure }
}

/// A job whose worker runs is stuck when the worker is silent or has made no progress for too long, never because of
/// its age.
fn plan_liveness(facts: &Facts<'_>, job: &JobFacts<'_>, plan: &mut Plan) {
    let (lease, since_contact) = (facts.limits.lease, job.liveness.since_contact);
    if since_contact >= lease {
        let message = format!("its worker runs but has not called for {} s", since_contact.as_secs());
        plan.actions.push(Action::MarkStuck { job: job.open.id, message });
        return;
    }
    plan.replan_in(lease.saturating_sub(since_contact));
    plan_progress(facts, job, plan);
}

/// A job is stuck when it has made no progress for too long.
pub(super) fn plan_progress(facts: &Facts<'_>, job: &JobFacts<'_>, plan: &mut Plan) {
    // The tool's own time limit applies.
    if job.waits_for_tool {
        return;
    }
    let (stuck_after, since_progress) = (facts.limits.stuck_after, job.liveness.since_progress);
    if since_progress >= stuck_after {
        let message = format!("no progress for {} s", since_progress.as_secs());
        plan.actions.push(Action::MarkStuck { job: job.open.id, message });
        return;
    }
    plan.replan_in(stuck_after.saturating_sub(since_progress));
}

/// The next repair of a stuck job: first a message to its worker if that still calls, then new attempts. A new attempt
/// waits until attempts may start.
fn repair(facts: &Facts<'_>, job: &JobFacts<'_>) -> Option<Action> {
    let id = job.open.id;
    let repairs = job.open.repair_attempts;
    if repairs >= facts.limits.max_repairs {
        let failure = failures::repairs_exhausted(job.open.stuck_message(), repairs);
        return Some(fail_attempt(job, failure));
    }
    let is_running = job.container.as_ref().is_some_and(|container| container.status == ContainerStatus::Running);
    if repairs == 0 && is_running && job.liveness.since_contact < facts.limits.lease {
        return Some(Action::Nudge { job: id });
    }
    match facts.start_policy {
        StartPolicy::Allow => Some(Action::StartAgain { job: id }),
        StartPolicy::Wait => None,
        StartPolicy::Disabled => Some(fail_attempt(job, failures::sandbox_disabled())),
    }
}
