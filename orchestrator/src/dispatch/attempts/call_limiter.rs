//! How many calls of one job are made at once and in all: calls that are admitted and not recorded yet are counted here, so that
//! calls made at the same moment do not pass a limit together.
//!
//! Owns the order of counting and recording. Never knows what is counted: how many calls were recorded is read from the
//! database by the caller.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls of one job that are made at once; the next ones wait (contract: sandbox, Worker API).
const MAX_IN_FLIGHT: usize = 4;

/// The calls of one kind of one job.
#[derive(Debug)]
pub(super) struct CallLimiter {
    /// Held while the recorded calls are counted, and while one more is recorded.
    turn: tokio::sync::Mutex<()>,
    /// Calls that were admitted and are not recorded.
    admitted: AtomicU64,
    /// One permit for each call that is being made.
    in_flight: Arc<Semaphore>,
}

/// What becomes of a call.
#[derive(Debug)]
pub enum Admission<K> {
    /// It was made already.
    Recorded(K),
    /// It may be made.
    Granted(Permit),
    /// No more calls may be made.
    LimitReached,
}

/// The right to make one call, returned when it is dropped.
#[derive(Debug)]
pub struct Permit(Arc<CallLimiter>);

impl Default for CallLimiter {
    fn default() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            admitted: AtomicU64::default(),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        }
    }
}

impl CallLimiter {
    /// Admits a call unless `look` finds it recorded, or finds that no more than the admitted ones may be made.
    pub(super) async fn admit<K, E>(
        self: &Arc<Self>,
        look: impl Future<Output = Result<(Option<K>, u64), E>>,
    ) -> Result<Admission<K>, E> {
        let _turn = self.turn.lock().await;
        let (recorded, left) = look.await?;
        if let Some(recorded) = recorded {
            return Ok(Admission::Recorded(recorded));
        }
        if self.admitted.load(Ordering::Relaxed) >= left {
            return Ok(Admission::LimitReached);
        }
        self.admitted.fetch_add(1, Ordering::Relaxed);
        Ok(Admission::Granted(Permit(Arc::clone(self))))
    }
}

impl Permit {
    /// Waits until fewer than [`MAX_IN_FLIGHT`] other calls of the job are being made.
    pub async fn in_flight(&self) -> Option<OwnedSemaphorePermit> {
        // None only if the semaphore were closed, which nobody does.
        Arc::clone(&self.0.in_flight).acquire_owned().await.ok()
    }

    /// Records the call: from then on it is counted by the database and no longer here.
    pub async fn complete<T>(self, record: impl Future<Output = T>) -> T {
        let limiter = Arc::clone(&self.0);
        let _turn = limiter.turn.lock().await;
        let recorded = record.await;
        drop(self);
        recorded
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.admitted.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    async fn admit(limiter: &Arc<CallLimiter>, left: u64) -> Admission<&'static str> {
        let admitted: Result<_, Infallible> = limiter.admit(async { Ok((None, left)) }).await;
        admitted.unwrap_or(Admission::LimitReached)
    }

    #[tokio::test]
    async fn admitted_calls_count_until_they_are_recorded() {
        let limiter = Arc::new(CallLimiter::default());
        let Admission::Granted(first) = admit(&limiter, 2).await else { panic!("two may be made") };
        let Admission::Granted(second) = admit(&limiter, 2).await else { panic!("two may be made") };
        assert!(matches!(admit(&limiter, 2).await, Admission::LimitReached));
        first.complete(async {}).await;
        assert!(matches!(admit(&limiter, 1).await, Admission::LimitReached));
        // One that is dropped before it is recorded returns its permit.
        drop(second);
        assert!(matches!(admit(&limiter, 1).await, Admission::Granted(_)));
    }

    #[tokio::test]
    async fn four_are_made_at_once_and_the_next_one_waits() {
        let limiter = Arc::new(CallLimiter::default());
        let mut made = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            let Admission::Granted(permit) = admit(&limiter, 10).await else { panic!("ten may be made") };
            made.push((permit.in_flight().await, permit));
        }
        let Admission::Granted(fifth) = admit(&limiter, 10).await else { panic!("ten may be made") };
        let mut waits = Box::pin(fifth.in_flight());
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(made.pop());
        assert!(waits.await.is_some());
    }

    #[tokio::test]
    async fn a_recorded_call_takes_no_permit() {
        let limiter = Arc::new(CallLimiter::default());
        let recorded: Result<_, Infallible> = limiter.admit(async { Ok((Some("answer"), 0)) }).await;
        assert!(matches!(recorded, Ok(Admission::Recorded("answer"))));
        let failed = limiter.admit(async { Err::<(Option<()>, u64), _>("busy") }).await;
        assert!(matches!(failed, Err("busy")));
        assert_eq!(limiter.admitted.load(Ordering::Relaxed), 0);
    }
}
