//! Whether FullJobs can run now: the engine's probe, made by one task and read by everybody.
//!
//! Owns the published state and its age. A request never runs a probe and never cuts one off; the dispatcher's loop never
//! waits for one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    engine::{Engine, ReadinessReason, SandboxReadiness},
};

/// A create decides on a state at most this old (contract: api, Identity).
const FRESH: Duration = Duration::from_secs(1);
/// The second probe that ends after a question began after it: its answer holds, however often the engine fails meanwhile.
const PROBES_ENOUGH: u32 = 2;

/// The sandbox's state, for whoever decides on it.
#[derive(Debug, Clone)]
pub struct Sandbox {
    clock: Clock,
    published: watch::Receiver<Option<Published>>,
    /// One place: a request that finds it taken is answered by the same probe.
    requests: mpsc::Sender<()>,
    /// Counts the times that the state was called in question.
    doubts: Arc<AtomicU64>,
    is_disabled: bool,
}

/// A state and when it was found.
#[derive(Debug, Clone)]
struct Published {
    state: SandboxReadiness,
    /// Monotonic time at the end of the probe: a slow engine is not asked again at once.
    at: Duration,
    /// The count of doubts at the beginning of the probe.
    doubts: u64,
}

impl Published {
    fn is_fresh(&self, clock: &Clock, doubts: &AtomicU64) -> bool {
        self.doubts == doubts.load(Ordering::Relaxed) && clock.monotonic().saturating_sub(self.at) < FRESH
    }
}

/// The one that probes.
pub struct Prober {
    engine: Arc<dyn Engine>,
    clock: Clock,
    published: watch::Sender<Option<Published>>,
    requests: mpsc::Receiver<()>,
    doubts: Arc<AtomicU64>,
    is_disabled: bool,
}

impl Sandbox {
    /// On an engine, with the prober that has to run for it.
    pub fn on(engine: Arc<dyn Engine>, clock: Clock) -> (Self, Prober) {
        Self::build(engine, clock, false)
    }

    /// None, by the operator's explicit choice. The engine is left for what an earlier setting started.
    pub fn disabled(engine: Arc<dyn Engine>, clock: Clock) -> (Self, Prober) {
        Self::build(engine, clock, true)
    }

    fn build(engine: Arc<dyn Engine>, clock: Clock, is_disabled: bool) -> (Self, Prober) {
        let (publish, published) = watch::channel(None);
        let (request, requests) = mpsc::channel(1);
        let doubts = Arc::new(AtomicU64::new(0));
        let sandbox =
            Self { clock: clock.clone(), published, requests: request, doubts: Arc::clone(&doubts), is_disabled };
        (sandbox, Prober { engine, clock, published: publish, requests, doubts, is_disabled })
    }

    /// Whether the operator wants no full job to start.
    pub fn is_disabled(&self) -> bool {
        self.is_disabled
    }

    /// The state, at most a second old. Callers at the same time share one probe, which outlives them.
    pub async fn state(&self) -> SandboxReadiness {
        if self.is_disabled {
            return disabled();
        }
        let mut published = self.published.clone();
        for probes_seen in 0_u32.. {
            if let Some(found) = published.borrow_and_update().as_ref()
                && (probes_seen >= PROBES_ENOUGH || found.is_fresh(&self.clock, &self.doubts))
            {
                return found.state.clone();
            }
            self.request();
            if published.changed().await.is_err() {
                // The process drains: what was known last is all there will be.
                break;
            }
        }
        self.published().unwrap_or_else(unknown)
    }

    /// The state as it was found last, without waiting for anything; none before the first probe.
    pub fn published(&self) -> Option<SandboxReadiness> {
        if self.is_disabled {
            return Some(disabled());
        }
        self.published.borrow().as_ref().map(|found| found.state.clone())
    }

    /// Asks for a probe unless the published state is fresh. [`Sandbox::changed`] tells when it is there.
    pub fn refresh(&self) {
        let is_fresh = self.published.borrow().as_ref().is_some_and(|found| found.is_fresh(&self.clock, &self.doubts));
        if !self.is_disabled && !is_fresh {
            self.request();
        }
    }

    /// Returns when the state has been found to be another one than `seen`.
    pub async fn changed(&self, seen: Option<&SandboxReadiness>) {
        let mut published = self.published.clone();
        let other = |found: &Option<Published>| found.as_ref().is_some_and(|found| Some(&found.state) != seen);
        if self.is_disabled || published.wait_for(other).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The published state may no longer hold: an engine error came.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::Relaxed);
    }

    fn request(&self) {
        // Full: a probe is asked for already. Closed: the process drains.
        let _asked = self.requests.try_send(());
    }
}

impl Prober {
    /// Probes whenever somebody asks, until the process drains. A probe that has begun is ended first: it clears away
    /// what it made.
    pub async fn run(mut self, drain: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled() => return,
                asked = self.requests.recv() => if asked.is_none() { return },
            }
            let is_fresh = |found: &Published| found.is_fresh(&self.clock, &self.doubts);
            // Asked for while the probe before was at work: that one has answered it.
            if !self.published.borrow().as_ref().is_some_and(is_fresh) {
                self.probe().await;
            }
        }
    }

    /// Probes once and publishes what it found.
    pub async fn probe(&self) {
        if self.is_disabled {
            return;
        }
        let doubts = self.doubts.load(Ordering::Relaxed);
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
        self.published.send_replace(Some(Published { state, at: self.clock.monotonic(), doubts }));
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
        detail: "the engine was not asked before the process drained".to_owned(),
    }
}

#[cfg(test)]
mod tests;
