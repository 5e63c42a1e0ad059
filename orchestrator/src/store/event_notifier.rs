//! Notifications of committed changes: of new events by job, and of threads that the chat engine can work on. They carry no
//! data: the reader queries the database.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use protocol::JobId;
use tokio::sync::{Notify, watch};

/// One notification channel for each job with subscribers.
#[derive(Default)]
pub struct EventNotifier {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
    chats: Notify,
}

/// A subscription to one job; dropping it ends the subscription.
pub struct EventSubscription {
    notifier: Arc<EventNotifier>,
    job: JobId,
    changes: watch::Receiver<()>,
}

impl EventNotifier {
    /// Subscribes to a job. Every commit after this call notifies the subscription.
    pub fn subscribe(self: &Arc<Self>, job: JobId) -> EventSubscription {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = jobs.entry(job).or_insert_with(|| watch::channel(()).0).subscribe();
        EventSubscription { notifier: Arc::clone(self), job, changes }
    }

    /// Notifies the subscribers of a job. Called after the commit.
    pub(super) fn notify(&self, job: JobId) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(subscribers) = jobs.get(&job) {
            subscribers.send_replace(());
        }
    }

    /// Returns once a thread may have become one that can be worked on since the last return. For one reader.
    pub async fn chat_work(&self) {
        self.chats.notified().await;
    }

    /// Wakes the reader of [`Self::chat_work`]. Called after the commit.
    pub(super) fn wake_chats(&self) {
        self.chats.notify_one();
    }
}

impl EventSubscription {
    /// Returns once the job has new events since the last return.
    pub async fn changed(&mut self) {
        // The sender is in the map as long as a subscription exists, so this cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        let mut jobs = self.notifier.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(&self.job).is_some_and(|subscribers| subscribers.receiver_count() <= 1) {
            jobs.remove(&self.job);
        }
    }
}
