//! The inputs of a running loop (stop, prompts), and the progress that it reports.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use protocol::PromptMode;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Maximum number of prompts in an inbox.
const MAX_PROMPTS: usize = 256;

/// Maximum size of an inbox in bytes; the prompt that reaches it is still taken.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Stop, prompts and progress of one loop. The other side holds clones of the token, the inbox and a receiver.
#[derive(Debug, Default)]
pub struct Signals {
    /// Cancelled when the loop is to stop; model and tool calls in flight are dropped.
    pub stop: CancellationToken,
    /// Prompts that have arrived and wait for the loop.
    pub inbox: Arc<Inbox>,
    /// The number of model calls made, set before each call.
    pub iteration: watch::Sender<u32>,
}

/// A prompt from a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text.
    pub content: String,
    /// When the agent sees it.
    pub mode: PromptMode,
}

/// A bounded queue of prompts, in order within each mode.
#[derive(Debug, Default)]
pub struct Inbox {
    queues: Mutex<Queues>,
    taken: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    steer: VecDeque<String>,
    queued: VecDeque<String>,
    bytes: usize,
}

/// The inbox has no room for another prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the inbox is full")]
pub struct InboxFull;

impl Inbox {
    /// Adds a prompt, unless the inbox is full.
    pub fn push(&self, prompt: Prompt) -> Result<(), InboxFull> {
        let mut queues = self.queues.lock();
        if !queues.has_room() {
            return Err(InboxFull);
        }
        queues.bytes += prompt.content.len();
        match prompt.mode {
            PromptMode::Steer => queues.steer.push_back(prompt.content),
            PromptMode::Queue => queues.queued.push_back(prompt.content),
        }
        Ok(())
    }

    /// Whether another prompt can be added.
    pub fn has_room(&self) -> bool {
        self.queues.lock().has_room()
    }

    /// Waits until another prompt can be added.
    pub async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.has_room() {
                return;
            }
            taken.await;
        }
    }

    /// Whether no prompt waits.
    pub fn is_empty(&self) -> bool {
        let queues = self.queues.lock();
        queues.steer.is_empty() && queues.queued.is_empty()
    }

    /// Takes every steer prompt, in order.
    pub(crate) fn take_steer(&self) -> VecDeque<String> {
        let mut queues = self.queues.lock();
        let prompts = std::mem::take(&mut queues.steer);
        queues.bytes -= prompts.iter().map(String::len).sum::<usize>();
        drop(queues);
        self.taken.notify_waiters();
        prompts
    }

    /// Takes the next prompt when the agent would otherwise finish; steer prompts come first.
    pub(crate) fn take_next(&self) -> Option<String> {
        let mut queues = self.queues.lock();
        let prompt = queues.steer.pop_front().or_else(|| queues.queued.pop_front())?;
        queues.bytes -= prompt.len();
        drop(queues);
        self.taken.notify_waiters();
        Some(prompt)
    }
}

impl Queues {
    fn has_room(&self) -> bool {
        self.steer.len() + self.queued.len() < MAX_PROMPTS && self.bytes < MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn queued(bytes: usize) -> Prompt {
        Prompt { content: "x".repeat(bytes), mode: PromptMode::Queue }
    }

    #[rstest]
    #[case::by_number(1, MAX_PROMPTS)]
    #[case::by_size(256 * 1024, 16)]
    #[tokio::test]
    async fn a_full_inbox_takes_no_more_until_the_loop_has_taken_one(#[case] bytes: usize, #[case] fits: usize) {
        let inbox = Inbox::default();
        let taken = (0..fits + 10).take_while(|_| inbox.push(queued(bytes)).is_ok()).count();
        assert_eq!((taken, inbox.push(queued(1))), (fits, Err(InboxFull)));
        let waiting = async {
            inbox.room().await;
            inbox.push(queued(1))
        };
        let (pushed, prompt) = tokio::join!(waiting, async { inbox.take_next() });
        assert_eq!((pushed, prompt.map(|prompt| prompt.len())), (Ok(()), Some(bytes)));
    }
}
