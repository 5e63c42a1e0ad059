//! Long polls for prompts: one for each job, the newest.
//!
//! Owns who has to give way. Never reads a prompt.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use protocol::JobId;
use tokio_util::sync::CancellationToken;

/// The polls under way.
#[derive(Debug, Default)]
pub(super) struct Polls {
    newest: Mutex<HashMap<JobId, Arc<CancellationToken>>>,
}

/// A poll under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Poll {
    polls: Arc<Polls>,
    job: JobId,
    overtaken: Arc<CancellationToken>,
}

impl Polls {
    /// A new poll of a job; the one before it is over.
    pub(super) fn begin(self: &Arc<Self>, job: JobId) -> Poll {
        let overtaken = Arc::new(CancellationToken::new());
        if let Some(older) = self.lock().insert(job, Arc::clone(&overtaken)) {
            older.cancel();
        }
        Poll { polls: Arc::clone(self), job, overtaken }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<CancellationToken>>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Poll {
    /// Returns when a newer one has begun.
    pub(super) async fn overtaken(&self) {
        self.overtaken.cancelled().await;
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        let mut newest = self.polls.lock();
        if newest.get(&self.job).is_some_and(|newest| Arc::ptr_eq(newest, &self.overtaken)) {
            newest.remove(&self.job);
        }
    }
}
