//! The plan as tables of cases, and properties of every plan.

mod host;
mod leftovers;
mod properties;
mod queue;
mod running;
mod slots;

use std::collections::{HashMap, HashSet};

use chrono::TimeDelta;
use protocol::{ContainerInfo, ContainerName, JobReason, JobState};
use rstest::rstest;

use super::*;
use domain::{
    budget::ExhaustedBudget,
    job::{
        JobRecord, OpenJob, Queued, Stage,
        sample::{self, now},
    },
};
use engine::{ContainerRole, ContainerStatus, ContainerView};

use crate::{HostRunState, Liveness};

const START_TIMEOUT: Duration = Duration::from_secs(40);
const LEASE: Duration = Duration::from_secs(30);
const STUCK_AFTER: Duration = Duration::from_mins(5);

fn job(user: &str, state: JobState, attempt: u32) -> JobRecord {
    let begun = attempt > 0;
    let mut job = sample::job(state).with_brief(|brief| brief.user_id = user.to_owned());
    let name = ContainerName::job(job.id, attempt).to_string();
    if let Stage::Running(running) = &mut job.stage {
        running.worker_seen_at = begun.then(now);
    }
    JobRecord {
        attempt,
        started_at: begun.then(now),
        last_activity_at: Some(now()),
        container: begun.then(|| ContainerInfo { name, ..ContainerInfo::default() }),
        ..job
    }
}

/// A pending job, after `attempt` attempts.
fn queued(attempt: u32, queued: Queued) -> JobRecord {
    JobRecord { stage: Stage::Queued(queued), ..job("a", JobState::Pending, attempt) }
}

/// A job of the parent's user, as a tool of the parent creates it.
fn child(parent: &JobRecord, state: JobState, attempt: u32) -> JobRecord {
    let link = parent.as_parent();
    job(&parent.brief.user_id, state, attempt).with_brief(|brief| {
        brief.parent_id = Some(link.id);
        brief.depth = link.depth + 1;
    })
}

/// A running job that is to be cancelled.
fn stopping(job: JobRecord) -> JobRecord {
    job.request_cancel(now(), None).unwrap().job
}

fn container_of(job: &JobRecord, attempt: u32, status: ContainerStatus) -> ContainerView {
    ContainerView {
        name: ContainerName::job(job.id, attempt).to_string(),
        id: "abc".to_owned(),
        job_id: Some(job.id),
        attempt,
        role: Some(ContainerRole::Job),
        status,
    }
}

/// The facts of a case; most have the defaults of [`Scene::of`].
struct Scene {
    now: DateTime<Utc>,
    start_policy: StartPolicy,
    unreadable: HashSet<JobId>,
    jobs: Vec<JobRecord>,
    containers: Option<Vec<ContainerView>>,
    ended: HashMap<JobId, DateTime<Utc>>,
    run_dirs: Vec<String>,
    served: HashSet<String>,
    host_runs: HashMap<JobId, HostRunState>,
    busy: HashSet<Subject>,
    over_quota: HashMap<JobId, u64>,
    liveness: HashMap<JobId, Liveness>,
    waiting_for_tools: HashSet<JobId>,
    waiting_for_children: HashSet<JobId>,
    orphaned: HashSet<JobId>,
    over_budget: HashMap<String, ExhaustedBudget>,
    max_parallel: usize,
    max_per_user: usize,
}

impl Scene {
    fn of(jobs: Vec<JobRecord>, containers: Vec<ContainerView>) -> Self {
        let served = containers.iter().map(|container| container.name.clone()).collect();
        Self {
            now: now(),
            start_policy: StartPolicy::Allow,
            unreadable: HashSet::new(),
            jobs,
            containers: Some(containers),
            ended: HashMap::new(),
            run_dirs: vec![],
            served,
            host_runs: HashMap::new(),
            busy: HashSet::new(),
            over_quota: HashMap::new(),
            liveness: HashMap::new(),
            waiting_for_tools: HashSet::new(),
            waiting_for_children: HashSet::new(),
            orphaned: HashSet::new(),
            over_budget: HashMap::new(),
            max_parallel: 5,
            max_per_user: 5,
        }
    }

    fn job_facts<'a>(&'a self, open: &'a [OpenJob]) -> Vec<JobFacts<'a>> {
        let containers = ContainerIndex::new(self.containers.as_deref().unwrap_or_default());
        let facts = |open: &'a OpenJob| {
            let id = open.id;
            let facts = JobFacts::new(open, &containers);
            JobFacts {
                is_served: facts.container.as_ref().is_some_and(|container| self.served.contains(&container.name)),
                host_run: self.host_runs.get(&id).copied(),
                liveness: self.liveness.get(&id).copied().unwrap_or_default(),
                over_quota_bytes: self.over_quota.get(&id).copied(),
                waits_for_tool: self.waiting_for_tools.contains(&id),
                waits_for_child: self.waiting_for_children.contains(&id),
                is_orphaned: self.orphaned.contains(&id),
                ..facts
            }
        };
        open.iter().map(facts).collect()
    }

    fn plan(&self) -> Plan {
        let open: Vec<OpenJob> = self.jobs.iter().map(|record| record.to_open().unwrap()).collect();
        plan(&Facts {
            now: self.now,
            start_policy: self.start_policy,
            jobs: &self.job_facts(&open),
            orphaned: &self.orphaned,
            containers: self.containers.as_deref(),
            unreadable: &self.unreadable,
            ended: &self.ended,
            run_dirs: &self.run_dirs,
            busy: &self.busy,
            over_budget: &self.over_budget,
            host_runs: &self
                .host_runs
                .iter()
                .filter(|(_, state)| **state == HostRunState::Running)
                .map(|(id, _)| *id)
                .collect(),
            limits: PlanLimits {
                container_slots: SlotLimits { total: self.max_parallel, per_user: self.max_per_user },
                host_slots: SlotLimits { total: 2, per_user: 1 },
                start_timeout: START_TIMEOUT,
                lease: LEASE,
                stuck_after: STUCK_AFTER,
                max_repairs: 3,
            },
        })
    }

    fn actions(&self) -> Vec<Action> {
        self.plan().actions
    }
}

const RUNNING: ContainerStatus = ContainerStatus::Running;

const fn exit(code: i64, oom_killed: bool) -> ContainerStatus {
    ContainerStatus::Exited { code, oom_killed }
}
