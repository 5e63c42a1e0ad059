//! Events of turns that are only streamed: pieces of answers and progress, and where stored entries belong among them.
//!
//! Owns the channel of each user with subscribers. Never stores anything: what is durable is in the thread. A
//! subscriber that is too slow loses events and is told so.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use protocol::{ChatDelta, ChatStatus, ThreadId};
use tokio::sync::broadcast;

/// Events that are kept for a subscriber that does not read.
const CAPACITY: usize = 1_024;

/// An event of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveEvent {
    /// A piece of an answer.
    Delta(ChatDelta),
    Status(ChatStatus),
    /// What is stored up to here comes after the events before this one, and before those after it.
    Stored {
        thread_id: ThreadId,
        /// The cursor of the last stored event.
        cursor: i64,
    },
}

impl LiveEvent {
    pub const fn thread(&self) -> ThreadId {
        match self {
            Self::Delta(delta) => delta.thread_id,
            Self::Status(status) => status.thread_id,
            Self::Stored { thread_id, .. } => *thread_id,
        }
    }
}

/// The channels of users with subscribers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LiveEvents(Arc<Mutex<Channels>>);

type Channels = HashMap<String, broadcast::Sender<LiveEvent>>;

/// The live events of one user's threads.
#[derive(Debug)]
pub struct LiveSubscription {
    events: LiveEvents,
    user: String,
    receiver: broadcast::Receiver<LiveEvent>,
}

/// The subscriber was too slow: events were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagged;

impl LiveEvents {
    /// Subscribes to the events of a user's threads.
    pub fn subscribe(&self, user: &str) -> LiveSubscription {
        let receiver =
            self.0.lock().entry(user.to_owned()).or_insert_with(|| broadcast::channel(CAPACITY).0).subscribe();
        LiveSubscription { events: self.clone(), user: user.to_owned(), receiver }
    }

    /// Sends an event to the subscribers of a user, if there are any. `event` is only made for them.
    pub fn send(&self, user: &str, event: impl FnOnce() -> LiveEvent) {
        if let Some(channel) = self.0.lock().get(user) {
            // Without a receiver the channel is about to be removed.
            let _ = channel.send(event());
        }
    }
}

impl LiveSubscription {
    pub async fn next(&mut self) -> Result<LiveEvent, Lagged> {
        // The sender is in the map as long as a subscription exists.
        self.receiver.recv().await.map_err(|_| Lagged)
    }

    /// An event that has arrived already, if there is one.
    pub fn take(&mut self) -> Result<Option<LiveEvent>, Lagged> {
        match self.receiver.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(broadcast::error::TryRecvError::Empty) => Ok(None),
            Err(_) => Err(Lagged),
        }
    }
}

impl Drop for LiveSubscription {
    fn drop(&mut self) {
        let mut channels = self.events.0.lock();
        if channels.get(&self.user).is_some_and(|channel| channel.receiver_count() <= 1) {
            channels.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> LiveEvent {
        LiveEvent::Status(ChatStatus { thread_id: ThreadId::nil(), message: text.to_owned() })
    }

    #[tokio::test]
    async fn each_user_gets_their_own_events_and_a_slow_reader_is_told() {
        let events = LiveEvents::default();
        let (mut ada, mut bob) = (events.subscribe("ada"), events.subscribe("bob"));
        events.send("ada", || status("one"));
        events.send("cleo", || panic!("no one reads it"));
        assert_eq!((ada.next().await, ada.take(), bob.take()), (Ok(status("one")), Ok(None), Ok(None)));
        for _ in 0..=CAPACITY {
            events.send("bob", || status("flood"));
        }
        assert_eq!(bob.next().await, Err(Lagged));
        drop((ada, bob));
        assert!(events.0.lock().is_empty());
    }
}
