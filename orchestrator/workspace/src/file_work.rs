//! Runs file operations on behalf of users on blocking threads, with a limit in total and per user.
//!
//! A permit belongs to the operation and not to the request: a client that disconnects does not release a permit that
//! is still in use.

use std::{io, sync::Arc};

use super::FileError;
use base::per_user_semaphore::{PerUserSemaphore, Permit};

/// Concurrent operations in total, so that threads are left for the orchestrator's own work.
const MAX_WORK: usize = 16;
/// Concurrent operations of one user.
const MAX_WORK_PER_USER: usize = 4;
/// Concurrent archive downloads in total; each can hold as many descriptors as a workspace is deep.
const MAX_ARCHIVES: usize = 32;
/// Concurrent archive downloads of one user.
const MAX_ARCHIVES_PER_USER: usize = 4;

/// The limits; clones share them.
#[derive(Debug, Clone)]
pub struct FileWork {
    work: Arc<PerUserSemaphore>,
    archives: Arc<PerUserSemaphore>,
}

impl Default for FileWork {
    fn default() -> Self {
        Self {
            work: Arc::new(PerUserSemaphore::new(MAX_WORK, MAX_WORK_PER_USER)),
            archives: Arc::new(PerUserSemaphore::new(MAX_ARCHIVES, MAX_ARCHIVES_PER_USER)),
        }
    }
}

impl FileWork {
    /// Runs an operation on a blocking thread once there is a permit. Runs to its end even if this future is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        user: &str,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let permit = self.work.acquire(user).await.map_err(other)?;
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        work.await.map_err(other)?
    }

    /// A permit to send an archive.
    pub async fn archive(&self, user: &str) -> Result<Permit, FileError> {
        self.archives.acquire(user).await.map_err(other)
    }
}

/// A failure of the runtime: a closed semaphore, or an operation that panicked.
fn other(error: impl std::error::Error + Send + Sync + 'static) -> FileError {
    FileError::Io(io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_dropped_request_releases_no_permit_in_use_and_takes_no_other() {
        let work = FileWork::default();
        let mut gates = vec![];
        for _ in 0..MAX_WORK_PER_USER {
            let (open, gate) = mpsc::channel::<()>();
            gates.push(open);
            let asked = work.run("ada", move || Ok(gate.recv().is_err()));
            // The client disconnects while the work is running.
            assert!(tokio::time::timeout(Duration::from_millis(50), asked).await.is_err());
        }
        assert_eq!(work.work.available(), MAX_WORK - MAX_WORK_PER_USER);
        let next = work.run("ada", || Ok(()));
        assert!(tokio::time::timeout(Duration::from_millis(50), next).await.is_err(), "her share is in use");
        work.run("bob", || Ok(())).await.unwrap();
        drop(gates);
        work.run("ada", || Ok(())).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), async {
            while work.work.available() < MAX_WORK {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
