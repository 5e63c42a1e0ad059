//! The long poll for prompts: an attempt has one, the newest.
//!
//! Owns the order of the polls. Never reads a prompt.

use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct LongPoll {
    newest: watch::Sender<u64>,
}

/// A poll in progress.
#[derive(Debug)]
pub struct Poll {
    number: u64,
    newest: watch::Receiver<u64>,
}

impl Default for LongPoll {
    fn default() -> Self {
        Self { newest: watch::Sender::new(0) }
    }
}

impl LongPoll {
    /// Begins a poll, which supersedes the one before it.
    pub(super) fn begin(&self) -> Poll {
        let mut number = 0;
        self.newest.send_modify(|newest| {
            *newest += 1;
            number = *newest;
        });
        Poll { number, newest: self.newest.subscribe() }
    }
}

impl Poll {
    /// Returns once a newer poll has begun.
    pub async fn superseded(&mut self) {
        let number = self.number;
        // An error means that the attempt was dropped, so there are no polls.
        let _ = self.newest.wait_for(|newest| *newest > number).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_newer_poll_supersedes_the_one_before_it() {
        let polls = LongPoll::default();
        let (mut first, mut second) = (polls.begin(), polls.begin());
        first.superseded().await;
        assert!(poll!(Box::pin(second.superseded())).is_pending());
    }
}
