//! The watch on the engine's events about this instance's containers.
//!
//! Owns the event stream, its reconnection and backoff. Carries no data: an event only wakes the dispatcher, and marks
//! the container for inspection.

use std::time::Duration;

use chrono::DateTime;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::{Docker, client::Changes};
use crate::EngineError;

const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Without an event for this long the engine is pinged: an engine that hangs or a broken network does not end the
/// stream.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(15);

/// Maximum number of containers marked for inspection. The change of one that is dropped is found a list later.
const MAX_CHANGED_CONTAINERS: usize = 10_000;

/// The stream, or the state of reconnecting.
#[derive(Default)]
pub(super) struct Watch {
    stream: Option<Changes>,
    /// Streams lost and failed attempts since the last event.
    failures: u32,
    /// When the last event arrived. Kept here, not in the future, which a caller may drop.
    idle_since: Option<Instant>,
    not_before: Option<Instant>,
}

impl Watch {
    fn lost(&mut self) {
        self.stream = None;
        self.not_before = Some(Instant::now() + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

fn backoff(failures: u32) -> Duration {
    MIN_BACKOFF.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_BACKOFF)
}

impl Docker {
    /// Returns at the next event, when the stream is lost, or when it is (re)opened. Cancel-safe.
    pub(super) async fn next_change(&self) {
        let mut watch = self.watch.lock().await;
        let watch = &mut *watch;
        while let Some(stream) = watch.stream.as_mut() {
            let since = *watch.idle_since.get_or_insert_with(Instant::now);
            let event = tokio::time::timeout_at(since + IDLE_BEFORE_PING, stream.next()).await;
            watch.idle_since = None;
            match event {
                Ok(Some(Ok(id))) => {
                    watch.failures = 0;
                    let mut changed_containers = self.changed_containers.lock();
                    // Containers that were removed before the next list stay in it.
                    if changed_containers.len() >= MAX_CHANGED_CONTAINERS {
                        changed_containers.clear();
                    }
                    changed_containers.extend(id);
                }
                Ok(ended) => {
                    tracing::debug!(?ended, "the event stream ended");
                    watch.lost();
                }
                Err(_idle) if self.client.ping().await.is_ok() => continue,
                Err(_idle) => watch.lost(),
            }
            return;
        }
        loop {
            if let Some(moment) = watch.not_before {
                tokio::time::sleep_until(moment).await;
            }
            match self.subscribe().await {
                Ok(stream) => {
                    watch.stream = Some(stream);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot open the event stream");
                    watch.lost();
                }
            }
        }
    }

    /// The stream is opened at its first poll, so it starts at the engine's current time: events until then are
    /// included.
    async fn subscribe(&self) -> Result<Changes, EngineError> {
        self.client.ping().await?;
        let now = self.client.info().await?.system_time.unwrap_or_default();
        let since = DateTime::parse_from_rfc3339(&now)
            .map_err(|error| EngineError::Other(format!("cannot parse the engine's time {now:?}: {error}")))?;
        Ok(self.client.changes(&self.instance_label(), since.timestamp())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_to_its_limit() {
        let backoffs: Vec<u128> = [0, 1, 2, 4, 5, 40, u32::MAX].map(|n| backoff(n).as_millis()).to_vec();
        assert_eq!(backoffs, [200, 400, 800, 3200, 5000, 5000, 5000]);
    }
}
