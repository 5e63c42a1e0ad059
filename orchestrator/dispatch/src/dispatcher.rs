//! The control loop that makes containers match the database: when woken, it collects the facts, plans, and hands out
//! the actions. Wakes carry no data.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use protocol::{JobId, JobState};
use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::{
    ActionExecutor, AttemptKey, Liveness,
    plan::{Action, ContainerIndex, Facts, JobFacts, Plan, PlanLimits, StartPolicy, Subject, plan},
};
use domain::{budget::DayLimits, job::JobRecord};
use engine::{ContainerView, ReadinessReason, SandboxReadiness};
use store::{StoreError, Unfinished};
use workspace::FreeSpace;

/// Longest time between two plans while a job or container exists, so that a lost engine event delays a plan at most
/// this long.
const TICK: Duration = Duration::from_secs(1);
/// Longest time between two plans while there is none. The process's ticks wake it more often.
const IDLE_TICK: Duration = Duration::from_secs(30);

/// Wakes the dispatcher. Cheap; several wakes before the next plan are one.
#[derive(Debug, Clone, Default)]
pub struct DispatcherWaker(Arc<Notify>);

impl DispatcherWaker {
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Waits for the next wake; one that came since the last call counts.
    pub(super) async fn woken(&self) {
        self.0.notified().await;
    }
}

pub struct Dispatcher {
    executor: Arc<ActionExecutor>,
    free_space: FreeSpace,
    day_limits: DayLimits,
    limits: PlanLimits,
    waker: DispatcherWaker,
    reported: ReportedConditions,
}

/// Conditions that were reported before, so that each is reported once.
#[derive(Debug, Default)]
struct ReportedConditions {
    /// The pending jobs' messages do not say that they wait for the sandbox.
    messages_cleared: bool,
    /// The sandbox's state at the last plan.
    sandbox: Option<SandboxReadiness>,
}

/// Containers and jobs as they were read.
struct Snapshot {
    /// None if the engine does not answer.
    containers: Option<Vec<ContainerView>>,
    run_dirs: Vec<String>,
    /// Monotonic time before the jobs were read.
    read_at: Duration,
    jobs: Vec<JobRecord>,
    /// Open jobs with an invalid row.
    unreadable: HashSet<JobId>,
    /// When the jobs of containers that are not among `jobs` ended.
    ended: HashMap<JobId, DateTime<Utc>>,
}

impl Snapshot {
    fn has_queued_jobs(&self) -> bool {
        self.jobs.iter().any(|job| job.state() == JobState::Pending && !job.is_held())
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.containers.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Dispatcher {
    /// A dispatcher that has `executor` execute its actions, and starts nothing while `free_space` is below its floor.
    pub fn new(
        executor: ActionExecutor,
        free_space: FreeSpace,
        day_limits: DayLimits,
        limits: PlanLimits,
        waker: DispatcherWaker,
    ) -> Self {
        Self {
            executor: Arc::new(executor),
            free_space,
            day_limits,
            limits,
            waker,
            reported: ReportedConditions::default(),
        }
    }

    /// Runs until the drain fires; then starts no action, waits for those in progress, and leaves containers running.
    pub async fn run(mut self, drain: CancellationToken) {
        let mut actions: JoinSet<Subject> = JoinSet::new();
        let mut busy: HashSet<Subject> = HashSet::new();
        while !drain.is_cancelled() {
            let (next, is_idle) = match self.plan(&busy).await {
                Ok(planned) => planned,
                // Not fatal: the database may be busy or full for a while. What runs continues.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot collect the facts of a plan");
                    (Plan::default(), false)
                }
            };
            for action in next.actions {
                let subject = action.subject();
                if busy.insert(subject.clone()) {
                    let executor = Arc::clone(&self.executor);
                    actions.spawn(async move {
                        executor.execute(action).await;
                        subject
                    });
                }
            }
            let tick = if is_idle { IDLE_TICK } else { TICK };
            let wait = next.replan_in.map_or(tick, |wait| wait.min(tick));
            tokio::select! {
                () = drain.cancelled() => {}
                () = self.waker.woken() => {}
                () = self.executor.sandbox.changed(self.reported.sandbox.as_ref()) => {}
                Some(done) = actions.join_next() => release(&mut busy, done),
                () = tokio::time::sleep(wait) => {}
            }
            while let Some(done) = actions.try_join_next() {
                release(&mut busy, done);
            }
        }
        while let Some(done) = actions.join_next().await {
            release(&mut busy, done);
        }
    }

    /// Collects the facts and plans. Also returns whether nothing is open.
    async fn plan(&mut self, busy: &HashSet<Subject>) -> Result<(Plan, bool), StoreError> {
        // Taken first: if an error returned earlier, `Sandbox::changed` would compare with an old state and wake the
        // loop at once.
        self.reported.sandbox = self.executor.sandbox.published();
        let mut snapshot = self.snapshot().await?;
        let (has_queued_jobs, is_idle) = (snapshot.has_queued_jobs(), snapshot.is_empty());
        let start_policy = self.start_policy(&snapshot.jobs, has_queued_jobs).await;
        let now = self.executor.clock.now();
        let over_budget = if has_queued_jobs {
            self.executor.store.users_over_budget(now, &self.day_limits).await?
        } else {
            HashMap::new()
        };
        let mut orphaned = self.executor.store.orphaned().await?;
        let jobs = self.job_facts(&mut snapshot, &mut orphaned).await?;
        let mut planned = plan(&Facts {
            now,
            start_policy,
            jobs: &jobs,
            orphaned_in_queue: &orphaned,
            containers: snapshot.containers.as_deref(),
            unreadable: &snapshot.unreadable,
            ended: &snapshot.ended,
            run_dirs: &snapshot.run_dirs,
            busy,
            over_budget: &over_budget,
            host_runs: &self.executor.attempts.jobs_run_here(),
            limits: self.limits,
        });
        // Of several jobs over their quota, the one that frees most space is stopped first.
        planned.actions.sort_by_key(|action| match action {
            Action::FailOverQuota { job } => {
                self.executor.attempts.over_quota(*job).map(|violation| Reverse(violation.bytes))
            }
            _ => None,
        });
        Ok((planned, is_idle))
    }

    /// Reads containers, run directories and jobs. Containers are listed before jobs are read: a job that ends in
    /// between is then seen as ended, and never as one whose container vanished.
    async fn snapshot(&mut self) -> Result<Snapshot, StoreError> {
        let executor = Arc::clone(&self.executor);
        let containers = match executor.engine.list().await {
            Ok(containers) => Some(containers),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot list the containers");
                None
            }
        };
        let run_dirs = executor.listeners.run_dirs().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the run directories");
            vec![]
        });
        let read_at = executor.clock.monotonic();
        // Twice what may run: the first jobs of a user's queue may be in their backoff, no more of them than may run.
        let pending_per_user =
            self.limits.container_slots.per_user.max(self.limits.host_slots.per_user).saturating_mul(2);
        let Unfinished { jobs, mut unreadable } = executor.store.unfinished(pending_per_user).await?;
        let open: HashSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let mut ended = HashMap::new();
        for job in containers.iter().flatten().filter_map(|container| container.job_id) {
            if open.contains(&job) || unreadable.contains(&job) {
                continue;
            }
            match executor.store.ended_at(job).await {
                Ok(at) => ended.extend(at.map(|at| (job, at))),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    executor.store.report_inconsistent_row(&error);
                    unreadable.insert(job);
                }
            }
        }
        Ok(Snapshot { containers, run_dirs, read_at, jobs, unreadable, ended })
    }

    /// Takes the jobs of a snapshot, and adds what the process knows of each. Jobs in `orphaned` are taken from it.
    async fn job_facts(
        &self,
        snapshot: &mut Snapshot,
        orphaned: &mut HashSet<JobId>,
    ) -> Result<Vec<JobFacts>, StoreError> {
        let attempts = &self.executor.attempts;
        let liveness = attempts.reconcile(&snapshot.jobs, &snapshot.unreadable, snapshot.read_at);
        let host_runs = attempts.host_runs();
        let (served, over_quota) = (attempts.served_containers(), attempts.over_quota_jobs());
        let waiting_for_child = attempts.jobs_waiting_for_child();
        let containers = ContainerIndex::new(snapshot.containers.as_deref().unwrap_or_default());
        let mut jobs = Vec::with_capacity(snapshot.jobs.len());
        for record in std::mem::take(&mut snapshot.jobs) {
            let liveness = liveness.get(&record.id).copied().unwrap_or_default();
            let facts = JobFacts::new(record, &containers);
            let (id, container) = (facts.record.id, facts.container.as_ref());
            jobs.push(JobFacts {
                is_served: container.is_some_and(|container| served.contains(&container.name)),
                host_run: host_runs.get(&AttemptKey { job: id, attempt: facts.record.attempt }).copied(),
                liveness,
                exceeds_quota: over_quota.contains(&id),
                waits_for_tool: self.waits_for_tool(&facts.record, liveness).await?,
                waits_for_child: waiting_for_child.contains(&id),
                is_orphaned: orphaned.remove(&id),
                ..facts
            });
        }
        Ok(jobs)
    }

    /// Whether a job without progress waits for a tool in its own container. Read only when it makes a difference.
    async fn waits_for_tool(&self, job: &JobRecord, liveness: Liveness) -> Result<bool, StoreError> {
        if job.state() != JobState::InProgress || liveness.since_progress < self.limits.stuck_after {
            return Ok(false);
        }
        self.executor.store.waits_for_tool(job.id, job.attempt).await
    }

    /// Whether attempts may start, by the published state of the sandbox and the free space; while they may not, the
    /// queued jobs' messages say why. Never waits for a probe: it requests one, whose result wakes the loop.
    async fn start_policy(&mut self, jobs: &[JobRecord], has_queued_jobs: bool) -> StartPolicy {
        let sandbox = &self.executor.sandbox;
        if has_queued_jobs || jobs.iter().any(|job| job.state() == JobState::Stuck) {
            sandbox.refresh();
        }
        let message = match &self.reported.sandbox {
            Some(SandboxReadiness::Ready(_)) => {
                self.free_space.ensure_available(0).err().map(|error| format!("waiting: {error}"))
            }
            Some(SandboxReadiness::NotReady { reason, .. }) => Some(waiting_message(*reason).to_owned()),
            // The first probe is in progress.
            None => return StartPolicy::Wait,
        };
        let is_ready = message.is_none();
        if has_queued_jobs && !(is_ready && self.reported.messages_cleared) {
            match self.executor.store.explain_pending(message.as_deref()).await {
                Ok(()) => self.reported.messages_cleared = is_ready,
                // Not fatal: the message is only informative.
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot update the messages of queued jobs"
                    );
                }
            }
        }
        match (sandbox.is_disabled(), is_ready) {
            (true, _) => StartPolicy::Disabled,
            (false, true) => StartPolicy::Allow,
            (false, false) => StartPolicy::Wait,
        }
    }
}

/// The message of a queued job while the sandbox is not ready. The details are for the operator, in `/readyz` and the
/// log.
const fn waiting_message(reason: ReadinessReason) -> &'static str {
    match reason {
        ReadinessReason::EngineUnreachable => "waiting: the container engine does not answer",
        ReadinessReason::ImageMissing => "waiting: the job image is not on the server",
        ReadinessReason::RuntimeMissing => "waiting: the container runtime is not on the server",
        ReadinessReason::PostureUnsupported => "waiting: the container engine cannot isolate jobs as required",
        ReadinessReason::DisabledByConfig => "waiting: the sandbox is disabled by the operator",
    }
}

fn release(busy: &mut HashSet<Subject>, done: Result<Subject, JoinError>) {
    match done {
        Ok(subject) => {
            busy.remove(&subject);
        }
        // Its subject would stay busy forever: the process ends, and the next one continues from the database.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
