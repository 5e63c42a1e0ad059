//! How many calls of one account are in flight at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls of one job that are in flight at once; the next ones wait.
const MAX_IN_FLIGHT: usize = 4;

/// The calls in flight of one account. Clones share the limit.
#[derive(Debug, Clone)]
pub struct CallLimiter(Arc<Semaphore>);

impl Default for CallLimiter {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_IN_FLIGHT)))
    }
}

impl CallLimiter {
    /// A permit, if one is free now.
    pub fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }

    /// Waits for a permit, in order of arrival.
    pub async fn acquire(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.0).acquire_owned().await {
            Ok(permit) => permit,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn four_are_in_flight_at_once_and_the_next_one_waits() {
        let limiter = CallLimiter::default();
        let mut held: Vec<OwnedSemaphorePermit> = (0..MAX_IN_FLIGHT).map_while(|_| limiter.try_acquire()).collect();
        assert_eq!((held.len(), limiter.try_acquire().is_none()), (MAX_IN_FLIGHT, true));
        let mut waits = Box::pin(limiter.acquire());
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(held.pop());
        drop(waits.await);
    }
}
