//! Notifications of committed changes: of new events by topic, of threads that the chat engine can work on, and of
//! heartbeats. They carry no data: the reader queries the database.

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
    /// New events of the instance that concern each user. Has no subscribers: it is for those of the other two.
    EachUser,
    /// New events that wait for routines.
    RoutineEvents,
    /// Notifications to post to webhooks.
    NotificationSender,
}

/// One notification channel for each topic with subscribers.
#[derive(Default)]
pub struct EventNotifier {
    topics: Mutex<HashMap<Topic, watch::Sender<()>>>,
    /// A thread may have become one that can be worked on. For one reader; notified after the commit.
    pub chats: Notify,
    /// There may be a heartbeat to decide about that was not there before. For one reader; notified after the commit.
    pub heartbeats: Notify,
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
        if *topic == Topic::EachUser {
            let all = topics.iter().filter(|(topic, _)| matches!(topic, Topic::User(_) | Topic::AllUsers));
            all.for_each(|(_, subscribers)| subscribers.send_replace(()));
            return;
        }
        let all = matches!(topic, Topic::User(_)).then_some(&Topic::AllUsers);
        for subscribers in all.into_iter().chain([topic]).filter_map(|topic| topics.get(topic)) {
            subscribers.send_replace(());
        }
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
