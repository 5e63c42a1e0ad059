//! Wakes for readers of events: one bell per followed job and one for the whole instance. Carries no data; the reader
//! asks the database.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use protocol::JobId;
use tokio::sync::watch;

/// The bells.
#[derive(Default)]
pub struct Feed {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// Hears one job's bell. Dropping it stops following.
pub struct Follower {
    feed: Arc<Feed>,
    job: JobId,
    bell: watch::Receiver<()>,
}

impl Feed {
    /// Follows a job. Whatever is committed after this call rings.
    pub fn follow(self: &Arc<Self>, job: JobId) -> Follower {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let bell = jobs.entry(job).or_insert_with(|| watch::channel(()).0).subscribe();
        Follower { feed: Arc::clone(self), job, bell }
    }

    /// Rings a job's bell; called after the commit.
    pub(super) fn ring(&self, job: JobId) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = jobs.get(&job) {
            bell.send_replace(());
        }
    }
}

impl Follower {
    /// Returns once the job has new events since the last return.
    pub async fn changed(&mut self) {
        // The sender lives in the map as long as a follower does, so this cannot fail.
        let _ = self.bell.changed().await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut jobs = self.feed.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(&self.job).is_some_and(|bell| bell.receiver_count() <= 1) {
            jobs.remove(&self.job);
        }
    }
}
