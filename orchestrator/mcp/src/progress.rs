//! How long a call may go on: as long as the server is heard from, within a maximum.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rmcp::model::ProgressToken;
use tokio::time::Instant;

/// Greatest length of a call whose server reports progress, as a multiple of the limit.
pub(super) const MAX_FACTOR: u32 = 10;

/// When the server has last reported progress, for each call in progress. Clones share the calls.
#[derive(Clone, Default)]
pub(super) struct Progress(Arc<Mutex<HashMap<ProgressToken, Instant>>>);

/// The time of one call, which ends when this is dropped.
pub(super) struct CallTime {
    progress: Progress,
    token: ProgressToken,
    began: Instant,
    limit: Duration,
}

impl Progress {
    /// Begins a call, which may go on for `limit` without a report.
    pub(super) fn begin(&self, token: ProgressToken, limit: Duration) -> CallTime {
        let began = Instant::now();
        self.0.lock().insert(token.clone(), began);
        CallTime { progress: self.clone(), token, began, limit }
    }

    /// The server has reported progress.
    pub(super) fn report(&self, token: &ProgressToken) {
        if let Some(last) = self.0.lock().get_mut(token) {
            *last = Instant::now();
        }
    }
}

impl CallTime {
    /// Returns when the time is over.
    pub(super) async fn over(&self) {
        loop {
            let deadline = self.deadline();
            tokio::time::sleep_until(deadline).await;
            if self.deadline() == deadline {
                return;
            }
        }
    }

    fn deadline(&self) -> Instant {
        let last = self.progress.0.lock().get(&self.token).copied().unwrap_or(self.began);
        (last + self.limit).min(self.began + self.limit * MAX_FACTOR)
    }
}

impl Drop for CallTime {
    fn drop(&mut self) {
        self.progress.0.lock().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    /// The length of a call whose server reports the progress of call `reported` each 50 s.
    async fn length(reported: i64) -> Duration {
        let token = |number| ProgressToken(NumberOrString::Number(number));
        let progress = Progress::default();
        let time = progress.begin(token(1), LIMIT);
        let reports = async {
            loop {
                tokio::time::sleep(Duration::from_secs(50)).await;
                progress.report(&token(reported));
            }
        };
        let began = Instant::now();
        tokio::select! {
            () = time.over() => {}
            () = reports => {}
        }
        drop(time);
        assert!(progress.0.lock().is_empty());
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn progress_of_the_call_prolongs_it_up_to_a_maximum() {
        assert!((LIMIT..LIMIT * 2).contains(&length(2).await), "of another call");
        let length = length(1).await;
        assert!((LIMIT * MAX_FACTOR..LIMIT * (MAX_FACTOR + 1)).contains(&length), "{length:?}");
    }
}
