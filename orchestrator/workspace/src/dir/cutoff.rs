//! When work on a directory tree stops before it is done: at a deadline, or when it is cancelled.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::FileError;

/// A deadline and a cancellation token. The default has no deadline and is never cancelled.
#[derive(Debug, Clone, Default)]
pub struct Cutoff {
    /// None: no deadline.
    pub deadline: Option<Instant>,
    /// Cancelled when no one waits for the result any more.
    pub cancelled: CancellationToken,
}

impl Cutoff {
    /// A deadline `limit` from now, and a cancellation.
    pub fn after(limit: Duration, cancelled: &CancellationToken) -> Self {
        Self { deadline: Some(Instant::now() + limit), cancelled: cancelled.clone() }
    }

    /// Fails with [`FileError::TimedOut`] once the deadline has passed or the work is cancelled.
    pub fn check(&self) -> Result<(), FileError> {
        if self.cancelled.is_cancelled() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(FileError::TimedOut);
        }
        Ok(())
    }
}
