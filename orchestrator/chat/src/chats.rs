//! What users do with their threads: send messages, give commands, stop a turn.
//!
//! Owns what a message becomes: a prompt for the agent, a command, or the answer to a tool call that waits. Knows no
//! HTTP type.

use std::sync::Arc;

use protocol::MessageReceipt;

use super::{commands::CommandCall, engine::ChatEngine};
use base::{
    clock::Clock,
    rate_limit::{ToolRateLimits, ToolRates},
};
use config::HookPoint;
use dispatch::{DispatcherWaker, JobSubmitter};
use domain::{
    chat::{Command, ThreadRef},
    request::{Rejected, check_prompt},
};
use hooks::{HookEvent, HookRefused};
use secrets::{DetectorError, LeakDetectors, search};
use store::{AuditEntry, Delivery, IdempotencyKey, Lookup, Sent, SentMessage, Store, StoreError};

/// Rate at which the messages and commands that a user may send at once are refilled, in messages per second.
const SENDS_PER_SECOND: u32 = 1;
/// What the rate is counted under.
const SEND: &str = "chat.send";

/// The rate at which each user may send: this many messages and commands at once; 0 for no limit.
pub fn send_rates(burst: u32) -> ToolRateLimits {
    ToolRateLimits::new(ToolRates { burst, per_second: SENDS_PER_SECOND, per_hour: 0 })
}

/// What users do with their threads.
pub struct Chats {
    /// Threads and their messages.
    pub store: Store,
    /// Works on the messages.
    pub engine: Arc<ChatEngine>,
    /// Creates the jobs of `/job`.
    pub submitter: Arc<JobSubmitter>,
    /// Find the users' secrets in their messages.
    pub detectors: LeakDetectors,
    /// How often each user may send: [`send_rates`].
    pub rates: ToolRateLimits,
    /// Wakes the dispatcher after a cancellation.
    pub waker: DispatcherWaker,
    pub clock: Clock,
}

/// A message of a user.
#[derive(Debug, Clone)]
pub struct ChatMessageRequest {
    pub user: String,
    /// The thread; `main` if it names none.
    pub thread: Option<String>,
    pub content: String,
    /// Within 24 hours, a message with the same key is sent once.
    pub key: Option<IdempotencyKey>,
    pub audit: AuditEntry,
}

/// Why a message could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The message could not be searched for the user's secrets.
    #[error(transparent)]
    Unsearched(#[from] DetectorError),
    /// A hook refuses the message.
    #[error(transparent)]
    Hook(#[from] HookRefused),
    /// A hook changed the message into one that is not accepted.
    #[error("the message is not accepted")]
    Rejected(Rejected),
}

impl From<Rejected> for ChatError {
    fn from(rejected: Rejected) -> Self {
        Self::Rejected(rejected)
    }
}

impl Chats {
    /// Sends a message, or does what its command says.
    pub async fn send(&self, request: ChatMessageRequest) -> Result<Sent, ChatError> {
        let ChatMessageRequest { user, thread, content, key, audit } = request;
        let known = match &key {
            Some(key) => self.store.idempotency(key, self.clock.now()).await?,
            None => None,
        };
        if let Some(known) = known
            && self.pending_command(&known).await?.is_none()
        {
            return Ok(Sent::Known(known));
        }
        if let Err(wait) = self.rates.take(&user, SEND, self.clock.monotonic()) {
            return Ok(Sent::TooMany(wait));
        }
        let thread = match thread.as_deref().map(ThreadRef::parse) {
            None => ThreadRef::main(),
            Some(Some(thread)) => thread,
            Some(None) => return Ok(Sent::Missing),
        };
        let mut content = self.redact(&user, content).await?;
        let event = HookEvent::new(HookPoint::InboundMessage, &user);
        if let Some(changed) = self.submitter.hooks.ask_about_text(&event, &content).await? {
            check_prompt("content", &changed)?;
            content = self.redact(&user, changed).await?;
        }
        let command = Command::parse(&content);
        let delivery = match &command {
            None => Delivery::Queue,
            Some(Command::Compact) => Delivery::QueueCommand,
            Some(Command::New) => Delivery::Show,
            Some(_) => Delivery::Command,
        };
        let message = SentMessage { user, thread, content, delivery, key, audit };
        match command {
            Some(Command::New) => Ok(self.store.start_conversation(message).await?),
            Some(command) if delivery == Delivery::Command => self.command(command, message).await,
            _ => Ok(self.store.send_chat_message(message).await?),
        }
    }

    /// The text without the user's secrets: it is stored, is in events, and the model reads it.
    async fn redact(&self, user: &str, mut content: String) -> Result<String, DetectorError> {
        let detector = self.detectors.of(user).await?;
        search(content.len(), move || {
            detector.redact_text(&mut content);
            content
        })
        .await
    }

    /// Shows the command in the thread, then does it. One that is sent again with its key is done if it was not, because
    /// the request failed after the command was shown.
    async fn command(&self, command: Command, message: SentMessage) -> Result<Sent, ChatError> {
        let sent = self.store.send_chat_message(message.clone()).await?;
        let receipt = match &sent {
            Sent::Stored(receipt) => Some(receipt.clone()),
            Sent::Known(known) => self.pending_command(known).await?,
            _ => None,
        };
        let Some(MessageReceipt { thread_id: thread, message_id, .. }) = receipt else { return Ok(sent) };
        let call = CommandCall { thread, message: message_id, user: message.user, audit: message.audit };
        self.run_command(command, call).await?;
        Ok(sent)
    }

    /// The receipt of a message that was sent before, if it is a command that has not been done.
    async fn pending_command(&self, known: &Lookup) -> Result<Option<MessageReceipt>, StoreError> {
        let Lookup::Replayed { body, .. } = known else { return Ok(None) };
        let Ok(receipt) = serde_json::from_str::<MessageReceipt>(body) else { return Ok(None) };
        let is_pending = self.store.is_chat_command_pending(receipt.message_id).await?;
        Ok(is_pending.then_some(receipt))
    }
}
