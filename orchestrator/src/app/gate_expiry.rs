//! Lets gates expire: looks for pending ones whose time is over, and resolves them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, store::Store};

/// Time between two looks. Gates live for hours, so a second is no delay; without expired gates a look reads one index entry.
const INTERVAL: Duration = Duration::from_secs(1);

/// The task that lets gates expire.
pub(super) struct GateExpiry {
    pub(super) store: Store,
    pub(super) clock: Clock,
}

impl GateExpiry {
    /// Runs until `drain` fires.
    pub(super) async fn run(self, drain: CancellationToken) {
        loop {
            match self.store.expire_gates(self.clock.now()).await {
                Ok(0) => {}
                Ok(gates) => tracing::info!(gates, "gates expired"),
                // Not fatal, since the database may be busy: the next look retries.
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "gates could not expire"),
            }
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }
}
