//! Everything that a plan needs to know of containers, jobs and attempts, as of one moment, and the plan by it. Pure.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use protocol::JobId;

use crate::{
    AttemptKey, HostRunState,
    attempts::AttemptFacts,
    open_jobs::ListedJobs,
    plan::{ContainerIndex, Facts, JobFacts, Plan, PlanLimits, StartPolicy, Subject, plan},
};
use domain::budget::ExhaustedBudget;
use engine::ContainerView;

pub(crate) struct Snapshot {
    /// None if the engine does not answer.
    pub(crate) containers: Option<Vec<ContainerView>>,
    pub(crate) run_dirs: Vec<String>,
    pub(crate) listed: ListedJobs,
    pub(crate) attempts: HashMap<AttemptKey, AttemptFacts>,
    /// When the jobs of containers that are not listed ended.
    pub(crate) ended: HashMap<JobId, DateTime<Utc>>,
    /// Jobs without progress that wait for a tool in their own container.
    pub(crate) waiting_for_tools: HashSet<JobId>,
}

/// What a plan rests on besides a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct Conditions<'a> {
    pub(crate) now: DateTime<Utc>,
    pub(crate) start_policy: StartPolicy,
    /// Subjects of actions in progress.
    pub(crate) busy: &'a HashSet<Subject>,
    pub(crate) over_budget: &'a HashMap<String, ExhaustedBudget>,
    pub(crate) limits: PlanLimits,
}

impl Snapshot {
    pub(crate) fn has_queued_jobs(&self) -> bool {
        self.listed.jobs.iter().any(|job| !job.is_running() && !job.is_held())
    }

    pub(crate) fn has_stuck_jobs(&self) -> bool {
        self.listed.jobs.iter().any(|job| job.is_stuck())
    }

    /// Whether there is neither a job nor a container.
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.jobs.is_empty() && self.containers.as_ref().is_some_and(Vec::is_empty)
    }

    /// Plans the next actions.
    pub(crate) fn plan(&self, conditions: Conditions<'_>) -> Plan {
        let running = self.attempts.iter().filter(|(_, attempt)| attempt.host_run == Some(HostRunState::Running));
        plan(&Facts {
            now: conditions.now,
            start_policy: conditions.start_policy,
            jobs: &self.job_facts(),
            orphaned: &self.listed.orphaned,
            containers: self.containers.as_deref(),
            unreadable: &self.listed.unreadable,
            ended: &self.ended,
            run_dirs: &self.run_dirs,
            busy: conditions.busy,
            over_budget: conditions.over_budget,
            host_runs: &running.map(|(key, _)| key.job).collect(),
            limits: conditions.limits,
        })
    }

    /// The jobs with what the process knows of each.
    fn job_facts(&self) -> Vec<JobFacts<'_>> {
        let containers = ContainerIndex::new(self.containers.as_deref().unwrap_or_default());
        let with_attempt = |open| {
            let facts = JobFacts::new(open, &containers);
            let is_orphaned = self.listed.orphaned.contains(&open.id);
            let attempt = self.attempts.get(&AttemptKey { job: open.id, attempt: open.attempt });
            let Some(attempt) = attempt.filter(|_| open.is_running()) else {
                return JobFacts { is_orphaned, ..facts };
            };
            let served = attempt.served_container.as_deref();
            JobFacts {
                is_served: facts.container.is_some_and(|container| Some(container.name.as_str()) == served),
                host_run: attempt.host_run,
                liveness: attempt.liveness,
                over_quota_bytes: attempt.over_quota_bytes,
                waits_for_tool: self.waiting_for_tools.contains(&open.id),
                waits_for_child: attempt.waits_for_child,
                is_orphaned,
                ..facts
            }
        };
        self.listed.jobs.iter().map(|job| with_attempt(job)).collect()
    }
}
