//! Decides what to do next: one pure function of the facts. The executor checks each action against the job's row, so a
//! fact may be slightly out of date.
//!
//! Never acts and never queries: time, jobs, containers and limits are arguments.

mod action;
mod facts;
mod failures;
mod host;
mod leftovers;
mod queue;
mod running;
mod slots;

use std::{cmp::Reverse, time::Duration};

use chrono::{DateTime, Utc};
use protocol::JobId;

use facts::JobsById;

pub use action::{Action, Subject};
pub use facts::{ContainerIndex, Facts, JobFacts, PlanLimits, SlotLimits, StartPolicy};
pub(super) use failures::{SANDBOX_DISABLED, vanished};

/// Actions, and when to plan again if nothing wakes the dispatcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The actions, in the order in which they are begun.
    pub actions: Vec<Action>,
    /// The longest time until the next plan.
    pub replan_in: Option<Duration>,
}

impl Plan {
    fn replan_at(&mut self, now: DateTime<Utc>, at: DateTime<Utc>) {
        self.replan_in((at - now).to_std().unwrap_or(Duration::ZERO));
    }

    fn replan_in(&mut self, wait: Duration) {
        self.replan_in = Some(self.replan_in.map_or(wait, |known| known.min(wait)));
    }
}

/// Plans the next actions.
pub fn plan(facts: &Facts<'_>) -> Plan {
    let mut plan = Plan::default();
    let by_id: JobsById<'_> = facts.jobs.iter().map(|job| (job.open.id, job)).collect();
    leftovers::plan(facts, &by_id, &mut plan);
    for job in facts.jobs.iter().filter(|job| !facts.is_busy(job.open.id)) {
        running::plan(facts, job, &mut plan);
    }
    // Held or far back in a queue; the others were planned for one by one.
    let is_left = |id: &&JobId| !by_id.contains_key(*id) && !facts.is_busy(**id) && !facts.unreadable.contains(*id);
    for id in facts.orphaned.iter().filter(is_left) {
        plan.actions.push(Action::CancelWithParent { job: *id });
    }
    queue::plan(facts, &by_id, &mut plan);
    // Of several jobs over their quota, the one that frees most space is stopped first.
    plan.actions.sort_by_key(|action| match action {
        Action::FailOverQuota { bytes, .. } => Some(Reverse(*bytes)),
        _ => None,
    });
    plan
}

#[cfg(test)]
mod tests;
