//! The runs that this process works on.
//!
//! Holds as many as may be in progress at once. An entry is removed when its task ends, however it ends.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use protocol::RunId;
use tokio_util::sync::CancellationToken;

/// Why the work on a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunStopCause {
    /// The run has ended in the database.
    Ended,
    Drained,
}

/// The runs that this process works on. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct LiveRuns(Arc<Mutex<HashMap<RunId, Entry>>>);

#[derive(Debug, Clone)]
struct Entry {
    stop: CancellationToken,
    cause: Arc<OnceLock<RunStopCause>>,
}

/// A run that is worked on, until this is dropped.
#[derive(Debug)]
pub(super) struct LiveRun {
    runs: LiveRuns,
    run: RunId,
    entry: Entry,
}

impl LiveRuns {
    /// Adds a run that starts.
    pub(super) fn insert(&self, run: RunId) -> LiveRun {
        let entry = Entry { stop: CancellationToken::new(), cause: Arc::default() };
        self.0.lock().insert(run, entry.clone());
        LiveRun { runs: self.clone(), run, entry }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub(super) fn ids(&self) -> Vec<RunId> {
        self.0.lock().keys().copied().collect()
    }

    /// Stops the work on a run. The first cause stays.
    pub(super) fn stop(&self, run: RunId, cause: RunStopCause) {
        if let Some(entry) = self.0.lock().get(&run) {
            let _ = entry.cause.set(cause);
            entry.stop.cancel();
        }
    }
}

impl LiveRun {
    /// Cancelled when the work is to stop.
    pub(super) const fn stop(&self) -> &CancellationToken {
        &self.entry.stop
    }

    /// Why the work is to stop, if it is.
    pub(super) fn stop_cause(&self) -> Option<RunStopCause> {
        self.entry.cause.get().copied()
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let mut entries = self.runs.0.lock();
        // The run may have started again, with its own entry.
        if entries.get(&self.run).is_some_and(|entry| Arc::ptr_eq(&entry.cause, &self.entry.cause)) {
            entries.remove(&self.run);
        }
    }
}
