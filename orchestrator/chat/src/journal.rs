//! The journal of a turn: what the loop records becomes entries of the thread, and is streamed.
//!
//! An entry is stored before it is streamed, so that no reader sees one that a crash could undo.

use std::sync::{Arc, Mutex, PoisonError};

use agent::{Journal, JournalError};
use protocol::{AgentEvent, ChatContent, ChatStatus, MessageRole};
use tokio_util::sync::CancellationToken;

use super::live::{LiveEvent, LiveEvents};
use base::clock::Clock;
use config::HookPoint;
use hooks::{HookEvent, Hooks};
use llm::metering::retry_write;
use store::{Store, TurnKey};

pub(super) struct TurnJournal {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) live: LiveEvents,
    pub(super) hooks: Arc<Hooks>,
    pub(super) drain: CancellationToken,
    pub(super) turn: TurnKey,
    pub(super) user: String,
    /// The last answer, as it was let out.
    pub(super) answer: Mutex<Option<String>>,
}

impl TurnJournal {
    async fn write(&self, content: ChatContent) -> Result<(), JournalError> {
        let write = || self.store.record_in_chat_turn(self.turn, content.clone(), self.clock.now());
        match retry_write(&self.drain, &self.turn, write).await {
            Ok(Some(cursor)) => {
                let thread_id = self.turn.thread;
                self.live.send(&self.user, || LiveEvent::Stored { thread_id, cursor });
                Ok(())
            }
            Ok(None) => Err(JournalError::Closed),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(thread.id = %self.turn.thread, error, "an entry of a turn could not be stored");
                Err(JournalError::Failed("an entry of the turn could not be stored".to_owned()))
            }
        }
    }
}

impl Journal for TurnJournal {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalError> {
        match event {
            AgentEvent::Message { role, content } => {
                self.write(match role {
                    MessageRole::Assistant => {
                        let event = HookEvent::new(HookPoint::OutboundMessage, &self.user).of(self.turn.thread);
                        let content = self.hooks.replacement(&event, &content).await.unwrap_or(content);
                        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(content.clone());
                        ChatContent::Assistant { content }
                    }
                    MessageRole::User => ChatContent::User { content },
                    MessageRole::System => ChatContent::notice(content),
                })
                .await
            }
            AgentEvent::ToolUse { call_id, tool, input, reasoning } => {
                self.write(ChatContent::ToolUse { call_id, tool, input, reasoning }).await
            }
            AgentEvent::ToolResult { call_id, tool, success, output, truncated, duration_ms } => {
                self.write(ChatContent::ToolResult { call_id, tool, success, output, truncated, duration_ms }).await
            }
            AgentEvent::Status { message, .. } => {
                let thread_id = self.turn.thread;
                self.live.send(&self.user, || LiveEvent::Status(ChatStatus { thread_id, message }));
                Ok(())
            }
            // Reasoning is streamed as it is generated, a limit is in the turn's end, and a chat has no plans and no processes.
            AgentEvent::Reasoning { .. }
            | AgentEvent::Limit { .. }
            | AgentEvent::Plan { .. }
            | AgentEvent::Log { .. } => Ok(()),
        }
    }
}
