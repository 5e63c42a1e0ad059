//! Whether FullJobs can run now: the engine's probe, at most a second old for whoever decides on it.
//!
//! Owns the cached answer. Never guesses: an answer that is too old is asked for again.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use crate::{
    clock::Clock,
    engine::{Engine, ReadinessReason, SandboxReadiness},
};

/// A create decides on a state at most this old (contract: api, Identity).
const FRESH: Duration = Duration::from_secs(1);

/// The sandbox, or the operator's choice to have none.
pub struct Sandbox {
    kind: Kind,
    clock: Clock,
    known: Mutex<Option<Known>>,
}

enum Kind {
    Engine(Arc<dyn Engine>),
    Disabled,
}

struct Known {
    state: SandboxReadiness,
    at: Duration,
}

impl Sandbox {
    /// On an engine.
    pub fn on(engine: Arc<dyn Engine>, clock: Clock) -> Self {
        Self { kind: Kind::Engine(engine), clock, known: Mutex::new(None) }
    }

    /// None, by the operator's explicit choice.
    pub fn disabled(clock: Clock) -> Self {
        Self { kind: Kind::Disabled, clock, known: Mutex::new(None) }
    }

    /// The engine, where there is one.
    pub fn engine(&self) -> Option<&Arc<dyn Engine>> {
        match &self.kind {
            Kind::Engine(engine) => Some(engine),
            Kind::Disabled => None,
        }
    }

    /// The state, at most a second old. Callers at the same time share one probe.
    pub async fn state(&self) -> SandboxReadiness {
        let Kind::Engine(engine) = &self.kind else {
            return SandboxReadiness::NotReady {
                reason: ReadinessReason::DisabledByConfig,
                detail: "the operator has set GANTRY_SANDBOX=disabled".to_owned(),
            };
        };
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref()
            && self.clock.monotonic().saturating_sub(known.at) < FRESH
        {
            return known.state.clone();
        }
        let state = engine.probe().await;
        let changed = known.as_ref().is_none_or(|known| known.state != state);
        if changed {
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
        // Counted from the end of the probe: a slow engine is not asked again at once.
        *known = Some(Known { state: state.clone(), at: self.clock.monotonic() });
        state
    }

    /// Forgets the cached answer: after an engine error.
    pub async fn doubt(&self) {
        *self.known.lock().await = None;
    }
}
