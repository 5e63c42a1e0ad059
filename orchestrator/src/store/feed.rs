//! Notifications for readers of events, by job. Carry no data: the reader asks the database.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use protocol::JobId;
use tokio::sync::watch;

/// One notification channel per followed job.
#[derive(Default)]
pub struct Feed {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// Follows one job. Dropping it stops following.
pub struct Follower {
    feed: Arc<Feed>,
    job: JobId,
    changes: watch::Receiver<()>,
}

impl Feed {
    /// Follows a job: whatever is committed after this call notifies the follower.
    pub fn follow(self: &Arc<Self>, job: JobId) -> Follower {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = jobs.entry(job).or_insert_with(|| watch::channel(()).0).subscribe();
        Follower { feed: Arc::clone(self), job, changes }
    }

    /// Notifies a job's followers. Called after the commit.
    pub(super) fn notify(&self, job: JobId) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(followers) = jobs.get(&job) {
            followers.send_replace(());
        }
    }
}

impl Follower {
    /// Returns once the job has new events since the last return.
    pub async fn changed(&mut self) {
        // The sender lives in the map as long as a follower does, so this cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut jobs = self.feed.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.get(&self.job).is_some_and(|followers| followers.receiver_count() <= 1) {
            jobs.remove(&self.job);
        }
    }
}
