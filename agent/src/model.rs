//! The interface to a model: one request, one answer or an error that says who acts next, and the answer's deltas on the way.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use protocol::{CallId, Completion, CompletionRequestRef, RateLimitOrigin};
use tokio::sync::mpsc;

use crate::{FailureReason, LimitKind};

/// A model. Implementers: the worker's client to the gateway, the gateway itself, scripts in tests.
pub trait Model: Send + Sync {
    /// Sends one request. Retrying transient failures is the implementer's task; waiting out a rate limit is the loop's.
    ///
    /// A model that streams sends the answer's deltas to `deltas` as they arrive, and [`Delta::Start`] again before it repeats an
    /// answer that broke off; one that does not stream sends none. The returned completion is complete either way.
    fn complete(
        &self,
        request: &CompletionRequestRef<'_>,
        deltas: &DeltaSink,
    ) -> impl Future<Output = Result<Completion, ModelError>> + Send;

    /// The model's context window in tokens; 0 when it is not known, and the loop then never compacts by itself.
    fn context_tokens(&self) -> u64;
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The model cannot answer now: a rate limit, an outage, or a queue before the provider. The loop waits and asks again.
    #[error("rate limited: {message}")]
    RateLimited {
        /// Who refused: only a provider's refusals in a row end the work.
        origin: RateLimitOrigin,
        /// How long to wait, where that is known.
        retry_after: Option<Duration>,
        /// A human-readable message.
        message: String,
    },
    /// A limit of the job is reached. The loop ends with that limit.
    #[error("limit reached: {message}")]
    Limit {
        /// The limit.
        which: LimitKind,
        /// A human-readable message.
        message: String,
    },
    /// The request is larger than the model's context window. The loop compacts the transcript and asks again, once.
    #[error("the request exceeds the model's context: {message}")]
    ContextLength {
        /// A human-readable message.
        message: String,
    },
    /// A permanent failure. The loop ends as failed.
    #[error("{message}")]
    Failed {
        /// The cause.
        reason: FailureReason,
        /// A human-readable message without secrets.
        message: String,
    },
    /// The attempt has ended (fenced, cancelled). The loop ends as stopped.
    #[error("stopped")]
    Stopped,
}

impl ModelError {
    /// A failure with `llm_error`. The message has no secrets.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { reason: FailureReason::LlmError, message: message.into() }
    }
}

/// A piece of an answer that is being generated, as the provider streams it: not cleaned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// A call starts. Deltas before it that were not followed by a recorded reply are void: the call failed or was repeated.
    Start {
        /// The call.
        call_id: CallId,
    },
    /// More text.
    Text(String),
    /// More reasoning.
    Reasoning(String),
    /// No piece, but what the call waits for, in words for a person.
    Waiting(String),
}

/// Where the deltas of answers go: to a bounded channel, or nowhere.
#[derive(Debug, Clone, Default)]
pub struct DeltaSink {
    sender: Option<mpsc::Sender<Delta>>,
    /// The answer that the next deltas continue.
    continued: Option<Arc<ContinuedAnswer>>,
}

/// An answer that a second call continues: for a reader of deltas both are one.
#[derive(Debug)]
struct ContinuedAnswer {
    text: String,
    is_started: AtomicBool,
}

impl DeltaSink {
    /// A sink that discards everything.
    pub const fn discard() -> Self {
        Self { sender: None, continued: None }
    }

    /// A sink that holds at most `capacity` deltas until its reader takes them.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Delta>) {
        let (sender, reader) = mpsc::channel(capacity);
        (Self { sender: Some(sender), continued: None }, reader)
    }

    /// The same sink for a call that continues an answer whose deltas it has got. The call starts no other answer; where it
    /// is repeated, the text that it continues comes first again.
    #[must_use]
    pub(crate) fn continuing(&self, text: String) -> Self {
        let continued = ContinuedAnswer { text, is_started: AtomicBool::new(false) };
        Self { sender: self.sender.clone(), continued: Some(Arc::new(continued)) }
    }

    /// Whether deltas are discarded, so that none need to be made.
    pub const fn discards(&self) -> bool {
        self.sender.is_none()
    }

    /// Sends one delta. Waits while the channel is full, so that a slow reader slows the stream and memory stays bounded; a
    /// reader that is gone discards.
    pub async fn send(&self, delta: Delta) {
        let Some(sender) = &self.sender else { return };
        let continued = self.continued.as_ref().filter(|_| matches!(delta, Delta::Start { .. }));
        if continued.is_some_and(|continued| !continued.is_started.swap(true, Ordering::Relaxed)) {
            return;
        }
        // Where it fails the receiver is gone; the answer itself is still returned.
        let _ = sender.send(delta).await;
        if let Some(continued) = continued {
            let _ = sender.send(Delta::Text(continued.text.clone())).await;
        }
    }
}
