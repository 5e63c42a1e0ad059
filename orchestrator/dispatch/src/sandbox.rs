//! Whether jobs can run: the state that one task, the prober, finds by probing the engine, and publishes.
//!
//! Owns the published state and its age. A request never runs a probe and never cancels one; the dispatcher's loop
//! never waits for one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::clock::Clock;
use engine::{Engine, ReadinessReason, SandboxReadiness};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Maximum age of the state that a submission relies on.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Of the probes that end while a caller waits, the second began after the call: its result is used even if the engine
/// failed again meanwhile, so that no caller waits forever.
const MAX_PROBES_AWAITED: u32 = 2;

/// The state of the sandbox, as published by its [`Prober`]. Clones share it.
#[derive(Debug, Clone)]
pub struct Sandbox {
    clock: Clock,
    published: watch::Receiver<Option<Published>>,
    /// Capacity 1: a request that does not fit is served by the probe that is already requested.
    requests: mpsc::Sender<()>,
    /// Incremented whenever the published state may no longer hold.
    epoch: Arc<AtomicU64>,
    is_disabled: bool,
}

/// A published state.
#[derive(Debug, Clone)]
struct Published {
    state: SandboxReadiness,
    /// Monotonic time at the end of the probe, so that a slow engine is not probed again at once.
    at: Duration,
    /// The epoch at the beginning of the probe.
    epoch: u64,
}

impl Published {
    fn is_fresh(&self, clock: &Clock, epoch: &AtomicU64) -> bool {
        self.epoch == epoch.load(Ordering::Relaxed) && clock.monotonic().saturating_sub(self.at) < MAX_AGE
    }
}

/// Probes the engine on request, and publishes what it finds.
pub struct Prober {
    engine: Arc<dyn Engine>,
    clock: Clock,
    published: watch::Sender<Option<Published>>,
    requests: mpsc::Receiver<()>,
    epoch: Arc<AtomicU64>,
    is_disabled: bool,
}

impl Sandbox {
    /// The sandbox of an engine, with the prober that has to run for it.
    pub fn new(engine: Arc<dyn Engine>, clock: Clock) -> (Self, Prober) {
        Self::build(engine, clock, false)
    }

    /// A sandbox that the operator disabled. Its engine is never probed.
    pub fn disabled(engine: Arc<dyn Engine>, clock: Clock) -> (Self, Prober) {
        Self::build(engine, clock, true)
    }

    fn build(engine: Arc<dyn Engine>, clock: Clock, is_disabled: bool) -> (Self, Prober) {
        let (publish, published) = watch::channel(None);
        let (request, requests) = mpsc::channel(1);
        let epoch = Arc::new(AtomicU64::new(0));
        let sandbox =
            Self { clock: clock.clone(), published, requests: request, epoch: Arc::clone(&epoch), is_disabled };
        (sandbox, Prober { engine, clock, published: publish, requests, epoch, is_disabled })
    }

    /// Whether the operator disabled the sandbox.
    pub fn is_disabled(&self) -> bool {
        self.is_disabled
    }

    /// The state, at most `MAX_AGE` old. Concurrent callers share one probe, which continues if they go away.
    pub async fn state(&self) -> SandboxReadiness {
        if self.is_disabled {
            return disabled();
        }
        let mut published = self.published.clone();
        for probes_seen in 0_u32.. {
            if let Some(found) = published.borrow_and_update().as_ref()
                && (probes_seen >= MAX_PROBES_AWAITED || found.is_fresh(&self.clock, &self.epoch))
            {
                return found.state.clone();
            }
            self.request();
            if published.changed().await.is_err() {
                // The process drains: there will be no other state.
                break;
            }
        }
        self.published().unwrap_or_else(unknown)
    }

    /// The published state, whatever its age; none before the first probe has ended.
    pub fn published(&self) -> Option<SandboxReadiness> {
        if self.is_disabled {
            return Some(disabled());
        }
        self.published.borrow().as_ref().map(|found| found.state.clone())
    }

    /// Requests a probe unless the published state is fresh. [`Sandbox::changed`] returns if it finds another state.
    pub fn refresh(&self) {
        let is_fresh = self.published.borrow().as_ref().is_some_and(|found| found.is_fresh(&self.clock, &self.epoch));
        if !self.is_disabled && !is_fresh {
            self.request();
        }
    }

    /// Returns when the published state differs from `seen`.
    pub async fn changed(&self, seen: Option<&SandboxReadiness>) {
        let mut published = self.published.clone();
        let other = |found: &Option<Published>| found.as_ref().is_some_and(|found| Some(&found.state) != seen);
        if self.is_disabled || published.wait_for(other).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Marks the published state as stale, after an engine error: the next caller waits for a new probe.
    pub(crate) fn mark_stale(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self) {
        // Full: a probe is requested already. Closed: the process drains.
        let _requested = self.requests.try_send(());
    }
}

impl Prober {
    /// Probes on request until the process drains. A probe in progress is completed, since it removes what it created.
    pub async fn run(mut self, drain: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled() => return,
                request = self.requests.recv() => if request.is_none() { return },
            }
            let is_fresh = |found: &Published| found.is_fresh(&self.clock, &self.epoch);
            // A request during the last probe is served by that probe.
            if !self.published.borrow().as_ref().is_some_and(is_fresh) {
                self.probe().await;
            }
        }
    }

    /// Probes once and publishes the state.
    pub async fn probe(&self) {
        if self.is_disabled {
            return;
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        let state = self.engine.probe().await;
        if self.published.borrow().as_ref().is_none_or(|known| known.state != state) {
            match &state {
                SandboxReadiness::Ready(facts) => tracing::info!(
                    engine = facts.engine,
                    version = facts.version,
                    runtime = facts.runtime,
                    "sandbox ready"
                ),
                SandboxReadiness::NotReady { reason, detail } => {
                    tracing::warn!(reason = reason.as_str(), detail, "sandbox not ready");
                }
            }
        }
        self.published.send_replace(Some(Published { state, at: self.clock.monotonic(), epoch }));
    }
}

fn disabled() -> SandboxReadiness {
    SandboxReadiness::NotReady {
        reason: ReadinessReason::DisabledByConfig,
        detail: "the operator has set GANTRY_SANDBOX=disabled".to_owned(),
    }
}

fn unknown() -> SandboxReadiness {
    SandboxReadiness::NotReady {
        reason: ReadinessReason::EngineUnreachable,
        detail: "the process drained before the engine was probed".to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests;
