//! A semaphore with a limit for each user.
//!
//! Owns the number of permits, in total and per user. Never knows what they are for.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// From this number of users on, unused semaphores are removed.
const MANY_USERS: usize = 256;

/// A permit of the user and one of the total.
#[derive(Debug)]
pub struct Permit {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// A semaphore with a limit for each user.
#[derive(Debug)]
pub struct PerUserSemaphore {
    all: Arc<Semaphore>,
    per_user: usize,
    users: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl PerUserSemaphore {
    /// `all` permits in total, of which one user gets at most `per_user`.
    pub fn new(all: usize, per_user: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), per_user, users: Mutex::default() }
    }

    /// Free permits.
    pub fn available(&self) -> usize {
        self.all.available_permits()
    }

    /// Waits for one permit. An error means that the semaphore was closed, which nothing does.
    pub async fn acquire(&self, user: &str) -> Result<Permit, AcquireError> {
        self.acquire_many(user, 1).await
    }

    /// Waits for several permits: first the user's own, so that waiting for those keeps none of the total.
    pub async fn acquire_many(&self, user: &str, permits: u32) -> Result<Permit, AcquireError> {
        let own = self.of_user(user).acquire_many_owned(permits).await?;
        let of_all = Arc::clone(&self.all).acquire_many_owned(permits).await?;
        Ok(Permit { _own: own, _of_all: of_all })
    }

    /// One permit, if one is available now.
    pub fn try_acquire(&self, user: &str) -> Option<Permit> {
        let own = self.of_user(user).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Permit { _own: own, _of_all: of_all })
    }

    fn of_user(&self, user: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock();
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
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_user_takes_no_more_than_a_share() {
        let semaphore = PerUserSemaphore::new(3, 1);
        let permit = semaphore.acquire("ada").await.unwrap();
        assert!(semaphore.acquire("ada").now_or_never().is_none());
        let others = [semaphore.acquire("bob").await, semaphore.acquire("cleo").await];
        assert!(others.iter().all(Result::is_ok));
        assert!(semaphore.acquire("dan").now_or_never().is_none(), "all three are taken");
        drop(permit);
        assert!(semaphore.acquire("ada").now_or_never().is_some());
    }
}
