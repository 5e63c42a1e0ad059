//! Follow-up prompts: from the store into the inbox of a loop in this process, while it has room.
//!
//! Owns `after`, which acknowledges received prompts, so that each is delivered exactly once. The loop decides when a prompt is
//! shown to the model.

use std::{convert::Infallible, sync::Arc, time::Duration};

use agent::{Inbox, Prompt};
use base::clock::Clock;
use dispatch::Attempt;
use protocol::PromptId;
use store::Store;

/// Delay before the database is asked again after it failed.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Feeds the inbox of one attempt.
pub(super) struct PromptFeed {
    store: Store,
    attempt: Arc<Attempt>,
    clock: Clock,
    inbox: Arc<Inbox>,
    after: PromptId,
}

impl PromptFeed {
    /// A feed that starts with the first prompt that is not acknowledged.
    pub(super) const fn new(store: Store, attempt: Arc<Attempt>, clock: Clock, inbox: Arc<Inbox>) -> Self {
        Self { store, attempt, clock, inbox, after: PromptId::nil() }
    }

    /// Receives prompts for as long as the loop runs. Cancel safe: prompts that were not acknowledged are received again.
    pub(super) async fn follow(&mut self) -> Infallible {
        loop {
            // Before the first read, so that no prompt is missed.
            let mut changes = self.attempt.subscribe();
            self.drain().await;
            if self.inbox.has_room() {
                changes.changed().await;
            } else {
                self.inbox.room().await;
            }
        }
    }

    /// Receives the prompts that wait now, as far as the inbox has room.
    pub(super) async fn drain(&mut self) {
        while self.inbox.has_room() {
            let (job, now) = (self.attempt.key().job, self.clock.now());
            match self.store.next_prompt(job, Some(self.after), now).await {
                Ok(Some(delivery)) => {
                    let prompt = Prompt { content: delivery.content, mode: delivery.mode };
                    if self.inbox.push(prompt).is_ok() {
                        self.after = delivery.prompt_id;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the prompts of a job could not be read");
                    tokio::time::sleep(STORE_RETRY).await;
                }
            }
        }
    }
}
