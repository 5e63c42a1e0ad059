//! The interface to the record of what the loop does.

use std::future::Future;

use protocol::AgentEvent;

/// The journal takes no more events; the loop then ends as stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal is closed")]
pub struct JournalClosed;

/// Takes events in order.
pub trait Journal: Send + Sync {
    /// Records one event. Returns when the event is queued, which may wait on a bounded queue, not when it is stored.
    fn record(&self, event: AgentEvent) -> impl Future<Output = Result<(), JournalClosed>> + Send;

    /// Returns when all events recorded before are stored.
    fn flush(&self) -> impl Future<Output = Result<(), JournalClosed>> + Send;
}
