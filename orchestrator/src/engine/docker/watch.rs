//! The watch over what happens to this instance's containers.
//!
//! Owns the event stream, its reconnecting and the pause between tries. Carries no data: a hint that it is time to look, and at
//! which container closely.

use std::time::Duration;

use chrono::DateTime;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::{Docker, client::Changes};
use crate::engine::EngineError;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// An engine that hangs, or a network that swallows, breaks no stream: after such a silence it is asked.
const SILENCE_BEFORE_PING: Duration = Duration::from_secs(15);

/// Remembered of what moved; whoever is forgotten is seen a look later.
const MAX_MOVED: usize = 10_000;

/// The stream, or what is known of the tries to get one.
#[derive(Default)]
pub(super) struct Watch {
    stream: Option<Changes>,
    /// Streams lost and tries failed since the last event.
    failures: u32,
    /// Since when nothing was heard; kept here for the same reason as the next.
    silent_since: Option<Instant>,
    /// Kept here and not in the call, so that a caller who drops the call now and then still gets through.
    not_before: Option<Instant>,
}

impl Watch {
    fn lost(&mut self) {
        self.stream = None;
        self.not_before = Some(Instant::now() + pause_after(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_PAUSE)
}

impl Docker {
    /// The next event; the loss of the stream; or a stream that was made (anew). Safe to drop at any point.
    pub(super) async fn next_change(&self) {
        let mut watch = self.watch.lock().await;
        let watch = &mut *watch;
        while let Some(stream) = watch.stream.as_mut() {
            let since = *watch.silent_since.get_or_insert_with(Instant::now);
            let heard = tokio::time::timeout_at(since + SILENCE_BEFORE_PING, stream.next()).await;
            watch.silent_since = None;
            match heard {
                Ok(Some(Ok(id))) => {
                    watch.failures = 0;
                    let mut moved = self.moved();
                    // Those that went away before anybody looked.
                    if moved.len() >= MAX_MOVED {
                        moved.clear();
                    }
                    moved.extend(id);
                }
                Ok(ended) => {
                    tracing::debug!(?ended, "the engine's events broke off");
                    watch.lost();
                }
                Err(_silence) if self.client.ping().await.is_ok() => continue,
                Err(_silence) => watch.lost(),
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
                    tracing::debug!(%error, "no events from the engine");
                    watch.lost();
                }
            }
        }
    }

    /// The stream is opened at its first poll, so it starts at the engine's own present time: what happens between here
    /// and there is told too.
    async fn subscribe(&self) -> Result<Changes, EngineError> {
        self.client.ping().await?;
        let now = self.client.info().await?.system_time.unwrap_or_default();
        let since = DateTime::parse_from_rfc3339(&now)
            .map_err(|error| EngineError::Other(format!("the engine's time {now:?} cannot be read: {error}")))?;
        Ok(self.client.changes(&self.instance_label(), since.timestamp())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_its_limit() {
        let pauses: Vec<u128> = [0, 1, 2, 4, 5, 40, u32::MAX].map(|n| pause_after(n).as_millis()).to_vec();
        assert_eq!(pauses, [200, 400, 800, 3200, 5000, 5000, 5000]);
    }
}
