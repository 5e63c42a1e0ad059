//! Follow-up prompts: long-polled from the orchestrator, kept in two queues until the loop takes them.
//!
//! Owns `after`, which acknowledges what was received, so that nothing is lost and nothing is seen twice. Never decides
//! when a prompt is seen: that is the loop's.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use agent::{Prompt, Signals};
use protocol::{PromptDelivery, PromptId, PromptMode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Call, CallError, OrchestratorClient},
    stop::StopSwitch,
};

const POLL_WAIT_SECONDS: u64 = 25;
/// Between polls that were answered at once without a prompt, so that a server that does not wait is not flooded.
const POLL_PAUSE_MS: u64 = 200;

/// Prompts that have arrived, by mode.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    steer: VecDeque<Prompt>,
    queued: VecDeque<Prompt>,
}

impl Inbox {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing waits to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        let queues = self.queues();
        queues.steer.is_empty() && queues.queued.is_empty()
    }

    fn put(&self, prompt: Prompt) {
        let mut queues = self.queues();
        match prompt.mode {
            PromptMode::Steer => queues.steer.push_back(prompt),
            PromptMode::Queue => queues.queued.push_back(prompt),
        }
    }
}

/// The orchestrator's end of the inbox.
pub(crate) struct PromptFeed {
    client: Arc<OrchestratorClient>,
    inbox: Arc<Inbox>,
    after: PromptId,
}

impl PromptFeed {
    /// Nothing received yet.
    pub(crate) const fn new(client: Arc<OrchestratorClient>, inbox: Arc<Inbox>) -> Self {
        Self { client, inbox, after: PromptId::nil() }
    }

    /// Takes prompts as they come. Dropping it loses nothing: what was not acknowledged comes again.
    pub(crate) async fn follow(&mut self) -> Infallible {
        loop {
            let asked = Instant::now();
            if !self.fetch(POLL_WAIT_SECONDS).await && asked.elapsed() < Duration::from_secs(1) {
                tokio::time::sleep(Duration::from_millis(POLL_PAUSE_MS)).await;
            }
            if self.client.stop().cause().is_some() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes all that wait now.
    pub(crate) async fn drain(&mut self) {
        while self.fetch(0).await {}
    }

    /// Whether there was one.
    async fn fetch(&mut self, wait_seconds: u64) -> bool {
        let call = Call::get(&["prompt"])
            .query("wait_seconds", &wait_seconds)
            .query("after", &self.after)
            .timeout(Duration::from_secs(wait_seconds + 30));
        match self.client.poll::<PromptDelivery>(call).await {
            Ok(Some(delivery)) => {
                // The same one again means that the acknowledgement was not seen yet.
                if delivery.prompt_id != self.after {
                    self.after = delivery.prompt_id;
                    self.inbox.put(Prompt { content: delivery.content, mode: delivery.mode });
                    return true;
                }
            }
            Ok(None) | Err(CallError::Stopped) => {}
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a poll for prompts was refused"),
        }
        false
    }
}

/// What the loop hears while it works.
pub(crate) struct SessionSignals {
    /// Stop.
    pub(crate) stop: StopSwitch,
    /// Prompts.
    pub(crate) inbox: Arc<Inbox>,
    /// For the heartbeat.
    pub(crate) iteration: Arc<AtomicU32>,
}

impl Signals for SessionSignals {
    fn stop(&self) -> &CancellationToken {
        self.stop.token()
    }

    fn take_steer(&self) -> Vec<Prompt> {
        self.inbox.queues().steer.drain(..).collect()
    }

    async fn take_queued(&self) -> Option<Prompt> {
        // What is still on its way is not missed: the orchestrator refuses `complete` while prompts wait.
        let mut queues = self.inbox.queues();
        queues.steer.pop_front().or_else(|| queues.queued.pop_front())
    }

    fn at_iteration(&self, iteration: u32) {
        self.iteration.store(iteration, Ordering::Relaxed);
    }
}
