//! The seam to the record of what the loop does.

use std::future::Future;

use protocol::EventData;

/// The journal takes no more; the loop ends as stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal is closed")]
pub struct JournalClosed;

/// Takes events in order. Returns once the event is safely queued (bounded: it may wait), not once it is stored.
pub trait Journal: Send + Sync {
    /// Records one event.
    fn record(&self, event: EventData) -> impl Future<Output = Result<(), JournalClosed>> + Send;
}
