//! Chat threads: the thread, its messages, its turns, and the jobs that were made in it.
//!
//! Guarantees that each write of a turn is fenced by the turn's number, and that a thread of another user is found as
//! such. Decides nothing about a turn: the chat engine does.

mod answer_words;
pub(crate) mod gates;
pub(crate) mod heartbeats;
mod jobs;
mod messages;
mod parked;
mod retention;
mod rows;
pub(crate) mod system_lines;
#[cfg(test)]
mod tests;
mod threads;
mod turns;

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{Execution, JobReason, MessageReceipt, ThreadId};

pub use self::{
    jobs::ChatJob,
    messages::{MessagePage, MessagePosition},
    parked::{ParkedTurn, WaitingTurn},
    turns::{Turn, TurnEnd, TurnRequest},
};
pub(super) use self::{
    jobs::post_end,
    rows::{MessageRow, NewMessage, append, message_columns},
    threads::{create, find, publish_state, set_state},
    turns::{is_current, trim},
};
use super::{AuditEntry, IdempotencyKey, Lookup};
use domain::chat::ThreadRef;

/// Maximum number of threads of one user.
pub const MAX_THREADS_PER_USER: u32 = 1_000;
/// Maximum number of queued messages of one user, in all threads.
pub const MAX_QUEUED_PER_USER: u32 = 100;
/// Entries of one thread that are kept; the oldest are deleted when a turn ends.
const MAX_MESSAGES_PER_THREAD: i64 = 10_000;

/// A message of a user that is about to be stored.
#[derive(Debug, Clone)]
pub struct SentMessage {
    pub user: String,
    pub thread: ThreadRef,
    pub content: String,
    pub delivery: Delivery,
    /// Within 24 hours, a message with the same key is stored once.
    pub key: Option<IdempotencyKey>,
    /// Written in the message's transaction.
    pub audit: AuditEntry,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is queued for the model.
    Queue,
    /// It is queued, and not for the model: a command to the engine.
    QueueCommand,
    /// It is shown in the thread only.
    Show,
    /// It is shown, and a command that is not done yet: its sender does it, once (`Store::answer_chat_command`).
    Command,
}

impl Delivery {
    const fn is_queued(self) -> bool {
        matches!(self, Self::Queue | Self::QueueCommand)
    }
}

/// The outcome of storing a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Stored(MessageReceipt),
    /// The idempotency key was seen before.
    Known(Lookup),
    /// No such thread.
    Missing,
    /// The thread is another user's.
    NotOwner,
    /// The user has the maximum number of threads.
    TooManyThreads,
    /// The user has the maximum number of queued messages.
    QueueFull,
    /// The user sends too many messages; one may be sent after this time.
    TooMany(Duration),
}

/// The outcome of a change of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadChange {
    Done(ThreadId),
    Missing,
    /// The thread is another user's.
    NotOwner,
}

/// Names a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TurnKey {
    pub thread: ThreadId,
    /// Number of the turn in its thread, from 1.
    pub turn: u32,
}

impl From<TurnKey> for Execution {
    fn from(TurnKey { thread, turn }: TurnKey) -> Self {
        Self::new(thread, turn)
    }
}

/// Why a turn has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnError {
    pub reason: JobReason,
    /// A human-readable message.
    pub message: String,
    /// Whether the lines that it has read are not read again.
    pub drops_lines: bool,
}

/// The caller of a request about a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadCaller {
    pub user: String,
    /// Whether threads of all users are found.
    pub sees_all: bool,
}

/// Which threads to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadFilter {
    pub user: String,
    /// Only those whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only those older than this one.
    pub before: Option<ThreadId>,
    /// Maximum number of threads.
    pub limit: u32,
}

/// A thread as of now, with its owner.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedThread {
    pub user: String,
    pub thread: protocol::ChatThread,
}

/// The time after which a thread's write is ordered.
type At = DateTime<Utc>;
