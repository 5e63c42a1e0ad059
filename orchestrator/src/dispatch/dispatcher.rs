//! The loop that makes containers match the database: woken, it reads the facts, decides, and hands out what is to be
//! done. Wakes carry no data.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use protocol::{JobId, JobState};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    AttemptRegistry, Liveness, Sandbox, WorkerListeners,
    apply::Hands,
    plan::{Action, Facts, Plan, PlanLimits, Subject, plan},
};
use crate::{
    auth::WorkerTokens,
    clock::Clock,
    domain::{budget::DayLimits, job::JobRecord},
    engine::{Engine, ReadinessReason, SandboxReadiness},
    store::{Store, StoreError, Unfinished},
    telemetry::metrics::Metrics,
    workspace::{FreeSpace, Workspaces},
};

/// The backstop while anything is open: no event of the engine or of ours should be needed twice.
const TICK: Duration = Duration::from_secs(1);
/// The backstop while nothing is.
const IDLE_TICK: Duration = Duration::from_secs(10);

/// Asks the dispatcher to look. Cheap, and any number of wakes is one.
#[derive(Debug, Clone, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// Look.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// What a dispatcher is made of.
pub struct DispatcherSettings {
    /// The truth.
    pub store: Store,
    /// Whether jobs can run.
    pub sandbox: Arc<Sandbox>,
    /// Where workers call.
    pub listeners: Arc<WorkerListeners>,
    /// The live attempts.
    pub attempts: Arc<AttemptRegistry>,
    /// Where they work.
    pub workspaces: Workspaces,
    /// Makes their tokens.
    pub auth: WorkerTokens,
    /// Time.
    pub clock: Clock,
    /// Where containers' output is kept.
    pub logs: PathBuf,
    /// A worker's lease.
    pub lease: Duration,
    /// Below its floor nothing starts.
    pub space: FreeSpace,
    /// What each user has for a day.
    pub day_limits: DayLimits,
    /// Where removals are counted.
    pub metrics: Metrics,
    /// How much may run.
    pub limits: PlanLimits,
}

/// The dispatcher.
pub struct Dispatcher {
    hands: Arc<Hands>,
    space: FreeSpace,
    day_limits: DayLimits,
    limits: PlanLimits,
    wake: Wake,
    seen: Seen,
}

/// What earlier looks have told, so that it is told once.
#[derive(Debug, Default)]
struct Seen {
    /// Whether pending jobs have been told that they no longer wait for the sandbox.
    reported_ready: bool,
    /// Jobs whose row makes no sense.
    unreadable: HashSet<JobId>,
    /// The sandbox's state at the last look.
    sandbox: Option<SandboxReadiness>,
}

impl Dispatcher {
    /// On an engine.
    pub fn new(settings: DispatcherSettings, engine: Arc<dyn Engine>, wake: Wake) -> Self {
        let hands = Hands {
            store: settings.store,
            sandbox: settings.sandbox,
            engine,
            listeners: settings.listeners,
            workspaces: settings.workspaces,
            auth: settings.auth,
            clock: settings.clock,
            attempts: settings.attempts,
            metrics: settings.metrics,
            logs: settings.logs,
            lease: settings.lease,
        };
        Self {
            hands: Arc::new(hands),
            space: settings.space,
            day_limits: settings.day_limits,
            limits: settings.limits,
            wake,
            seen: Seen::default(),
        }
    }

    /// Runs until told to drain; then starts nothing more, lets what is at work finish, and leaves containers running.
    pub async fn run(mut self, drain: CancellationToken) {
        let mut at_work: JoinSet<Subject> = JoinSet::new();
        let mut busy: HashSet<Subject> = HashSet::new();
        while !drain.is_cancelled() {
            let (next, open) = match self.look(&busy).await {
                Ok(seen) => seen,
                // A database that is busy for a while, or full, ends nothing: what runs goes on, and is looked at again.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the jobs could not be looked at");
                    (Plan { look_again_in: Some(TICK), ..Plan::default() }, true)
                }
            };
            for action in next.actions {
                let subject = action.subject();
                if busy.insert(subject.clone()) {
                    let hands = Arc::clone(&self.hands);
                    at_work.spawn(async move {
                        hands.apply(action).await;
                        subject
                    });
                }
            }
            let tick = if open { TICK } else { IDLE_TICK };
            let wait = next.look_again_in.map_or(tick, |wait| wait.min(tick));
            tokio::select! {
                () = drain.cancelled() => {}
                () = self.wake.0.notified() => {}
                () = self.hands.engine.changed() => {}
                () = self.hands.sandbox.changed(self.seen.sandbox.as_ref()) => {}
                Some(done) = at_work.join_next() => forget(&mut busy, done),
                () = tokio::time::sleep(wait) => {}
            }
            while let Some(done) = at_work.try_join_next() {
                forget(&mut busy, done);
            }
        }
        while let Some(done) = at_work.join_next().await {
            forget(&mut busy, done);
        }
    }

    /// Reads the facts and decides. Containers are listed before jobs are read: a job that ends in between is then seen
    /// as ended, and never as one whose container vanished.
    async fn look(&mut self, busy: &HashSet<Subject>) -> Result<(Plan, bool), StoreError> {
        let hands = Arc::clone(&self.hands);
        // Noted before anything can fail: a state that is not noted would wake the loop at once, again and again.
        self.seen.sandbox = hands.sandbox.published();
        let containers = match hands.engine.list().await {
            Ok(containers) => Some(containers),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the engine cannot say what runs");
                None
            }
        };
        let folders = hands.listeners.folders().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the run folders");
            vec![]
        });
        let read_at = hands.clock.monotonic();
        let Unfinished { jobs, unreadable } = hands.store.unfinished(self.limits.max_parallel_per_user).await?;
        let mut unreadable = self.note_unreadable(unreadable);
        let pending = jobs.iter().any(|job| job.state() == JobState::Pending && !job.is_held());
        let may_start = self.may_start(&jobs, pending).await;
        let open: HashSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let mut ended = HashMap::new();
        for job in containers.iter().flatten().filter_map(|container| container.job_id) {
            if open.contains(&job) || unreadable.contains(&job) {
                continue;
            }
            match hands.store.ended_at(job).await {
                Ok(at) => ended.extend(at.map(|at| (job, at))),
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => unreadable.extend(self.note_unreadable(vec![(job, error)])),
            }
        }
        let now = hands.clock.now();
        let liveness = hands.attempts.reconcile(&jobs, &unreadable, read_at);
        let at_tools = self.at_tools(&jobs, &liveness).await?;
        let spent = if pending { hands.store.spent_days(now, &self.day_limits).await? } else { HashMap::new() };
        let orphaned = hands.store.orphaned().await?;
        let mut decided = plan(&Facts {
            now,
            may_start,
            disabled: hands.sandbox.is_disabled(),
            unreadable: &unreadable,
            jobs: &jobs,
            containers: containers.as_deref(),
            ended: &ended,
            folders: &folders,
            served: &hands.attempts.served_containers(),
            busy,
            overfull: &hands.attempts.over_quota_jobs(),
            liveness: &liveness,
            at_tools: &at_tools,
            orphaned: &orphaned,
            spent: &spent,
            limits: self.limits,
        });
        // Where several are over their disk limit, what frees most goes first.
        decided.actions.sort_by_key(|action| match action {
            Action::Evict { job } => hands.attempts.over_quota(*job).map(|violation| Reverse(violation.bytes)),
            _ => None,
        });
        let anything = !jobs.is_empty() || containers.is_none_or(|all| !all.is_empty());
        Ok((decided, anything))
    }

    /// Which of the jobs that look stuck wait for a tool of their own. The tool's time limit is what ends that.
    async fn at_tools(
        &self,
        jobs: &[JobRecord],
        liveness: &HashMap<JobId, Liveness>,
    ) -> Result<HashSet<JobId>, StoreError> {
        let mut at_tools = HashSet::new();
        let idle = |job: &&JobRecord| {
            liveness.get(&job.id).is_some_and(|found| found.since_progress >= self.limits.stuck_after)
        };
        for job in jobs.iter().filter(|job| job.state() == JobState::InProgress).filter(idle) {
            if self.hands.store.waits_for_tool(job.id, job.attempt).await? {
                at_tools.insert(job.id);
            }
        }
        Ok(at_tools)
    }

    /// Whether new attempts may start, by the state that was published last and the free space; while they may not, pending
    /// jobs say why they wait. Never waits for a probe: one is asked for, and its answer wakes the loop.
    async fn may_start(&mut self, jobs: &[JobRecord], pending: bool) -> bool {
        let sandbox = &self.hands.sandbox;
        if pending || jobs.iter().any(|job| job.state() == JobState::Stuck) {
            sandbox.refresh();
        }
        let message = match &self.seen.sandbox {
            Some(SandboxReadiness::Ready(_)) => {
                self.space.ensure_available(0).err().map(|error| format!("waiting: {error}"))
            }
            Some(SandboxReadiness::NotReady { reason, .. }) => Some(waiting_for(*reason).to_owned()),
            // The first probe is at work.
            None => return false,
        };
        let ready = message.is_none();
        if pending && (ready != self.seen.reported_ready || !ready) {
            match self.hands.store.explain_pending(message.as_deref()).await {
                Ok(()) => self.seen.reported_ready = ready,
                // For people only: a database that is busy for a while, or full, ends nothing for that.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "pending jobs are not told why they wait");
                }
            }
        }
        ready
    }

    /// The ids of jobs whose row makes no sense. Each is told and counted once.
    fn note_unreadable(&mut self, unreadable: Vec<(JobId, StoreError)>) -> HashSet<JobId> {
        for (job, error) in &unreadable {
            if self.seen.unreadable.insert(*job) {
                let error: &dyn std::error::Error = error;
                tracing::error!(job.id = %job, error, "the row of this job makes no sense; the job is left alone");
                self.hands.metrics.inconsistent_job();
            }
        }
        unreadable.into_iter().map(|(job, _)| job).collect()
    }
}

/// What a pending job says while it waits. What exactly is wrong is the operator's to know, in `/readyz` and the log.
const fn waiting_for(reason: ReadinessReason) -> &'static str {
    match reason {
        ReadinessReason::EngineUnreachable => "waiting: the container engine does not answer",
        ReadinessReason::ImageMissing => "waiting: the job image is not on the server",
        ReadinessReason::RuntimeMissing => "waiting: the container runtime is not on the server",
        ReadinessReason::PostureUnsupported => "waiting: the container engine cannot isolate jobs as required",
        ReadinessReason::DisabledByConfig => "waiting: the sandbox is disabled by the operator",
    }
}

fn forget(busy: &mut HashSet<Subject>, done: Result<Subject, tokio::task::JoinError>) {
    match done {
        Ok(subject) => {
            busy.remove(&subject);
        }
        // An action that panicked leaves its subject busy for ever: better a process that ends and starts anew.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
