//! What to do: one pure function of the facts. Applying a decision twice is harmless, so a fact may be a moment old.
//!
//! Never does anything, never asks anything: time, jobs, containers and limits come as arguments.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{JobId, JobReason, JobState};

use crate::{
    dispatch::Liveness,
    domain::{
        budget::Spent,
        job::{AttemptFailure, JobRecord, Stage},
    },
    engine::{ContainerRole, ContainerStatus, ContainerView},
};

/// Between attempts 1 and 2 s pass (contract: jobs, "Attempt, lease, fencing").
const LONGEST_REST: TimeDelta = TimeDelta::seconds(4);
/// A worker that has reported leaves by itself; longer than this it is not waited for (contract: gone within 2 s).
const POLITE: TimeDelta = TimeDelta::milliseconds(1_200);

/// Everything that a decision rests on.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Now.
    pub now: DateTime<Utc>,
    /// Whether new attempts may start: the sandbox is ready and the process is not draining.
    pub may_start: bool,
    /// Whether the operator wants no sandbox: what runs is looked after to its end, and nothing else will ever start.
    pub disabled: bool,
    /// Every job that runs, and of the pending ones at least those that could start.
    pub jobs: &'a [JobRecord],
    /// Every container of this instance; none when the engine cannot say.
    pub containers: Option<&'a [ContainerView]>,
    /// Open jobs whose row makes no sense: nothing is done about them, their containers and their run folders.
    pub unreadable: &'a HashSet<JobId>,
    /// When the jobs of containers ended that are not among `jobs`; absent = no such job.
    pub ended: &'a HashMap<JobId, DateTime<Utc>>,
    /// Run folders on disk, by name.
    pub folders: &'a [String],
    /// Containers whose socket is being served.
    pub served: &'a HashSet<String>,
    /// What an earlier decision is still working on.
    pub busy: &'a HashSet<Subject>,
    /// Jobs whose workspace is over its limit.
    pub overfull: &'a HashSet<JobId>,
    /// Signs of life of the jobs that have begun.
    pub liveness: &'a HashMap<JobId, Liveness>,
    /// Jobs that wait for a tool in their own container.
    pub at_tools: &'a HashSet<JobId>,
    /// Open jobs whose parent was cancelled or failed.
    pub orphaned: &'a HashSet<JobId>,
    /// Users whose budget of today is used up.
    pub spent: &'a HashMap<String, Spent>,
    /// How much may run.
    pub limits: PlanLimits,
}

/// How much may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLimits {
    /// At once.
    pub max_parallel: usize,
    /// At once for one user.
    pub max_parallel_per_user: usize,
    /// From the attempt's start to the worker's first call.
    pub start_timeout: Duration,
    /// A worker that is silent for longer has lost its lease.
    pub lease: Duration,
    /// No activity for longer is stuck.
    pub stuck_after: Duration,
    /// Repairs before a stuck job fails.
    pub max_repairs: u32,
}

/// What a decision is about; at most one is at work on a subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A job and its current container.
    Job(JobId),
    /// A container that belongs to no open job, or a folder without a container.
    Container(String),
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Begin the next attempt.
    Start {
        /// Of this job.
        job: JobId,
    },
    /// Go on with an attempt that exists: serve its socket, start what was only created.
    Resume {
        /// Of this job.
        job: JobId,
    },
    /// The attempt is over without a report.
    Settle {
        /// Of this job.
        job: JobId,
        /// How.
        death: AttemptFailure,
    },
    /// Nothing is heard or seen of it.
    Stick {
        /// Of this job.
        job: JobId,
        /// For people.
        message: String,
    },
    /// Ask a stuck job's worker to go on.
    Nudge {
        /// Of this job.
        job: JobId,
    },
    /// Begin a stuck job's next attempt, from what is recorded.
    StartAgain {
        /// Of this job.
        job: JobId,
    },
    /// It may not begin: its user's budget of today is used up.
    Refuse {
        /// This job.
        job: JobId,
        /// Which budget.
        spent: Spent,
    },
    /// It can never begin: the operator wants no sandbox.
    FailUnavailable {
        /// This job.
        job: JobId,
    },
    /// Its parent ended: cancel it.
    Orphan {
        /// This job.
        job: JobId,
    },
    /// Stop what there is and mark it cancelled.
    Cancel {
        /// This job.
        job: JobId,
    },
    /// Its wall clock has run out: stop it and mark it failed.
    Expire {
        /// This job.
        job: JobId,
    },
    /// Its workspace is over its limit: freeze it, kill it without grace and mark it failed.
    Evict {
        /// This job.
        job: JobId,
    },
    /// Remove a container that belongs to no open attempt, with its folder.
    Remove {
        /// Its name.
        container: String,
    },
    /// Remove a run folder that has no container.
    Sweep {
        /// Its name.
        folder: String,
    },
}

impl Action {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Start { job }
            | Self::Resume { job }
            | Self::Settle { job, .. }
            | Self::Stick { job, .. }
            | Self::Nudge { job }
            | Self::StartAgain { job }
            | Self::Refuse { job, .. }
            | Self::FailUnavailable { job }
            | Self::Orphan { job }
            | Self::Cancel { job }
            | Self::Expire { job }
            | Self::Evict { job } => Subject::Job(*job),
            Self::Remove { container } => Subject::Container(container.clone()),
            Self::Sweep { folder } => Subject::Container(folder.clone()),
        }
    }

    /// What a trace calls it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "job.start",
            Self::Resume { .. } => "job.resume",
            Self::Settle { .. } => "job.settle",
            Self::Stick { .. } => "job.stick",
            Self::Nudge { .. } => "job.nudge",
            Self::StartAgain { .. } => "job.start_again",
            Self::Refuse { .. } => "job.refuse",
            Self::FailUnavailable { .. } => "job.fail_unavailable",
            Self::Orphan { .. } => "job.orphan",
            Self::Cancel { .. } => "job.cancel",
            Self::Expire { .. } => "job.expire",
            Self::Evict { .. } => "job.evict",
            Self::Remove { .. } => "container.remove",
            Self::Sweep { .. } => "folder.remove",
        }
    }
}

/// Decisions, and when to look again though nothing woke us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be applied in any order.
    pub actions: Vec<Action>,
    /// At the latest.
    pub look_again_in: Option<Duration>,
}

impl Plan {
    fn look_again_at(&mut self, now: DateTime<Utc>, at: DateTime<Utc>) {
        self.look_again_in((at - now).to_std().unwrap_or(Duration::ZERO));
    }

    fn look_again_in(&mut self, wait: Duration) {
        self.look_again_in = Some(self.look_again_in.map_or(wait, |known| known.min(wait)));
    }
}

/// Decides.
pub fn plan(facts: &Facts<'_>) -> Plan {
    let mut plan = Plan::default();
    let by_job: HashMap<JobId, &JobRecord> = facts.jobs.iter().map(|job| (job.id, job)).collect();
    if let Some(containers) = facts.containers {
        for container in containers {
            plan_stray(facts, &by_job, container, &mut plan);
        }
        plan_folders(facts, &by_job, containers, &mut plan);
    }
    for job in facts.jobs.iter().filter(|job| !facts.busy.contains(&Subject::Job(job.id))) {
        plan_open(facts, job, &mut plan);
    }
    // Those far back in the queue or held are not among the jobs here.
    for id in facts.orphaned.iter().filter(|id| !by_job.contains_key(id)) {
        if !facts.busy.contains(&Subject::Job(*id)) {
            plan.actions.push(Action::Orphan { job: *id });
        }
    }
    plan_starts(facts, &mut plan);
    plan
}

/// The container of a job's current attempt.
fn current<'a>(facts: &'a Facts<'_>, job: &JobRecord) -> Option<&'a ContainerView> {
    let containers = facts.containers?;
    containers.iter().find(|c| c.job_id == Some(job.id) && c.attempt == job.attempt && job.attempt > 0)
}

/// An attempt before this one has a container yet, which could not be removed when this one began. It goes first, and until it is
/// gone nothing else happens to the job.
fn overtaken_lives(facts: &Facts<'_>, job: &JobRecord) -> bool {
    facts.containers.into_iter().flatten().any(|c| c.job_id == Some(job.id) && c.attempt < job.attempt)
}

/// A container that belongs to no open attempt goes; a worker that has just reported gets a moment to leave by itself.
fn plan_stray(facts: &Facts<'_>, by_job: &HashMap<JobId, &JobRecord>, container: &ContainerView, plan: &mut Plan) {
    if container.role == Some(ContainerRole::Probe) || facts.busy.contains(&Subject::Container(container.name.clone()))
    {
        return;
    }
    if let Some(job) = container.job_id {
        if facts.busy.contains(&Subject::Job(job)) || facts.unreadable.contains(&job) {
            return;
        }
        if let Some(record) = by_job.get(&job)
            && record.attempt == container.attempt
            && matches!(record.state(), JobState::InProgress | JobState::Stuck)
        {
            return;
        }
        let ended = facts.ended.get(&job).map(|at| *at + POLITE);
        if container.status == ContainerStatus::Running
            && let Some(until) = ended.filter(|until| *until > facts.now && *until <= facts.now + POLITE)
        {
            plan.look_again_at(facts.now, until);
            return;
        }
    }
    plan.actions.push(Action::Remove { container: container.name.clone() });
}

fn plan_folders(facts: &Facts<'_>, by_job: &HashMap<JobId, &JobRecord>, containers: &[ContainerView], plan: &mut Plan) {
    let wanted: HashSet<&str> = by_job
        .values()
        .filter(|job| facts.busy.contains(&Subject::Job(job.id)) || job.state() != JobState::Pending)
        .filter_map(|job| job.container.as_ref().map(|container| container.name.as_str()))
        .chain(containers.iter().map(|container| container.name.as_str()))
        .collect();
    // A start under way makes its folder before its row can be seen here.
    let starting = facts.busy.iter().any(|subject| matches!(subject, Subject::Job(_)));
    for folder in facts.folders {
        let busy = facts.busy.contains(&Subject::Container(folder.clone()));
        let unreadable = facts.unreadable.iter().any(|id| folder.contains(&id.to_string()));
        if !starting && !busy && !unreadable && !wanted.contains(folder.as_str()) {
            plan.actions.push(Action::Sweep { folder: folder.clone() });
        }
    }
}

/// An open job that nothing is at work on.
fn plan_open(facts: &Facts<'_>, job: &JobRecord, plan: &mut Plan) {
    let id = job.id;
    if job.is_stopping() {
        if facts.containers.is_some() && !overtaken_lives(facts, job) {
            plan.actions.push(Action::Cancel { job: id });
        }
        return;
    }
    if facts.orphaned.contains(&id) {
        plan.actions.push(Action::Orphan { job: id });
        return;
    }
    if !matches!(job.state(), JobState::InProgress | JobState::Stuck) || facts.containers.is_none() {
        return;
    }
    let liveness = facts.liveness.get(&id).copied().unwrap_or_default();
    let timeout = Duration::from_secs(job.brief.limits.timeout_seconds);
    if liveness.job_age >= timeout {
        plan.actions.push(Action::Expire { job: id });
        return;
    }
    plan.look_again_in(timeout.saturating_sub(liveness.job_age));
    if facts.overfull.contains(&id) {
        plan.actions.push(Action::Evict { job: id });
        return;
    }
    // Nothing is done on a guess.
    let is_unknown = current(facts, job).is_some_and(|container| container.status == ContainerStatus::Unknown);
    if is_unknown || overtaken_lives(facts, job) {
        return;
    }
    if job.state() == JobState::Stuck {
        let action = repair(facts, job, liveness);
        // While the sandbox is not ready a new attempt waits.
        if facts.may_start || !matches!(action, Action::StartAgain { .. }) {
            plan.actions.push(action);
        }
        return;
    }
    let Some(container) = current(facts, job) else {
        // How it ended may have been written down before it was removed.
        let ended = job.container.as_ref().and_then(|container| Some((container.exit_code?, container.oom_killed?)));
        let death = ended.map_or_else(vanished, |(code, oom_killed)| exited(code, oom_killed));
        plan.actions.push(Action::Settle { job: id, death });
        return;
    };
    match container.status {
        ContainerStatus::Created if facts.disabled => {
            plan.actions.push(Action::Settle { job: id, death: unavailable() });
        }
        ContainerStatus::Created => plan.actions.push(Action::Resume { job: id }),
        ContainerStatus::Exited { code, oom_killed } => {
            plan.actions.push(Action::Settle { job: id, death: exited(code, oom_killed) });
        }
        ContainerStatus::Running if !facts.served.contains(&container.name) => {
            plan.actions.push(Action::Resume { job: id });
        }
        ContainerStatus::Running if job.running().is_some_and(|running| running.worker_seen_at.is_none()) => {
            if liveness.attempt_age >= facts.limits.start_timeout {
                plan.actions.push(Action::Settle { job: id, death: silent(facts.limits.start_timeout) });
            } else {
                plan.look_again_in(facts.limits.start_timeout.saturating_sub(liveness.attempt_age));
            }
        }
        ContainerStatus::Running => plan_live(facts, job, liveness, plan),
        // Seen above.
        ContainerStatus::Unknown => {}
    }
}

/// A job whose worker runs: stuck when the worker is silent, or when it has not got anywhere for too long. Never for how
/// long it has been at it.
fn plan_live(facts: &Facts<'_>, job: &JobRecord, liveness: Liveness, plan: &mut Plan) {
    let (lease, stuck_after) = (facts.limits.lease, facts.limits.stuck_after);
    let stick = |message: String| Action::Stick { job: job.id, message };
    if liveness.since_contact >= lease {
        plan.actions
            .push(stick(format!("its worker runs but has not called for {} s", liveness.since_contact.as_secs())));
        return;
    }
    plan.look_again_in(lease.saturating_sub(liveness.since_contact));
    if facts.at_tools.contains(&job.id) {
        return;
    }
    if liveness.since_progress >= stuck_after {
        plan.actions.push(stick(format!("nothing has happened for {} s", liveness.since_progress.as_secs())));
        return;
    }
    plan.look_again_in(stuck_after.saturating_sub(liveness.since_progress));
}

/// A worker that can hear is asked to go on, once; after that, and for one that cannot, a new attempt.
fn repair(facts: &Facts<'_>, job: &JobRecord, liveness: Liveness) -> Action {
    if job.repair_attempts >= facts.limits.max_repairs {
        let message = match job.message() {
            Some(message) => format!("{message}, after {} repairs", job.repair_attempts),
            None => format!("stuck after {} repairs", job.repair_attempts),
        };
        let death = AttemptFailure { reason: JobReason::Stuck, message, infrastructure: false };
        return Action::Settle { job: job.id, death };
    }
    let hears = liveness.since_contact < facts.limits.lease
        && current(facts, job).is_some_and(|container| container.status == ContainerStatus::Running);
    if job.repair_attempts == 0 && hears {
        Action::Nudge { job: job.id }
    } else if facts.disabled {
        Action::Settle { job: job.id, death: unavailable() }
    } else {
        Action::StartAgain { job: job.id }
    }
}

/// Pending jobs by priority, then age, as far as the slots reach.
fn plan_starts(facts: &Facts<'_>, plan: &mut Plan) {
    if facts.disabled {
        let waits = |job: &&JobRecord| {
            let is_free = !facts.busy.contains(&Subject::Job(job.id)) && !facts.orphaned.contains(&job.id);
            job.state() == JobState::Pending && !job.is_held() && !job.is_stopping() && is_free
        };
        plan.actions.extend(facts.jobs.iter().filter(waits).map(|job| Action::FailUnavailable { job: job.id }));
        return;
    }
    if !facts.may_start {
        return;
    }
    let mut running = count_lingering(facts);
    let mut per_user: HashMap<&str, usize> = HashMap::new();
    let mut waiting: Vec<&JobRecord> = vec![];
    for job in facts.jobs {
        if job.state() != JobState::Pending || facts.busy.contains(&Subject::Job(job.id)) {
            running += 1;
            *per_user.entry(&job.brief.user_id).or_default() += 1;
        } else if !job.is_stopping() && !job.is_held() {
            let not_before = match &job.stage {
                Stage::Queued(queued) => queued.not_before,
                _ => None,
            };
            match not_before {
                // Longer than any rest: the clock was set back, and the job has rested enough.
                Some(at) if at > facts.now && at <= facts.now + LONGEST_REST => plan.look_again_at(facts.now, at),
                _ => match facts.spent.get(&job.brief.user_id) {
                    Some(spent) => plan.actions.push(Action::Refuse { job: job.id, spent: *spent }),
                    None => waiting.push(job),
                },
            }
        }
    }
    waiting.sort_by_key(|job| (Reverse(job.brief.priority), job.id));
    for job in waiting {
        if running >= facts.limits.max_parallel {
            break;
        }
        let mine = per_user.entry(&job.brief.user_id).or_default();
        // While an old attempt's container is not confirmed gone, no retry starts.
        let old = job.attempt > 0
            && facts.containers.is_none_or(|all| all.iter().any(|container| container.job_id == Some(job.id)));
        if *mine < facts.limits.max_parallel_per_user && !old {
            *mine += 1;
            running += 1;
            plan.actions.push(Action::Start { job: job.id });
        }
    }
}

/// Containers that still run though their jobs have ended: a slot is free only when its container is gone. One whose worker
/// has just reported does not count, since it leaves by itself in a moment.
fn count_lingering(facts: &Facts<'_>) -> usize {
    let has_slot: HashSet<JobId> = facts
        .jobs
        .iter()
        .filter(|job| job.state() != JobState::Pending || facts.busy.contains(&Subject::Job(job.id)))
        .map(|job| job.id)
        .collect();
    let leaves = |job: JobId| {
        let ended = facts.ended.get(&job).is_some_and(|at| *at + POLITE > facts.now && *at <= facts.now);
        ended && !facts.busy.contains(&Subject::Job(job))
    };
    let lingers = |container: &&ContainerView| {
        matches!(container.status, ContainerStatus::Running | ContainerStatus::Unknown)
            && container.job_id.is_some_and(|job| !has_slot.contains(&job) && !leaves(job))
    };
    facts.containers.into_iter().flatten().filter(|c| c.role == Some(ContainerRole::Job)).filter(lingers).count()
}

/// The operator has switched the sandbox off.
fn unavailable() -> AttemptFailure {
    AttemptFailure { reason: JobReason::SandboxUnavailable, message: UNAVAILABLE.to_owned(), infrastructure: false }
}

/// What a job is told that can never begin.
pub(super) const UNAVAILABLE: &str = "the sandbox is disabled by the operator";

/// Its container is gone.
pub(super) fn vanished() -> AttemptFailure {
    AttemptFailure {
        reason: JobReason::WorkerLost,
        message: "the container is gone and its worker never reported".to_owned(),
        infrastructure: true,
    }
}

/// 128 + SIGKILL: how a process looks that the kernel killed for memory.
const SIGKILLED: i64 = 137;

fn exited(code: i64, oom_killed: bool) -> AttemptFailure {
    match (oom_killed, code) {
        (true, SIGKILLED) => AttemptFailure {
            reason: JobReason::OomKilled,
            message: "the worker was killed for memory; raise limits.memory_mb or ask for less at once".to_owned(),
            infrastructure: false,
        },
        (_, 0) => AttemptFailure {
            reason: JobReason::WorkerLost,
            message: "the worker ended without a report".to_owned(),
            infrastructure: true,
        },
        _ => AttemptFailure {
            reason: JobReason::WorkerCrashed,
            message: format!("the worker ended with exit code {code} and without a report"),
            infrastructure: false,
        },
    }
}

fn silent(after: Duration) -> AttemptFailure {
    AttemptFailure {
        reason: JobReason::StartTimeout,
        message: format!("the worker did not call within {} s of its start", after.as_secs()),
        infrastructure: true,
    }
}

#[cfg(test)]
mod tests;
