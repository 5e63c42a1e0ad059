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
use tokio::{sync::Notify, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Overfull, Pulse, Sandbox, Signs, Sockets,
    apply::Hands,
    plan::{Action, Facts, Plan, PlanLimits, Subject, plan},
};
use crate::{
    auth::WorkerTokens,
    clock::Clock,
    domain::{budget::DayLimits, job::JobRecord},
    engine::{Engine, SandboxReadiness},
    store::{Store, StoreError},
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
    pub sockets: Arc<Sockets>,
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
    /// What the sweep found.
    pub overfull: Overfull,
    /// Below its floor nothing starts.
    pub space: FreeSpace,
    /// Who is alive.
    pub pulse: Pulse,
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
    overfull: Overfull,
    space: FreeSpace,
    pulse: Pulse,
    day_limits: DayLimits,
    limits: PlanLimits,
    wake: Wake,
}

impl Dispatcher {
    /// On an engine.
    pub fn new(settings: DispatcherSettings, engine: Arc<dyn Engine>, wake: Wake) -> Self {
        let hands = Hands {
            store: settings.store,
            sandbox: settings.sandbox,
            engine,
            sockets: settings.sockets,
            workspaces: settings.workspaces,
            auth: settings.auth,
            clock: settings.clock,
            pulse: settings.pulse.clone(),
            overfull: settings.overfull.clone(),
            metrics: settings.metrics,
            logs: settings.logs,
            lease: settings.lease,
        };
        let (overfull, space, pulse) = (settings.overfull, settings.space, settings.pulse);
        let (day_limits, limits) = (settings.day_limits, settings.limits);
        Self { hands: Arc::new(hands), overfull, space, pulse, day_limits, limits, wake }
    }

    /// Runs until told to drain; then starts nothing more, lets what is at work finish, and leaves containers running.
    pub async fn run(self, drain: CancellationToken) {
        let mut at_work: JoinSet<Subject> = JoinSet::new();
        let mut busy: HashSet<Subject> = HashSet::new();
        // What an earlier process told pending jobs may no longer be so.
        let mut reported_ready = false;
        while !drain.is_cancelled() {
            let (next, open) = match self.look(&busy, &mut reported_ready).await {
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
    async fn look(&self, busy: &HashSet<Subject>, reported_ready: &mut bool) -> Result<(Plan, bool), StoreError> {
        let hands = &self.hands;
        let containers = match hands.engine.list().await {
            Ok(containers) => Some(containers),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the engine cannot say what runs");
                None
            }
        };
        let folders = hands.sockets.folders().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the run folders");
            vec![]
        });
        let jobs = hands.store.unfinished(self.limits.max_parallel_per_user).await?;
        let pending = jobs.iter().any(|job| job.state == JobState::Pending && !job.held);
        let may_start = pending && self.ready(reported_ready).await;
        let open: HashSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let mut ended = HashMap::new();
        for job in containers.iter().flatten().filter_map(|container| container.job_id) {
            if !open.contains(&job)
                && let Some(at) = hands.store.ended_at(job).await?
            {
                ended.insert(job, at);
            }
        }
        let now = hands.clock.now();
        let signs = self.pulse.look(&jobs, now);
        let at_tools = self.at_tools(&jobs, &signs).await?;
        let spent = if pending { hands.store.spent_days(now, &self.day_limits).await? } else { HashMap::new() };
        let orphaned = hands.store.orphaned().await?;
        let mut decided = plan(&Facts {
            now,
            may_start,
            jobs: &jobs,
            containers: containers.as_deref(),
            ended: &ended,
            folders: &folders,
            served: &hands.sockets.served(),
            busy,
            overfull: &self.overfull.jobs(),
            signs: &signs,
            at_tools: &at_tools,
            orphaned: &orphaned,
            spent: &spent,
            limits: self.limits,
        });
        // Where several are over their disk limit, what frees most goes first.
        decided.actions.sort_by_key(|action| match action {
            Action::Evict { job } => self.overfull.violation(*job).map(|violation| Reverse(violation.bytes)),
            _ => None,
        });
        let anything = !jobs.is_empty() || containers.is_none_or(|all| !all.is_empty());
        Ok((decided, anything))
    }

    /// Which of the jobs that look stuck wait for a tool of their own. The tool's time limit is what ends that.
    async fn at_tools(&self, jobs: &[JobRecord], signs: &HashMap<JobId, Signs>) -> Result<HashSet<JobId>, StoreError> {
        let mut at_tools = HashSet::new();
        let idle = |job: &&JobRecord| signs.get(&job.id).is_some_and(|signs| signs.idle >= self.limits.stuck_after);
        for job in jobs.iter().filter(|job| job.state == JobState::InProgress).filter(idle) {
            if self.hands.store.waits_for_tool(job.id, job.attempt).await? {
                at_tools.insert(job.id);
            }
        }
        Ok(at_tools)
    }

    /// Whether the sandbox is; while it is not, pending jobs say why they wait.
    async fn ready(&self, reported: &mut bool) -> bool {
        let message = match self.space.check(0) {
            Err(error) => Some(format!("waiting: {error}")),
            Ok(()) => self.sandbox_message().await,
        };
        let ready = message.is_none();
        if ready != *reported || !ready {
            match self.hands.store.explain_pending(message.as_deref()).await {
                Ok(()) => *reported = ready,
                // For people only: a database that is busy for a while, or full, ends nothing for that.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "pending jobs are not told why they wait");
                }
            }
        }
        ready
    }

    /// Why nothing can start; none when the sandbox is ready.
    async fn sandbox_message(&self) -> Option<String> {
        let probe = timeout(Duration::from_secs(30), self.hands.sandbox.state()).await;
        match probe {
            Ok(SandboxReadiness::Ready(_)) => None,
            Ok(SandboxReadiness::NotReady { reason, detail }) => {
                Some(format!("waiting: {} ({detail})", reason.as_str()))
            }
            Err(_) => Some("waiting: engine_unreachable (the probe takes too long)".to_owned()),
        }
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
