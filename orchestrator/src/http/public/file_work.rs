//! Work on files for requests: on blocking threads, with a bound on how much at once and a share for each user.
//!
//! A permit goes with the work and not with the request: a client that disconnects frees nothing that is still in use,
//! and what it asked for is given up.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{http::problem::ApiError, workspace::FileError};

use super::files::told;

/// Blocking work at once, for all: what waits must not take every thread that the orchestrator's own work needs.
const MAX_WORK: usize = 16;
/// The same for one user.
const MAX_WORK_PER_USER: usize = 4;
/// Archives that are being sent at once, for all; each may hold as many descriptors as a workspace is deep.
const MAX_ARCHIVES: usize = 32;
/// The same for one user.
const MAX_ARCHIVES_PER_USER: usize = 4;
/// Users' semaphores are looked through for unused ones from this number on.
const MANY_USERS: usize = 256;

/// The bounds; clones are the same ones.
#[derive(Debug, Clone)]
pub struct FileWork {
    work: Arc<Shared>,
    archives: Arc<Shared>,
}

impl Default for FileWork {
    fn default() -> Self {
        Self {
            work: Arc::new(Shared::new(MAX_WORK, MAX_WORK_PER_USER)),
            archives: Arc::new(Shared::new(MAX_ARCHIVES, MAX_ARCHIVES_PER_USER)),
        }
    }
}

impl FileWork {
    /// Does it on a blocking thread once it is its turn.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        user: &str,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.run_any(user, work).await?.map_err(told)
    }

    /// The same for work with errors of its own.
    pub(super) async fn run_any<T: Send + 'static>(
        &self,
        user: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.work.acquire(user).await?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(ApiError::internal)
    }

    /// A permit to send an archive.
    pub(super) async fn archive(&self, user: &str) -> Result<Permit, ApiError> {
        self.archives.acquire(user).await
    }
}

/// A user's share and one of all.
#[derive(Debug)]
pub(super) struct Permit {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// A semaphore with a share for each user.
#[derive(Debug)]
struct Shared {
    all: Arc<Semaphore>,
    per_user: usize,
    users: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shared {
    fn new(all: usize, per_user: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), per_user, users: Mutex::default() }
    }

    /// First the user's own, so that who waits for it keeps none of all.
    async fn acquire(&self, user: &str) -> Result<Permit, ApiError> {
        let own = self.of_user(user).acquire_owned().await.map_err(ApiError::internal)?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.map_err(ApiError::internal)?;
        Ok(Permit { _own: own, _of_all: of_all })
    }

    fn of_user(&self, user: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= MANY_USERS {
            users.retain(|_, semaphore| semaphore.strong_count() > 0);
        }
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        let semaphore = Arc::new(Semaphore::new(self.per_user));
        users.insert(user.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_request_that_goes_away_frees_no_permit_that_is_in_use_and_takes_no_others() {
        let work = FileWork::default();
        let mut gates = vec![];
        for _ in 0..MAX_WORK_PER_USER {
            let (open, gate) = mpsc::channel::<()>();
            gates.push(open);
            let asked = work.run("ada", move || Ok(gate.recv().is_err()));
            // The client goes while the work is under way.
            assert!(tokio::time::timeout(Duration::from_millis(50), asked).await.is_err());
        }
        assert_eq!(work.work.all.available_permits(), MAX_WORK - MAX_WORK_PER_USER);
        let next = work.run("ada", || Ok(()));
        assert!(tokio::time::timeout(Duration::from_millis(50), next).await.is_err(), "her share is in use");
        work.run("bob", || Ok(())).await.unwrap();
        drop(gates);
        work.run("ada", || Ok(())).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), async {
            while work.work.all.available_permits() < MAX_WORK {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
