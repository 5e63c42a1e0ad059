//! Whether the server can work: the facts of `/readyz` and `GET /api/status`, and the event when they change.
//!
//! Owns what "ready" means. Never probes the engine by itself: it takes what the prober has published.

use std::{sync::Arc, time::Duration};

use base::clock::Clock;
use chrono::{DateTime, Utc};
use engine::{ReadinessReason, SandboxReadiness};
use llm::Gateway;
use protocol::{DiskStatus, ModelStatus, ReadinessState, SandboxStatus, ServerStatus, SlotStatus};
use store::{Store, StoreError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use workspace::FreeSpace;

use crate::Sandbox;

/// How often the event is stored at most: each reader of events hears of it, and free space may waver about its limit.
const INTERVAL: Duration = Duration::from_secs(10);
const DISK_FULL: &str = "disk_full";
const MODEL_UNAVAILABLE: &str = "model_unavailable";

/// What the server needs to work. Clones share it.
#[derive(Clone)]
pub struct Readiness {
    pub sandbox: Arc<Sandbox>,
    pub gateway: Arc<Gateway>,
    pub free_space: FreeSpace,
    /// The model of a job that names none.
    pub model: String,
    /// Jobs that may run in containers at once.
    pub slots: u32,
    pub started_at: DateTime<Utc>,
}

impl Readiness {
    /// Whether the server can run jobs in a state of the sandbox.
    pub fn of(&self, sandbox: &SandboxReadiness) -> ReadinessState {
        let (sandbox_ready, unready, is_disabled) = match sandbox {
            SandboxReadiness::Ready(_) => (true, None, false),
            SandboxReadiness::NotReady { reason, .. } => {
                (false, Some(reason.as_str()), *reason == ReadinessReason::DisabledByConfig)
            }
        };
        // Without a sandbox no job needs the space, and disabled on purpose is not a failure.
        let has_space = is_disabled || self.free_space.ensure_available(0).is_ok();
        let model_ready = self.gateway.is_any_asked();
        let reason = unready
            .or_else(|| (!has_space).then_some(DISK_FULL))
            .or_else(|| (!model_ready).then_some(MODEL_UNAVAILABLE));
        ReadinessState {
            ready: (sandbox_ready || is_disabled) && has_space,
            sandbox_ready,
            model_ready,
            reason: reason.map(str::to_owned),
        }
    }

    /// The state of the server, by a state of the sandbox that is at most a second old.
    pub async fn status(&self, store: &Store, version: &str) -> Result<ServerStatus, StoreError> {
        let sandbox = self.sandbox.state().await;
        let ReadinessState { ready, sandbox_ready, model_ready, .. } = self.of(&sandbox);
        let (reason, message) = match sandbox {
            SandboxReadiness::Ready(_) => (None, None),
            SandboxReadiness::NotReady { reason, detail } => (Some(reason.as_str().to_owned()), Some(detail)),
        };
        let unasked = "the model providers failed; calls wait until one of them is asked again";
        let disk = self.free_space.read().ok();
        Ok(ServerStatus {
            ready,
            sandbox: SandboxStatus { ready: sandbox_ready, reason, message },
            model: ModelStatus {
                ready: model_ready,
                name: self.model.clone(),
                message: (!model_ready).then(|| unasked.to_owned()),
            },
            slots: SlotStatus { total: self.slots.into(), busy: store.count_at_work().await? },
            queued: store.count_queued().await?,
            disk: disk.map(|space| DiskStatus { free_bytes: space.free_bytes, total_bytes: space.total_bytes }),
            started_at: self.started_at,
            version: version.to_owned(),
        })
    }
}

/// The task that stores an event when readiness changes.
pub struct ReadinessWatch {
    pub readiness: Readiness,
    pub store: Store,
    pub clock: Clock,
}

impl ReadinessWatch {
    /// Looks at each tick until `drain` fires. Costs no statement while nothing changes.
    pub async fn run(self, tick: Arc<Notify>, drain: CancellationToken) {
        let (mut seen, mut next_at) = (None, self.clock.monotonic());
        loop {
            // Before the first probe has ended nothing is known.
            let state = self.readiness.sandbox.published().map(|sandbox| self.readiness.of(&sandbox));
            if state.is_some() && state != seen && self.clock.monotonic() >= next_at {
                seen = self.announce(state).await;
                next_at = self.clock.monotonic() + INTERVAL;
            }
            tokio::select! {
                () = drain.cancelled() => return,
                () = tick.notified() => {}
            }
        }
    }

    /// Returns what is known to be announced.
    async fn announce(&self, state: Option<ReadinessState>) -> Option<ReadinessState> {
        let state = state?;
        match self.store.announce_readiness(&state, self.clock.now()).await {
            Ok(()) => Some(state),
            // Not fatal, since the database may be busy: the next tick repeats it.
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a change of readiness could not be announced"
                );
                None
            }
        }
    }
}
