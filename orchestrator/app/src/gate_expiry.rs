//! Lets gates expire: reads the pending ones whose time is over, and resolves them.

use std::sync::Arc;

use base::clock::Clock;
use store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The task that lets gates expire.
pub(super) struct GateExpiry {
    pub(super) store: Store,
    pub(super) clock: Clock,
}

impl GateExpiry {
    /// Polls at each tick until `drain` fires. Without expired gates a poll reads one index entry.
    pub(super) async fn run(self, tick: Arc<Notify>, drain: CancellationToken) {
        loop {
            match self.store.expire_gates(self.clock.now()).await {
                Ok(0) => {}
                Ok(gates) => tracing::info!(gates, "gates expired"),
                // Not fatal, since the database may be busy: the next poll retries.
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "gates could not expire"),
            }
            tokio::select! {
                () = drain.cancelled() => return,
                () = tick.notified() => {}
            }
        }
    }
}
