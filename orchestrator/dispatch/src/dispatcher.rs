//! The control loop that makes containers match the database: when woken, it collects the facts, plans, and hands out
//! the actions. Wakes carry no data. What a plan needs of jobs is in memory (`open_jobs`); of the database it reads only
//! the end of a job whose container is still there, the budgets of users while jobs are queued, and the tool calls of a job
//! that has made no progress for long.

pub(crate) mod engine_watch;
pub(crate) mod executor;
mod snapshot;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use protocol::JobId;
use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::snapshot::{Conditions, Snapshot};
use super::{
    ActionExecutor, AttemptKey, Liveness,
    plan::{Plan, PlanLimits, StartPolicy, Subject},
};
use domain::{budget::DayLimits, job::OpenJob};
use engine::{ReadinessReason, SandboxReadiness};
use store::StoreError;
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
    /// The pending jobs' messages do not say that they wait for the sandbox.
    messages_cleared: bool,
    /// The sandbox's state at the last plan.
    seen_sandbox: Option<SandboxReadiness>,
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
            messages_cleared: false,
            seen_sandbox: None,
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
                () = self.executor.sandbox.changed(self.seen_sandbox.as_ref()) => {}
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
        self.seen_sandbox = self.executor.sandbox.published();
        let snapshot = self.snapshot().await?;
        let start_policy = self.start_policy(&snapshot).await;
        let now = self.executor.clock.now();
        let over_budget = if snapshot.has_queued_jobs() {
            self.executor.store.users_over_budget(now, &self.day_limits).await?
        } else {
            HashMap::new()
        };
        let conditions = Conditions { now, start_policy, busy, over_budget: &over_budget, limits: self.limits };
        Ok((snapshot.plan(conditions), snapshot.is_empty()))
    }

    /// Lists containers, run directories and jobs. Containers come before jobs: a job that ends in between is then seen
    /// as ended, and never as one whose container vanished.
    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let executor = &self.executor;
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
        executor.jobs.ensure_read(&executor.store).await?;
        // Twice what may run: the first jobs of a user's queue may be in their backoff, no more of them than may run.
        let pending_per_user = self.limits.container_slots.per_user.max(self.limits.host_slots.per_user) * 2;
        let mut listed = executor.jobs.list(pending_per_user);
        executor.register_attempts(&mut listed).await?;
        executor.attempts.drop_ended(&executor.jobs);
        let attempts = executor.attempts.facts();
        let mut waiting_for_tools = HashSet::new();
        for job in listed.jobs.iter().filter(|job| job.is_running()) {
            let attempt = attempts.get(&AttemptKey { job: job.id, attempt: job.attempt });
            if let Some(attempt) = attempt
                && self.waits_for_tool(job, attempt.liveness).await?
            {
                waiting_for_tools.insert(job.id);
            }
        }
        let open: HashSet<JobId> = listed.jobs.iter().map(|job| job.id).collect();
        let mut ended = HashMap::new();
        for job in containers.iter().flatten().filter_map(|container| container.job_id) {
            if open.contains(&job) || listed.unreadable.contains(&job) {
                continue;
            }
            match executor.store.ended_at(job).await {
                Ok(at) => ended.extend(at.map(|at| (job, at))),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => executor.set_unreadable(&mut listed, job, &error),
            }
        }
        Ok(Snapshot { containers, run_dirs, listed, attempts, ended, waiting_for_tools })
    }

    /// Whether a job without progress waits for a tool in its own container. Read only when it makes a difference.
    async fn waits_for_tool(&self, job: &OpenJob, liveness: Liveness) -> Result<bool, StoreError> {
        if job.is_stuck() || liveness.since_progress < self.limits.stuck_after {
            return Ok(false);
        }
        self.executor.store.waits_for_tool(job.id, job.attempt).await
    }

    /// Whether attempts may start, by the published state of the sandbox and the free space; while they may not, the
    /// queued jobs' messages say why. Never waits for a probe: it requests one, whose result wakes the loop.
    async fn start_policy(&mut self, snapshot: &Snapshot) -> StartPolicy {
        let (sandbox, has_queued_jobs) = (&self.executor.sandbox, snapshot.has_queued_jobs());
        if has_queued_jobs || snapshot.has_stuck_jobs() {
            sandbox.refresh();
        }
        let message = match &self.seen_sandbox {
            Some(SandboxReadiness::Ready(_)) => {
                self.free_space.ensure_available(0).err().map(|error| format!("waiting: {error}"))
            }
            Some(SandboxReadiness::NotReady { reason, .. }) => Some(waiting_message(*reason).to_owned()),
            // The first probe is in progress.
            None => return StartPolicy::Wait,
        };
        let is_ready = message.is_none();
        if has_queued_jobs && !(is_ready && self.messages_cleared) {
            match self.executor.store.explain_pending(message.as_deref()).await {
                Ok(()) => self.messages_cleared = is_ready,
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
