//! The facts that a plan rests on, and how jobs are matched with their containers.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use protocol::{JobId, Placement};

use super::Subject;
use domain::{budget::ExhaustedBudget, job::OpenJob};
use engine::ContainerView;

use crate::{HostRunState, Liveness};

/// Everything that a plan rests on.
#[derive(Debug)]
pub struct Facts<'a> {
    pub now: DateTime<Utc>,
    /// Whether attempts may start.
    pub start_policy: StartPolicy,
    /// Every job with an attempt, and of the queued ones at least those that could start.
    pub jobs: &'a [JobFacts<'a>],
    /// Open jobs, also held ones and ones far back in a queue, whose parent has ended or is to be cancelled.
    pub orphaned: &'a HashSet<JobId>,
    /// Every container of this instance; none if the engine does not answer.
    pub containers: Option<&'a [ContainerView]>,
    /// Open jobs with an invalid row: they, their containers and their run directories are left alone.
    pub unreadable: &'a HashSet<JobId>,
    /// When the jobs of containers that are not among `jobs` ended; no entry if there is no such job.
    pub ended: &'a HashMap<JobId, DateTime<Utc>>,
    /// Names of the run directories on disk.
    pub run_dirs: &'a [String],
    /// Subjects of actions in progress.
    pub busy: &'a HashSet<Subject>,
    /// Users whose budget for the day is used up.
    pub over_budget: &'a HashMap<String, ExhaustedBudget>,
    /// Jobs with a loop in this process that has not ended.
    pub host_runs: &'a HashSet<JobId>,
    /// How much may run, and for how long.
    pub limits: PlanLimits,
}

/// The facts about one open job.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state")]
pub struct JobFacts<'a> {
    pub open: &'a OpenJob,
    /// The container of its current attempt, if the engine reports one.
    pub container: Option<&'a ContainerView>,
    /// A container of another attempt exists: one that could not be removed when the current attempt began.
    pub has_stale_container: bool,
    /// The socket of the current container is served.
    pub is_served: bool,
    /// How far the loop of its current attempt has got, if this process has begun it.
    pub host_run: Option<HostRunState>,
    /// When the current attempt was last heard from and last made progress.
    pub liveness: Liveness,
    /// Bytes in its workspace, if they exceed its disk quota.
    pub over_quota_bytes: Option<u64>,
    /// It waits for a tool in its own container.
    pub waits_for_tool: bool,
    /// A tool call of its worker waits for a child job.
    pub waits_for_child: bool,
    /// Its parent has ended or is to be cancelled.
    pub is_orphaned: bool,
}

/// Whether attempts may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPolicy {
    /// The sandbox is ready and there is disk space.
    Allow,
    /// Not at present: what could start waits.
    Wait,
    /// Never: the operator disabled the sandbox. Running attempts are supervised to their end.
    Disabled,
}

/// How many attempts of one placement may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    pub total: usize,
    pub per_user: usize,
}

/// How much may run, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLimits {
    pub container_slots: SlotLimits,
    /// Attempts whose loop runs in this process.
    pub host_slots: SlotLimits,
    /// Longest time from the start of an attempt to its worker's first call.
    pub start_timeout: Duration,
    /// A worker that has not called for this long has lost its lease.
    pub lease: Duration,
    /// A job without progress for this long is stuck.
    pub stuck_after: Duration,
    /// Repairs after which a stuck job fails.
    pub max_repairs: u32,
}

impl PlanLimits {
    pub(super) const fn slots(&self, placement: Placement) -> SlotLimits {
        match placement {
            Placement::Container => self.container_slots,
            Placement::Host => self.host_slots,
        }
    }
}

/// The listed jobs by id.
pub(super) type JobsById<'a> = HashMap<JobId, &'a JobFacts<'a>>;

impl Facts<'_> {
    /// Whether an action works on a job.
    pub(super) fn is_busy(&self, job: JobId) -> bool {
        self.busy.contains(&Subject::Job(job))
    }

    /// Whether an action works on a container or a run directory.
    pub(super) fn is_container_busy(&self, name: &str) -> bool {
        !self.busy.is_empty() && self.busy.contains(&Subject::Container(name.to_owned()))
    }
}

impl<'a> JobFacts<'a> {
    /// A job with its containers; everything else is as for a job that has just begun.
    pub fn new(open: &'a OpenJob, containers: &ContainerIndex<'a>) -> Self {
        let of_job = containers.0.get(&open.id).map(Vec::as_slice).unwrap_or_default();
        let is_current = |container: &&&ContainerView| open.attempt > 0 && container.attempt == open.attempt;
        Self {
            container: of_job.iter().find(is_current).copied(),
            has_stale_container: of_job.iter().any(|container| container.attempt != open.attempt),
            is_served: false,
            host_run: None,
            liveness: Liveness::default(),
            over_quota_bytes: None,
            waits_for_tool: false,
            waits_for_child: false,
            is_orphaned: false,
            open,
        }
    }
}

#[derive(Debug, Default)]
pub struct ContainerIndex<'a>(HashMap<JobId, Vec<&'a ContainerView>>);

impl<'a> ContainerIndex<'a> {
    /// Indexes a list of containers; those without a job are left out.
    pub fn new(containers: &'a [ContainerView]) -> Self {
        let mut index = Self::default();
        for container in containers {
            if let Some(job) = container.job_id {
                index.0.entry(job).or_default().push(container);
            }
        }
        index
    }
}
