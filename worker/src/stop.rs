//! Why a session stops before its work is done: one switch, thrown once, seen by everything.
//!
//! Owns the first cause; later ones change nothing. Never acts on it.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A signal, or the orchestrator's answer to a heartbeat: report `stopped`.
    Asked,
    /// The token is void or the attempt is fenced: nothing more may be done or said.
    AttemptOver,
    /// The lease has been gone for longer than the worker's patience: there is nobody to report to.
    OrchestratorLost,
    /// Another process sends events in this worker's name: report `failed`.
    Impersonated,
    /// No process can be started any more: report `pids_limit`.
    PidsExhausted,
}

/// Shared by all parts of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSwitch {
    cause: Arc<OnceLock<StopCause>>,
    token: CancellationToken,
}

impl StopSwitch {
    /// Throws it; the first cause stays.
    pub(crate) fn stop(&self, cause: StopCause) {
        if self.cause.set(cause).is_ok() {
            tracing::info!(?cause, "the session stops");
        }
        self.token.cancel();
    }

    /// The cause, once thrown.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        self.cause.get().copied()
    }

    /// Fires when it is thrown.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}
