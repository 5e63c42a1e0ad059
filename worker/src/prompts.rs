//! Follow-up prompts: long-polled from the orchestrator into the loop's inbox while that has room.
//!
//! Owns `after`, which acknowledges what was received, so that nothing is lost and nothing is seen twice. Never decides
//! when a prompt is shown to the model: the loop does.

use std::{convert::Infallible, sync::Arc, time::Duration};

use agent::{Inbox, Prompt};
use protocol::{PromptDelivery, PromptId};
use tokio::time::Instant;

use crate::client::{Call, CallError, OrchestratorClient};

const POLL_WAIT_SECONDS: u64 = 25;
/// Between polls that were answered at once without a prompt, so that a server that does not wait is not flooded.
const POLL_PAUSE_MS: u64 = 200;

/// The orchestrator's end of the inbox.
pub(crate) struct PromptFeed {
    client: Arc<OrchestratorClient>,
    inbox: Arc<Inbox>,
    after: PromptId,
}

impl PromptFeed {
    /// A feed that has received nothing yet.
    pub(crate) const fn new(client: Arc<OrchestratorClient>, inbox: Arc<Inbox>) -> Self {
        Self { client, inbox, after: PromptId::nil() }
    }

    /// Receives prompts for as long as the session lives. Dropping it loses nothing: what was not acknowledged comes again.
    pub(crate) async fn follow(&mut self) -> Infallible {
        loop {
            self.inbox.room().await;
            let asked = Instant::now();
            if !self.fetch(POLL_WAIT_SECONDS).await && asked.elapsed() < Duration::from_secs(1) {
                tokio::time::sleep(Duration::from_millis(POLL_PAUSE_MS)).await;
            }
            if self.client.stop().cause().is_some() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes all that wait now, as far as the inbox has room.
    pub(crate) async fn drain(&mut self) {
        while self.inbox.has_room() && self.fetch(0).await {}
    }

    /// Takes one. `false`: there was none.
    async fn fetch(&mut self, wait_seconds: u64) -> bool {
        let call = Call::get(&["prompt"])
            .query("wait_seconds", &wait_seconds)
            .query("after", &self.after)
            .timeout(Duration::from_secs(wait_seconds + 30));
        match self.client.poll::<PromptDelivery>(call).await {
            Ok(Some(delivery)) => {
                // The same one again means that the acknowledgement was not seen yet.
                let prompt = Prompt { content: delivery.content, mode: delivery.mode };
                // One that does not fit is not acknowledged, so it comes again.
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
