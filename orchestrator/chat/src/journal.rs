//! The journal of a turn: what the loop records becomes entries of the thread, and is streamed.
//!
//! An entry is stored before it is streamed, so that no reader sees one that a crash could undo.

use std::sync::{Arc, Mutex, PoisonError};

use agent::{Journal, JournalClosed};
use protocol::{AgentEvent, ChatContent, ChatStatus, MessageRole};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::live::{LiveEvent, LiveEvents};
use base::clock::Clock;
use config::HookPoint;
use hooks::{HookEvent, Hooks};
use llm::metering::retry_write;
use secrets::LeakDetectors;
use store::{Store, TurnKey};

pub(super) struct TurnJournal {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) live: LiveEvents,
    pub(super) hooks: Arc<Hooks>,
    pub(super) detectors: LeakDetectors,
    pub(super) drain: CancellationToken,
    pub(super) turn: TurnKey,
    pub(super) user: String,
    /// The text of the last limit that was reached.
    pub(super) limit: Mutex<Option<String>>,
    /// The last answer, as it was let out.
    pub(super) answer: Mutex<Option<String>>,
}

impl TurnJournal {
    /// What the last limit that was reached says.
    pub(super) fn take_limit(&self) -> Option<String> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The last answer, as it was let out.
    pub(super) fn take_answer(&self) -> Option<String> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The answer that the hooks let out.
    async fn shown(&self, content: String) -> String {
        let event = HookEvent::new(HookPoint::OutboundMessage, &self.user).of_thread(self.turn.thread);
        let changed = match self.hooks.ask_about_text(&event, &content).await {
            Ok(None) => return content,
            Ok(Some(changed)) => changed,
            Err(refused) => return format!("[withheld: {refused}]"),
        };
        match self.detectors.of(&self.user).await {
            Ok(detector) => detector.redact(&changed).0.into_owned(),
            Err(error) => format!("[withheld: {error}]"),
        }
    }

    async fn write(&self, content: ChatContent) -> Result<(), JournalClosed> {
        let write = || self.store.record_in_chat_turn(self.turn, content.clone(), self.clock.now());
        match retry_write(&self.drain, &self.turn, write).await {
            Ok(Some(cursor)) => {
                let thread_id = self.turn.thread;
                self.live.send(&self.user, || LiveEvent::Stored { thread_id, cursor });
                Ok(())
            }
            Ok(None) => Err(JournalClosed),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(thread.id = %self.turn.thread, error, "an entry of a turn could not be stored");
                Err(JournalClosed)
            }
        }
    }
}

impl Journal for TurnJournal {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalClosed> {
        match event {
            AgentEvent::Message { role, content } => {
                self.write(match role {
                    MessageRole::Assistant => {
                        let content = self.shown(content).await;
                        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(content.clone());
                        ChatContent::Assistant { content }
                    }
                    MessageRole::User => ChatContent::User { content },
                    MessageRole::System => ChatContent::notice(content),
                })
                .await
            }
            AgentEvent::ToolUse { call_id, tool, input, .. } => {
                self.write(ChatContent::ToolUse { call_id, tool, input }).await
            }
            AgentEvent::ToolResult { call_id, tool, success, output, truncated, duration_ms } => {
                self.write(ChatContent::ToolResult { call_id, tool, success, output, truncated, duration_ms }).await
            }
            AgentEvent::Status { message, .. } => {
                let thread_id = self.turn.thread;
                self.live.send(&self.user, || LiveEvent::Status(ChatStatus { thread_id, message }));
                Ok(())
            }
            AgentEvent::Limit { value, .. } => {
                let text = if let Value::String(text) = value { text } else { value.to_string() };
                *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                Ok(())
            }
            // Reasoning is streamed as it is generated; a chat has no plans and no processes.
            AgentEvent::Reasoning { .. } | AgentEvent::Plan { .. } | AgentEvent::Log { .. } => Ok(()),
        }
    }

    async fn flush(&self) -> Result<(), JournalClosed> {
        // Every entry is stored when it is recorded.
        Ok(())
    }
}
