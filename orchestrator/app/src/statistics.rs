//! Keeps the statistics of the database's tables.

use std::sync::Arc;

use store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Ticks between two refreshes: a day.
const HOURS: u32 = 24;

/// Refreshes the statistics at once and then each day until `drain` fires.
pub(super) async fn run(store: Store, hour: Arc<Notify>, drain: CancellationToken) {
    loop {
        match store.refresh_statistics().await {
            Ok(0) => {}
            Ok(tables) => tracing::debug!(tables, "the statistics of tables were refreshed"),
            // Not fatal, since the database may be busy: the next day retries.
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "statistics were not refreshed"),
        }
        for _ in 0..HOURS {
            tokio::select! {
                () = drain.cancelled() => return,
                () = hour.notified() => {}
            }
        }
    }
}
