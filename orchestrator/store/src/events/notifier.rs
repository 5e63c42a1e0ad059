//! Notifications of committed changes: of new events by topic, of threads that the chat engine can work on, and of
//! heartbeats. They carry no
//! data: the reader queries the database.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use protocol::JobId;
use tokio::sync::{Notify, watch};

/// What a subscriber wants to know about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// New events of one job.
    Job(JobId),
    /// New events of the instance that concern one user.
    User(String),
    /// New events of the instance, of any user.
    AllUsers,
    /// New events that wait for routines.
    RoutineEvents,
    /// Notifications to post to webhooks.
    NotificationSender,
}

/// One notification channel for each topic with subscribers.
#[derive(Default)]
pub struct EventNotifier {
    topics: Mutex<HashMap<Topic, watch::Sender<()>>>,
    chats: Notify,
    heartbeats: Notify,
}

/// A subscription to one topic; dropping it ends the subscription.
pub struct EventSubscription {
    notifier: Arc<EventNotifier>,
    topic: Topic,
    changes: watch::Receiver<()>,
}

impl EventNotifier {
    /// Subscribes to a topic. Every commit after this call notifies the subscription.
    pub fn subscribe(self: &Arc<Self>, topic: Topic) -> EventSubscription {
        let mut topics = self.topics.lock();
        let changes = topics.entry(topic.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
        EventSubscription { notifier: Arc::clone(self), topic, changes }
    }

    /// Notifies the subscribers of a topic. Called after the commit.
    pub(crate) fn notify(&self, topic: &Topic) {
        let topics = self.topics.lock();
        let all = matches!(topic, Topic::User(_)).then_some(&Topic::AllUsers);
        for subscribers in all.into_iter().chain([topic]).filter_map(|topic| topics.get(topic)) {
            subscribers.send_replace(());
        }
    }

    /// Returns once a thread may have become one that can be worked on since the last return. For one reader.
    pub async fn chat_work(&self) {
        self.chats.notified().await;
    }

    /// Wakes the reader of [`Self::chat_work`]. Called after the commit.
    pub(crate) fn wake_chats(&self) {
        self.chats.notify_one();
    }
}

impl EventNotifier {
    /// Returns once there may be a heartbeat to decide about that was not there at the last return. For one reader.
    pub async fn heartbeat_work(&self) {
        self.heartbeats.notified().await;
    }

    /// Wakes the reader of [`Self::heartbeat_work`]. Called after the commit.
    pub(crate) fn wake_heartbeats(&self) {
        self.heartbeats.notify_one();
    }
}

impl EventSubscription {
    /// Returns once there is something new since the last return.
    pub async fn changed(&mut self) {
        // The sender is in the map as long as a subscription exists, so this cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let mut topics = self.notifier.topics.lock();
        if topics.get(&self.topic).is_some_and(|subscribers| subscribers.receiver_count() <= 1) {
            topics.remove(&self.topic);
        }
    }
}
