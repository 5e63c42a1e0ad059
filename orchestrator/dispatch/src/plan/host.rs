//! Running jobs whose loop is in this process: cancelled, expired, stuck, or ended without a report.
//!
//! They need neither the engine nor the sandbox. Their worker cannot lose its connection, so there is no lease.

use super::{Action, Facts, JobFacts, Plan, failures, running};
use domain::job::AttemptFailure;

use crate::HostRunState;

/// Plans for an open job with host placement that no action works on.
pub(super) fn plan(facts: &Facts<'_>, job: &JobFacts<'_>, plan: &mut Plan) {
    let id = job.open.id;
    if job.open.is_stopping() {
        plan.actions.push(Action::Cancel { job: id });
    } else if job.is_orphaned {
        plan.actions.push(Action::CancelWithParent { job: id });
    } else if job.open.is_running() && !running::plan_wall_clock(job, plan) {
        plan_run(facts, job, plan);
    }
}

fn plan_run(facts: &Facts<'_>, job: &JobFacts<'_>, plan: &mut Plan) {
    match job.host_run {
        // An earlier process began it, and died with it.
        None => plan.actions.push(running::fail_attempt(job, AttemptFailure::orchestrator_restart())),
        Some(HostRunState::Ended) => plan.actions.push(running::fail_attempt(job, failures::host_run_ended())),
        Some(HostRunState::Running) if job.open.is_stuck() => {
            plan.actions.push(repair(facts, job));
        }
        Some(HostRunState::Running) => running::plan_progress(facts, job, plan),
    }
}

/// The next repair of a stuck job: first a message to its loop, then new attempts.
fn repair(facts: &Facts<'_>, job: &JobFacts<'_>) -> Action {
    let repairs = job.open.repair_attempts;
    if repairs >= facts.limits.max_repairs {
        return running::fail_attempt(job, failures::repairs_exhausted(job.open.stuck_message(), repairs));
    }
    let job = job.open.id;
    if repairs == 0 { Action::Nudge { job } } else { Action::StartAgain { job } }
}
