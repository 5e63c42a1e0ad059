//! The session's stop switch: any part of a session can trigger it, with a cause.
//!
//! Owns which cause counts: the first, unless a later one means that no report can be delivered. Never acts on the
//! cause.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Why a session stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A signal, or a cancellation by the orchestrator: report `stopped`.
    Requested,
    /// The token is invalid or the attempt is fenced: nothing can be reported.
    AttemptEnded,
    /// The lease expired and the orchestrator stayed unreachable: nothing can be reported.
    OrchestratorUnreachable,
    /// Another process sent events in this worker's name: report `failed`.
    Impersonated,
    /// The orchestrator refuses the events of this worker: report `failed`.
    EventsRefused,
    /// The pids limit keeps processes from being started: report `pids_limit`.
    PidsExhausted,
}

impl StopCause {
    /// Whether no report can be delivered.
    const fn is_final(self) -> bool {
        matches!(self, Self::AttemptEnded | Self::OrchestratorUnreachable)
    }
}

/// The switch, shared by all parts of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopSwitch {
    cause: Arc<Mutex<Option<StopCause>>>,
    token: CancellationToken,
}

impl StopSwitch {
    /// Stops the session.
    pub(crate) fn stop(&self, cause: StopCause) {
        let mut first = self.cause.lock();
        if first.is_none_or(|first| cause.is_final() && !first.is_final()) {
            tracing::info!(?cause, "stopping the session");
            *first = Some(cause);
        }
        drop(first);
        self.token.cancel();
    }

    /// The cause, if the session has been stopped.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        *self.cause.lock()
    }

    /// Cancelled when the session is stopped.
    pub(crate) const fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_counts_unless_a_later_one_rules_out_a_report() {
        let stop = StopSwitch::default();
        assert_eq!(stop.cause(), None);
        stop.stop(StopCause::Requested);
        stop.stop(StopCause::PidsExhausted);
        assert_eq!(stop.cause(), Some(StopCause::Requested));
        stop.stop(StopCause::AttemptEnded);
        stop.stop(StopCause::OrchestratorUnreachable);
        stop.stop(StopCause::Requested);
        assert_eq!(stop.cause(), Some(StopCause::AttemptEnded));
        assert!(stop.token().is_cancelled());
    }
}
