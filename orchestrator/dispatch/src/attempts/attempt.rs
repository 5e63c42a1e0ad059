//! A live attempt of a job: what the process keeps of it in memory while its worker may call.
//!
//! Owns a copy of the job's record as the last committed transition left it. Nothing is written by this copy: every
//! write is fenced in the database by attempt and state.

use std::{sync::Arc, time::Duration};

use agent::RecordError;
use parking_lot::Mutex;
use protocol::{CallId, Completion, Execution, JobId, ToolCallReply};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    activity::{Activity, JobClock, Liveness},
    egress_meter::EgressMeter,
    host_run::{HostRun, HostRunState},
    job_limits::JobLimits,
    log_tails::LogTails,
};
use base::clock::Clock;
use domain::job::{JobRecord, WorkerSession};
use llm::metering::{Account, CallError, SingleFlight};

use crate::Violation;

/// Names one attempt of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    pub job: JobId,
    /// Its attempt, from 1.
    pub attempt: u32,
}

impl From<AttemptKey> for Execution {
    fn from(AttemptKey { job, attempt }: AttemptKey) -> Self {
        Self::new(job, attempt)
    }
}

/// Why an attempt's worker is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptStopCause {
    /// The job is being cancelled.
    Cancelled,
    Ended,
}

/// What a plan needs to know of an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttemptFacts {
    pub(crate) liveness: Liveness,
    /// The container whose socket is served.
    pub(crate) served_container: Option<Arc<str>>,
    /// The run of its loop, if this process has begun it.
    pub(crate) host_run: Option<HostRunState>,
    /// Bytes in its workspace, if it was found to exceed its quota.
    pub(crate) over_quota_bytes: Option<u64>,
    /// A tool call of its worker waits for a child job.
    pub(crate) waits_for_child: bool,
}

/// The result of a call, shared by all requests that wait for it.
type Shared<T, E> = Result<Arc<T>, E>;

#[derive(Debug)]
pub struct Attempt {
    key: AttemptKey,
    clock: Clock,
    /// As of the last transition that was committed.
    record: watch::Sender<Arc<JobRecord>>,
    /// Signalled when a prompt was stored.
    prompts: watch::Sender<()>,
    limits: Arc<JobLimits>,
    /// Held while events are stored, so that their texts are searched in the order in which they are stored.
    pub(crate) log_tails: tokio::sync::Mutex<LogTails>,
    /// Its connections to other hosts.
    pub egress: EgressMeter,
    pub model_calls: Arc<SingleFlight<CallId, Shared<Completion, CallError>>>,
    pub tool_calls: Arc<SingleFlight<CallId, Shared<ToolCallReply, RecordError>>>,
    state: Mutex<AttemptState>,
}

/// The state that changes without a transition.
#[derive(Debug)]
struct AttemptState {
    activity: Activity,
    session: WorkerSession,
    session_rejected: bool,
    newest_poll: CancellationToken,
    listener: Option<Listener>,
    over_quota: Option<Violation>,
    /// Tool calls that wait for a child job.
    child_waits: u32,
    /// The run of its loop, if this process runs it.
    host_run: Option<HostRun>,
}

/// The listener that serves the attempt's socket.
#[derive(Debug)]
struct Listener {
    container: Arc<str>,
    stop: CancellationToken,
}

impl Attempt {
    /// The attempt that `record` is at. `limits` are those of an earlier attempt of the job, if one is known.
    pub(super) fn new(record: &JobRecord, clock: &Clock, tasks: &TaskTracker, limits: Option<Arc<JobLimits>>) -> Self {
        let now = clock.monotonic();
        let limits =
            limits.unwrap_or_else(|| Arc::new(JobLimits::new(JobClock::new(record.started_at, clock.now(), now), now)));
        Self {
            key: AttemptKey { job: record.id, attempt: record.attempt },
            clock: clock.clone(),
            record: watch::Sender::new(Arc::new(record.clone())),
            prompts: watch::Sender::new(()),
            limits,
            log_tails: tokio::sync::Mutex::default(),
            egress: EgressMeter::default(),
            model_calls: SingleFlight::new(tasks.clone()),
            tool_calls: SingleFlight::new(tasks.clone()),
            state: Mutex::new(AttemptState {
                activity: Activity::new(now),
                session: record.session.clone(),
                session_rejected: record.session_rejected,
                newest_poll: CancellationToken::new(),
                listener: None,
                over_quota: None,
                child_waits: 0,
                host_run: None,
            }),
        }
    }

    /// Which attempt of which job.
    pub fn key(&self) -> AttemptKey {
        self.key
    }

    /// The job as the last committed transition left it. Its usage is older than that of the database.
    pub fn record(&self) -> Arc<JobRecord> {
        Arc::clone(&self.record.borrow())
    }

    /// Takes over a committed record, unless a newer one is known.
    pub(super) fn update(&self, record: &JobRecord) {
        self.record.send_if_modified(|known| {
            let is_newer = record.rev > known.rev;
            if is_newer {
                *known = Arc::new(record.clone());
            }
            is_newer
        });
    }

    /// Whether its worker may call.
    pub fn is_live(&self) -> bool {
        self.stop_cause() != Some(AttemptStopCause::Ended)
    }

    /// Why its worker is to stop, if it is.
    pub fn stop_cause(&self) -> Option<AttemptStopCause> {
        stop_cause(self.key, &self.record.borrow())
    }

    /// Returns once its worker is to stop.
    pub async fn stopped(&self) -> AttemptStopCause {
        let mut records = self.record.subscribe();
        loop {
            let cause = stop_cause(self.key, &records.borrow_and_update());
            if let Some(cause) = cause {
                return cause;
            }
            // The sender lives in `self`, so this cannot fail.
            let _ = records.changed().await;
        }
    }

    /// Whether a token with this SHA-256 is the attempt's and valid.
    pub fn accepts_token(&self, digest: &str) -> bool {
        let record = self.record.borrow();
        stop_cause(self.key, &record) != Some(AttemptStopCause::Ended) && record.token_hash() == Some(digest)
    }

    /// The session that a call must belong to, besides its token.
    pub fn session(&self) -> WorkerSession {
        self.state.lock().session.clone()
    }

    /// The session as the database has it now.
    pub fn set_session(&self, session: WorkerSession) {
        self.state.lock().session = session;
    }

    /// Whether a call without the attempt's session was recorded.
    pub fn is_session_rejection_recorded(&self) -> bool {
        self.state.lock().session_rejected
    }

    /// Records that a call without the attempt's session is in the events.
    pub fn session_rejection_recorded(&self) {
        self.state.lock().session_rejected = true;
    }

    /// Who pays for its model calls.
    pub fn account(&self) -> Account {
        let (record, key) = (self.record(), self.key);
        let (brief, limits) = (&record.brief, &record.brief.limits);
        Account {
            execution: key.into(),
            user: brief.user_id.clone(),
            model: brief.model.clone(),
            effort: brief.effort,
            title: brief.title.clone(),
            max_iterations: limits.max_iterations,
            has_budget: limits.max_tokens > 0 || limits.max_cost_usd > 0.0 || brief.parent_id.is_some(),
            has_cost_limit: limits.max_cost_usd > 0.0,
            limiter: self.limits.model_calls.clone(),
        }
    }

    pub fn limits(&self) -> &Arc<JobLimits> {
        &self.limits
    }

    /// Records that its worker called.
    pub fn record_contact(&self) {
        self.state.lock().activity.contact = self.clock.monotonic();
    }

    /// Records that it made progress.
    pub fn record_progress(&self) {
        self.state.lock().activity.progress = self.clock.monotonic();
    }

    /// Records a heartbeat, which is progress only when it reports a new iteration. Returns whether it does.
    pub fn record_iteration(&self, iteration: u32) -> bool {
        let now = self.clock.monotonic();
        self.state.lock().activity.record_iteration(iteration, now)
    }

    /// Counts a model or tool call as in flight for as long as the guard lives.
    pub fn start_call(self: &Arc<Self>) -> InFlightCall {
        self.state.lock().activity.calls_in_flight += 1;
        InFlightCall(Arc::clone(self))
    }

    /// Counts a tool call as waiting for a child job for as long as the guard lives. Meanwhile the job lends its slot.
    pub fn start_child_wait(self: &Arc<Self>) -> ChildWait {
        self.state.lock().child_waits += 1;
        ChildWait(Arc::clone(self))
    }

    pub(super) fn facts(&self, now: Duration) -> AttemptFacts {
        let state = self.state.lock();
        AttemptFacts {
            liveness: state.activity.liveness(now, self.limits.clock.age(now)),
            served_container: state.listener.as_ref().map(|listener| Arc::clone(&listener.container)),
            host_run: state.host_run.as_ref().map(HostRun::state),
            over_quota_bytes: state.over_quota.as_ref().map(|violation| violation.bytes),
            waits_for_child: state.child_waits > 0,
        }
    }

    /// Begins a long poll for prompts. Its token is cancelled once a newer one begins.
    pub fn begin_poll(&self) -> CancellationToken {
        let newest = CancellationToken::new();
        std::mem::replace(&mut self.state.lock().newest_poll, newest.clone()).cancel();
        newest
    }

    /// Signals stored prompts and transitions from now on.
    pub fn subscribe(&self) -> AttemptSubscription {
        AttemptSubscription { record: self.record.subscribe(), prompts: self.prompts.subscribe() }
    }

    pub(super) fn prompt_added(&self) {
        self.prompts.send_replace(());
    }

    /// Its socket is served, until `stop` is cancelled. A listener before this one is stopped.
    pub(crate) fn set_listener(&self, container: &str, stop: CancellationToken) {
        let old = self.state.lock().listener.replace(Listener { container: container.into(), stop });
        if let Some(old) = old {
            old.stop.cancel();
        }
    }

    /// Stops its listener if that serves the container.
    pub(super) fn stop_listener(&self, container: Option<&str>) {
        let mut state = self.state.lock();
        if let Some(listener) = state.listener.take_if(|own| container.is_none_or(|name| name == &*own.container)) {
            listener.stop.cancel();
        }
    }

    /// Whether the socket of a container is served.
    pub(super) fn is_served(&self) -> bool {
        self.state.lock().listener.is_some()
    }

    /// Begins the run of its loop in this process. `None`: it has begun before.
    pub(crate) fn begin_host_run(&self) -> Option<HostRun> {
        let mut state = self.state.lock();
        if state.host_run.is_some() {
            return None;
        }
        Some(state.host_run.insert(HostRun::default()).clone())
    }

    /// The run of its loop in this process, if one has begun.
    pub(crate) fn host_run(&self) -> Option<HostRun> {
        self.state.lock().host_run.clone()
    }

    pub(super) fn set_over_quota(&self, violation: Violation) {
        self.state.lock().over_quota = Some(violation);
    }

    pub(super) fn over_quota(&self) -> Option<Violation> {
        self.state.lock().over_quota.clone()
    }
}

fn stop_cause(key: AttemptKey, record: &JobRecord) -> Option<AttemptStopCause> {
    if record.attempt != key.attempt || !record.is_running() {
        Some(AttemptStopCause::Ended)
    } else {
        record.is_stopping().then_some(AttemptStopCause::Cancelled)
    }
}

/// A model or tool call in flight.
#[derive(Debug)]
pub struct InFlightCall(Arc<Attempt>);

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let activity = &mut self.0.state.lock().activity;
        activity.calls_in_flight -= 1;
        activity.progress = self.0.clock.monotonic();
    }
}

/// A tool call that waits for a child job.
#[derive(Debug)]
pub struct ChildWait(Arc<Attempt>);

impl Drop for ChildWait {
    fn drop(&mut self) {
        self.0.state.lock().child_waits -= 1;
    }
}

/// Signals what concerns an attempt's long poll.
#[derive(Debug)]
pub struct AttemptSubscription {
    record: watch::Receiver<Arc<JobRecord>>,
    prompts: watch::Receiver<()>,
}

impl AttemptSubscription {
    /// Returns once a prompt was stored or a transition committed since the last return.
    pub async fn changed(&mut self) {
        // An error means that the attempt was dropped, which its caller holds.
        tokio::select! {
            _ = self.record.changed() => {}
            _ = self.prompts.changed() => {}
        }
    }
}
