//! Redaction of a model call: the request before a provider sees it, the answer and its deltas before anyone else does.
//!
//! Owns the order: nothing is passed on that was not searched, and no signed reply behind other messages than it was made
//! behind. Never decides what a credential looks like.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use agent::{
    Delta, DeltaSink,
    safety::{Finding, LeakDetector, StreamRedactor},
};
use protocol::{CompletionRequest, Message};
use secrets::DetectorError;
use tokio::sync::mpsc;

use crate::{Answer, AskError, CallContext, Gateway};

/// Deltas between the provider and their redaction.
const DELTA_CAPACITY: usize = 16;

/// The redaction of one call, whose request is redacted.
pub(super) struct Redaction {
    detector: Arc<LeakDetector>,
    /// The digest of the messages that are sent, if any of them has a native form.
    prefix: Option<u64>,
}

impl Redaction {
    /// Redacts the messages of a request in place.
    pub(super) async fn of_request(
        detector: Arc<LeakDetector>,
        request: &mut CompletionRequest,
    ) -> Result<Self, DetectorError> {
        let mut messages = std::mem::take(&mut request.messages);
        // A conversation is up to 32 MiB.
        let search = tokio::task::spawn_blocking(move || {
            let findings = detector.redact_messages(&mut messages);
            let prefix = remove_misplaced_replies(&mut messages);
            (messages, findings, Self { detector, prefix })
        });
        let (messages, findings, redaction) = search.await.map_err(|_| DetectorError::Interrupted)?;
        request.messages = messages;
        report("model request", &findings);
        Ok(redaction)
    }

    /// Asks the providers, and redacts what they answer.
    pub(super) async fn ask(
        &self,
        gateway: &Gateway,
        request: &CompletionRequest,
        context: CallContext<'_>,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Answer, AskError> {
        let context = CallContext { detector: Some(self.detector.as_ref()), ..context };
        let asked = match context.deltas.filter(|deltas| !deltas.discards()) {
            None => gateway.ask(request, &context, stop).await,
            Some(shown) => {
                let (raw, pieces) = DeltaSink::channel(DELTA_CAPACITY);
                let ask = async move {
                    // Dropped with this block, which ends the redaction.
                    let raw = raw;
                    gateway.ask(request, &CallContext { deltas: Some(&raw), ..context }, stop).await
                };
                tokio::join!(ask, redact_deltas(pieces, shown, &self.detector)).0
            }
        };
        let mut answer = asked?;
        report("model answer", &self.detector.redact_completion(&mut answer.completion));
        if let Some(native) = &mut answer.completion.native {
            native.prefix = Some(self.prefix.unwrap_or_else(|| digest(&request.messages)));
        }
        Ok(answer)
    }
}

/// Removes the native form of replies that were made behind other messages than these: a secret that was stored since is
/// redacted in what came before. One without a digest was kept by a worker of an older version. Returns the digest of the messages, if any had a native form.
fn remove_misplaced_replies(messages: &mut [Message]) -> Option<u64> {
    if !messages.iter().any(|message| matches!(message, Message::Assistant { native: Some(_), .. })) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    for message in messages {
        if let Message::Assistant { native, .. } = message
            && native.as_ref().and_then(|native| native.prefix).is_some_and(|prefix| prefix != hasher.finish())
        {
            *native = None;
        }
        add(message, &mut hasher);
    }
    Some(hasher.finish())
}

fn digest(messages: &[Message]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for message in messages {
        add(message, &mut hasher);
    }
    hasher.finish()
}

fn add(message: &Message, hasher: &mut DefaultHasher) {
    serde_json::to_string(message).unwrap_or_default().hash(hasher);
}

/// Passes deltas on as far as they cannot become a credential any more. Text and reasoning are separate streams.
async fn redact_deltas(mut pieces: mpsc::Receiver<Delta>, shown: &DeltaSink, detector: &Arc<LeakDetector>) {
    let begin = || StreamRedactor::new(Arc::clone(detector));
    let (mut text, mut reasoning) = (begin(), begin());
    while let Some(piece) = pieces.recv().await {
        let delta = match piece {
            // What came before it is void.
            start @ Delta::Start { .. } => {
                (text, reasoning) = (begin(), begin());
                start
            }
            Delta::Text(piece) => Delta::Text(text.push(&piece)),
            Delta::Reasoning(piece) => Delta::Reasoning(reasoning.push(&piece)),
            waiting @ Delta::Waiting(_) => waiting,
        };
        send(shown, delta).await;
    }
    send(shown, Delta::Reasoning(reasoning.finish().0)).await;
    send(shown, Delta::Text(text.finish().0)).await;
}

async fn send(shown: &DeltaSink, delta: Delta) {
    let is_empty = matches!(&delta, Delta::Text(text) | Delta::Reasoning(text) if text.is_empty());
    if !is_empty {
        shown.send(delta).await;
    }
}

/// The names of what was found. At `debug`, because a container can cause any number of these lines.
fn report(place: &'static str, findings: &[Finding]) {
    for finding in findings {
        tracing::debug!(place, found = %finding.source, "a credential was found");
    }
}
