//! The interface to the record of what the loop does.

use std::future::{Future, ready};

use protocol::AgentEvent;

use crate::Unrecorded;

/// The journal takes no more events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The attempt has ended. The loop ends as stopped.
    #[error("the journal is closed")]
    Closed,
    /// Events cannot be stored, for this reason. The loop ends as failed.
    #[error("{0}")]
    Failed(String),
}

/// Takes events in order.
pub trait Journal: Send + Sync {
    /// Records one event. Returns when the event is queued, which may wait on a bounded queue, not when it is stored.
    fn record(&self, event: AgentEvent) -> impl Future<Output = Result<(), JournalError>> + Send;

    /// Returns when all events recorded before are stored: at once, where that is when they are recorded.
    fn flush(&self) -> impl Future<Output = Result<(), JournalError>> + Send {
        ready(Ok(()))
    }
}

impl Journal for Unrecorded {
    async fn record(&self, _: AgentEvent) -> Result<(), JournalError> {
        Ok(())
    }
}
