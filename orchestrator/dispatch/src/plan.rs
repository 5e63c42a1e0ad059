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

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::JobId;

pub use action::{Action, Subject};
pub use facts::{ContainerIndex, Facts, JobFacts, PlanLimits, SlotLimits, StartPolicy};
pub(super) use failures::{SANDBOX_DISABLED, vanished};

/// Actions, and when to plan again if nothing wakes the dispatcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The actions, to be executed in any order.
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
    leftovers::plan(facts, &mut plan);
    for job in facts.jobs.iter().filter(|job| !facts.is_busy(job.record.id)) {
        running::plan(facts, job, &mut plan);
    }
    let is_free = |id: &&JobId| !facts.is_busy(**id) && !facts.unreadable.contains(*id);
    for id in facts.orphaned_in_queue.iter().filter(is_free) {
        plan.actions.push(Action::CancelWithParent { job: *id });
    }
    queue::plan(facts, &mut plan);
    plan
}

#[cfg(test)]
mod tests;
