//! The session's stop switch: thrown by whoever learns that the session must stop, with the cause.
//!
//! Owns which cause counts: the first, unless the orchestrator turns out to be out of reach for good. Never acts on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Why a session stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A signal, or the orchestrator's answer to a heartbeat: report `stopped`.
    Asked,
    /// The token is void or the attempt is fenced: nothing more may be done or reported.
    AttemptOver,
    /// The lease has been gone for longer than the worker's patience: there is nobody to report to.
    OrchestratorLost,
    /// Another process sends events in this worker's name: report `failed`.
    Impersonated,
    /// The orchestrator refuses the events of this worker: report `failed`.
    EventsRefused,
    /// No process can be started any more: report `pids_limit`.
    PidsExhausted,
}

impl StopCause {
    /// Whether there is nobody who would take a report.
    const fn is_final(self) -> bool {
        matches!(self, Self::AttemptOver | Self::OrchestratorLost)
    }
}

/// Shared by all parts of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSwitch {
    cause: Arc<Mutex<Option<StopCause>>>,
    token: CancellationToken,
}

impl StopSwitch {
    /// Stops the session.
    pub(crate) fn stop(&self, cause: StopCause) {
        let mut first = self.lock();
        if first.is_none_or(|first| cause.is_final() && !first.is_final()) {
            tracing::info!(?cause, "the session stops");
            *first = Some(cause);
        }
        drop(first);
        self.token.cancel();
    }

    /// The cause, once the switch was thrown.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        *self.lock()
    }

    /// Cancelled when the switch is thrown.
    pub(crate) const fn token(&self) -> &CancellationToken {
        &self.token
    }

    fn lock(&self) -> MutexGuard<'_, Option<StopCause>> {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_counts_unless_nobody_takes_a_report_any_more() {
        let stop = StopSwitch::default();
        assert_eq!(stop.cause(), None);
        stop.stop(StopCause::Asked);
        stop.stop(StopCause::PidsExhausted);
        assert_eq!(stop.cause(), Some(StopCause::Asked));
        stop.stop(StopCause::AttemptOver);
        stop.stop(StopCause::OrchestratorLost);
        stop.stop(StopCause::Asked);
        assert_eq!(stop.cause(), Some(StopCause::AttemptOver));
        assert!(stop.token().is_cancelled());
    }
}
