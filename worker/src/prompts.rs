//! Follow-up prompts: long-polled from the orchestrator into the agent loop's inbox while it has room.
//!
//! Owns `after`, which acknowledges received prompts, so that each is delivered exactly once. The loop decides when a
//! prompt is shown to the model.

use std::{convert::Infallible, sync::Arc, time::Duration};

use agent::{Inbox, Prompt};
use protocol::{PromptDelivery, PromptId, limits::MAX_PROMPT_WAIT_SECONDS};
use tokio::time::Instant;

use crate::client::{Call, CallError, OrchestratorClient};

/// Wait of one poll: shorter than what the orchestrator allows, so that a lost connection is noticed.
const POLL_WAIT_SECONDS: u64 = 25;
const _: () = assert!(POLL_WAIT_SECONDS <= MAX_PROMPT_WAIT_SECONDS);
/// Delay between polls that return at once without a prompt, so that a server that does not hold polls is not flooded.
const POLL_RETRY_MS: u64 = 200;

/// Feeds the inbox with prompts from the orchestrator.
pub(crate) struct PromptFeed {
    client: Arc<OrchestratorClient>,
    inbox: Arc<Inbox>,
    after: PromptId,
}

impl PromptFeed {
    /// A feed that starts with the first prompt.
    pub(crate) const fn new(client: Arc<OrchestratorClient>, inbox: Arc<Inbox>) -> Self {
        Self { client, inbox, after: PromptId::nil() }
    }

    /// Receives prompts for as long as the session runs. Cancel safe: prompts that were not acknowledged are sent again.
    pub(crate) async fn follow(&mut self) -> Infallible {
        loop {
            self.inbox.room().await;
            let polled_at = Instant::now();
            if !self.fetch(POLL_WAIT_SECONDS).await && polled_at.elapsed() < Duration::from_secs(1) {
                tokio::time::sleep(Duration::from_millis(POLL_RETRY_MS)).await;
            }
            if self.client.stop().cause().is_some() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Receives the prompts that are waiting now, as far as the inbox has room.
    pub(crate) async fn drain(&mut self) {
        while self.inbox.has_room() && self.fetch(0).await {}
    }

    /// Polls once. Returns whether a prompt was received.
    async fn fetch(&mut self, wait_seconds: u64) -> bool {
        let call = Call::get(&["prompt"])
            .query("wait_seconds", &wait_seconds)
            .query("after", &self.after)
            .timeout(Duration::from_secs(wait_seconds + 30));
        match self.client.poll::<PromptDelivery>(call).await {
            Ok(Some(delivery)) => {
                // The same prompt again: the acknowledgement has not been processed yet.
                let prompt = Prompt { content: delivery.content, mode: delivery.mode };
                // A prompt that does not fit into the inbox is not acknowledged, so it is sent again.
                if delivery.prompt_id != self.after && self.inbox.push(prompt).is_ok() {
                    self.after = delivery.prompt_id;
                    return true;
                }
            }
            Ok(None) | Err(CallError::Stopped) => {}
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a poll for prompts was refused"),
        }
        false
    }
}
