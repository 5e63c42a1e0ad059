//! Pieces of answers and progress of a user's threads, for a stream.

use axum::response::sse::Event as Sse;
use chat::{Lagged, LiveEvent, LiveSubscription};
use protocol::{ChatEventKind, ThreadId};
use serde::Serialize;

use crate::public::response::stream::BATCH;

/// The live events of a user's threads, or of one of them.
pub(in crate::public) struct LiveChat {
    live: LiveSubscription,
    /// A live event that ended a wait.
    arrived: Option<Result<LiveEvent, Lagged>>,
    /// The only thread whose events are streamed.
    thread: Option<ThreadId>,
}

/// Live events that have arrived.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) messages: Vec<Sse>,
    /// Stored events up to this cursor come before the next live one.
    pub(super) stored: Option<i64>,
}

impl Arrived {
    /// Whether there may be more that come before any stored event.
    pub(super) const fn is_full(&self) -> bool {
        self.messages.len() >= BATCH as usize
    }
}

impl LiveChat {
    pub(in crate::public) const fn new(live: LiveSubscription, thread: Option<ThreadId>) -> Self {
        Self { live, arrived: None, thread }
    }

    /// Returns once there is a live event.
    pub(super) async fn wait(&mut self) {
        self.arrived = Some(self.live.next().await);
    }

    /// The live events that have arrived, up to one that follows a stored event.
    pub(super) fn take(&mut self) -> Result<Arrived, Lagged> {
        let mut taken = Arrived::default();
        while !taken.is_full() {
            let event = match self.arrived.take() {
                Some(arrived) => Some(arrived?),
                None => self.live.take()?,
            };
            let Some(event) = event else { break };
            if self.thread.is_some_and(|thread| thread != event.thread()) {
                continue;
            }
            match event {
                LiveEvent::Delta(delta) => taken.messages.push(message(ChatEventKind::Delta, &delta)),
                LiveEvent::Status(status) => taken.messages.push(message(ChatEventKind::Status, &status)),
                LiveEvent::Stored { cursor, .. } => {
                    taken.stored = Some(cursor);
                    break;
                }
            }
        }
        Ok(taken)
    }
}

/// A message without an id: it cannot be resumed from.
fn message(kind: ChatEventKind, data: &impl Serialize) -> Sse {
    Sse::default().event(kind.as_str()).data(serde_json::to_string(data).unwrap_or_default())
}
