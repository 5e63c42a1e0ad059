//! The session of a job: its loop, the prompts that arrive meanwhile, and the report that ends it.
//!
//! Owns when the loop goes on after it has ended, and the acknowledgement of prompts, so that each is delivered exactly once. Never
//! knows how the orchestrator is reached: that is the [`JobSession`]'s part.

pub(crate) mod report;
pub(crate) mod resume;

use std::{
    convert::Infallible,
    future::{Future, pending},
    time::Duration,
};

use protocol::{PartialResult, PromptDelivery, PromptId};

use crate::{Agent, Inbox, Journal, LoopOutcome, Model, Prompt, Run, Transcript};

/// Retry delay of a report that was refused because of waiting prompts although no prompt could be received.
const REPORT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The orchestrator, as a job's session reaches it: over the worker's socket, or in the same process.
pub trait JobSession: Sync {
    /// Why a session fails.
    type Error;

    /// Receives the prompt that follows `after`, which is acknowledged. Without one it may `wait`, and is called again. Cancel safe:
    /// the same prompt is received again.
    fn next_prompt(&self, after: PromptId, wait: bool) -> impl Future<Output = Option<PromptDelivery>> + Send;

    /// Returns once a loop that was told to stop is no longer waited for; by default never.
    fn stop_deadline(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Reports how the work has ended, after all of its events.
    fn deliver(
        &self,
        outcome: LoopOutcome,
        partial: PartialResult,
    ) -> impl Future<Output = Result<Delivery, Self::Error>> + Send;
}

/// The result of delivering a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The report was accepted, or there is none to deliver, or it cannot be delivered.
    Done,
    /// The report was refused because prompts are waiting.
    PromptsWaiting,
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Works on a job until its report is delivered.
    pub async fn run_job<S: JobSession>(
        &self,
        mut transcript: Transcript,
        mut run: Run,
        session: &S,
    ) -> Result<(), S::Error> {
        let inbox = &self.signals.inbox;
        let mut feed = PromptFeed { session, inbox, after: PromptId::nil() };
        loop {
            let outcome = tokio::select! {
                outcome = self.run(&mut transcript, &mut run) => outcome,
                never = feed.follow() => match never {},
                () = session.stop_deadline() => LoopOutcome::Stopped,
            };
            if matches!(outcome, LoopOutcome::Completed { .. }) && !inbox.is_empty() {
                // The prompt arrived after the loop had checked its inbox for the last time.
                continue;
            }
            let mut retry_delay = Duration::ZERO;
            loop {
                match session.deliver(outcome.clone(), run.partial()).await? {
                    Delivery::Done => return Ok(()),
                    Delivery::PromptsWaiting => feed.drain().await,
                }
                if !inbox.is_empty() {
                    break;
                }
                // The drain has acknowledged the waiting prompts, so the same report may be accepted now.
                tokio::time::sleep(retry_delay).await;
                retry_delay = REPORT_RETRY_DELAY;
            }
        }
    }
}

/// Moves prompts into the loop's inbox while it has room.
struct PromptFeed<'a, S> {
    session: &'a S,
    inbox: &'a Inbox,
    /// The last received prompt, which is acknowledged when the next one is asked for.
    after: PromptId,
}

impl<S: JobSession> PromptFeed<'_, S> {
    /// Receives prompts for as long as the loop runs.
    async fn follow(&mut self) -> Infallible {
        loop {
            self.inbox.room().await;
            self.receive(true).await;
        }
    }

    /// Receives the prompts that wait now, as far as the inbox has room.
    async fn drain(&mut self) {
        while self.inbox.has_room() && self.receive(false).await {}
    }

    /// Returns whether a prompt was received.
    async fn receive(&mut self, wait: bool) -> bool {
        let Some(delivery) = self.session.next_prompt(self.after, wait).await else { return false };
        // A prompt that does not fit is not acknowledged, so it is received again.
        let fits = self.inbox.push(Prompt { content: delivery.content, mode: delivery.mode }).is_ok();
        if fits {
            self.after = delivery.prompt_id;
        }
        fits
    }
}
