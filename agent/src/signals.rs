//! What reaches a loop from outside while it works.

use std::future::Future;

use protocol::PromptMode;
use tokio_util::sync::CancellationToken;

/// A prompt from a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text.
    pub content: String,
    /// When it is to be seen.
    pub mode: PromptMode,
}

/// Stop and prompts. A plain struct of channels would do for one caller; the worker's polls a server, hence the trait.
pub trait Signals: Send + Sync {
    /// Fires when the loop is to stop; model and tool calls under way are dropped.
    fn stop(&self) -> &CancellationToken;

    /// Steer prompts that have arrived, all of them, in order. Never waits.
    fn take_steer(&self) -> Vec<Prompt>;

    /// The next queued prompt, asked for when the agent would otherwise finish. Steer prompts that arrived since the
    /// last [`Self::take_steer`] come first. None: finish.
    fn take_queued(&self) -> impl Future<Output = Option<Prompt>> + Send;

    /// Told before each model call (1-based) so that heartbeats can say how far the loop is.
    fn at_iteration(&self, iteration: u32);
}
