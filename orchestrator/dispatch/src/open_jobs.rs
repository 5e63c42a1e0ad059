//! The dispatcher's facts in memory: the open jobs, without their texts, as committed changes leave them.
//!
//! The database is the truth. The facts are read from it at the start and whenever they are in doubt: a change does not
//! fit what is known, a write failed and may be committed nevertheless, or another program has changed the open jobs.
//! The store reads them in the order of commits and tells of every later change in that order, so there is no change
//! that is neither in what was read nor told afterwards.

mod index;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use protocol::JobId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{AttemptRegistry, DispatcherWaker};
use store::{JobChange, JobObserver, Store, StoreError};

use self::index::JobIndex;
pub(super) use self::index::ListedJobs;

/// How often it is checked whether another program has written to the database.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How often the facts are checked without such a write.
const CHECK_INTERVAL: Duration = Duration::from_mins(10);

/// The open jobs. Shared by the store's observer and the dispatcher.
#[derive(Debug)]
pub struct OpenJobs {
    state: Mutex<State>,
    /// Woken when the facts come into doubt.
    waker: DispatcherWaker,
}

#[derive(Debug, Default)]
struct State {
    index: JobIndex,
    /// Whether the facts were read, and are not in doubt since.
    is_current: bool,
}

impl OpenJobs {
    /// Nothing is known yet.
    pub fn new(waker: DispatcherWaker) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), waker })
    }

    /// The observer that the store calls after each commit: the open jobs and the attempts are told.
    pub fn observer(self: &Arc<Self>, attempts: &Arc<AttemptRegistry>) -> JobObserver {
        let (jobs, attempts) = (Arc::clone(self), Arc::clone(attempts));
        Arc::new(move |change| {
            // First, so that an attempt is never registered before its job is known to be open.
            jobs.observe(change);
            attempts.observe_change(change);
        })
    }

    fn observe(&self, change: JobChange<'_>) {
        let mut state = self.state.lock();
        if let JobChange::Read(read) = change {
            *state = State { index: JobIndex::new(read), is_current: true };
        } else if let Err(doubt) = state.index.apply(change) {
            tracing::info!(%doubt, "the open jobs are read again");
            state.is_current = false;
            self.waker.wake();
        }
    }

    /// Reads the facts if they are in doubt.
    pub(super) async fn ensure_read(&self, store: &Store) -> Result<(), StoreError> {
        let is_current = self.state.lock().is_current;
        if is_current { Ok(()) } else { store.read_open_jobs().await }
    }

    /// The jobs that a plan is about: see [`JobIndex::list`].
    pub(super) fn list(&self, pending_per_user: usize) -> ListedJobs {
        self.state.lock().index.list(pending_per_user)
    }

    /// Leaves a job out of plans until its row is read again.
    pub(super) fn set_unreadable(&self, job: JobId) {
        self.state.lock().index.set_unreadable(job);
    }

    pub(super) fn keeps_attempt(&self, job: JobId, attempt: u32) -> bool {
        self.state.lock().index.keeps_attempt(job, attempt)
    }
}

/// Checks the facts when another program has written to the database, such as a person who corrects a row, and now and
/// then. A separate task, because a check waits for its turn among the writes.
pub struct DatabaseWatch {
    pub store: Store,
}

impl DatabaseWatch {
    /// Runs until the drain fires.
    pub async fn run(self, drain: CancellationToken) {
        let (mut known, mut checked_at) = (None, Instant::now());
        loop {
            // What the dispatcher needs the database for fails, too, and is reported there.
            if let Err(error) = self.check(&mut known, &mut checked_at).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot check the open jobs");
            }
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
            }
        }
    }

    async fn check(&self, known: &mut Option<i64>, checked_at: &mut Instant) -> Result<(), StoreError> {
        let version = self.store.data_version().await?;
        let is_known = known.is_none_or(|known| known == version);
        if !is_known || checked_at.elapsed() >= CHECK_INTERVAL {
            self.store.sum_open_jobs().await?;
            *checked_at = Instant::now();
        }
        *known = Some(version);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
