//! The calls of a job that were let in and are not written down yet, so that calls made at one moment do not pass a limit together.
//!
//! Owns the order of counting and writing down, a job at a time, and how many of a job's calls are made at once. Never knows
//! what is counted: that is asked of the database.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use protocol::JobId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls of one job that are made at once; the next ones wait (contract: sandbox, Worker API).
const MAX_IN_FLIGHT: usize = 4;

/// Of one kind of call, for every job that has any under way.
#[derive(Default)]
pub(super) struct Seats(Mutex<HashMap<JobId, Arc<Job>>>);

struct Job {
    /// Held while the database is asked how many were made, and while one more is written down.
    turn: tokio::sync::Mutex<()>,
    /// Calls that were let in.
    taken: AtomicU64,
    /// Those, and the ones that wait for their turn.
    seats: AtomicU64,
    /// One for each call that is being made.
    in_flight: Arc<Semaphore>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            taken: AtomicU64::default(),
            seats: AtomicU64::default(),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        }
    }
}

/// What a call found when it came in.
pub(super) enum Entry<K> {
    /// It was made already.
    Known(K),
    /// It may be made.
    Free(Seat),
    /// No more may.
    Full,
}

/// A call's place among those of its job, given back when it is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    id: JobId,
    job: Arc<Job>,
    taken: bool,
}

impl Seats {
    /// Looks whether the call is known and how many more may be made; the ones under way are among those.
    pub(super) async fn enter<K, E>(
        self: &Arc<Self>,
        id: JobId,
        look: impl Future<Output = Result<(Option<K>, u64), E>>,
    ) -> Result<Entry<K>, E> {
        let mut seat = self.seat(id);
        let job = Arc::clone(&seat.job);
        let _turn = job.turn.lock().await;
        let (known, left) = look.await?;
        if let Some(known) = known {
            return Ok(Entry::Known(known));
        }
        if job.taken.load(Ordering::Relaxed) >= left {
            return Ok(Entry::Full);
        }
        job.taken.fetch_add(1, Ordering::Relaxed);
        seat.taken = true;
        Ok(Entry::Free(seat))
    }

    fn seat(self: &Arc<Self>, id: JobId) -> Seat {
        let mut jobs = self.lock();
        let job = Arc::clone(jobs.entry(id).or_default());
        job.seats.fetch_add(1, Ordering::Relaxed);
        Seat { seats: Arc::clone(self), id, job, taken: false }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits until fewer than [`MAX_IN_FLIGHT`] other calls of the job are being made. None: never, the table is gone.
    pub(super) async fn in_flight(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.job.in_flight).acquire_owned().await.ok()
    }

    /// Writes the call down: from then on it counts as made, and no longer as under way.
    pub(super) async fn leave<T>(self, record: impl Future<Output = T>) -> T {
        let job = Arc::clone(&self.job);
        let _turn = job.turn.lock().await;
        let done = record.await;
        drop(self);
        done
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut jobs = self.seats.lock();
        if self.taken {
            self.job.taken.fetch_sub(1, Ordering::Relaxed);
        }
        // Every call that is in, or waits for its turn, has a seat; the last one clears the table.
        self.job.seats.fetch_sub(1, Ordering::Relaxed);
        if self.job.seats.load(Ordering::Relaxed) == 0 {
            jobs.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Of two that may be made.
    async fn enter(seats: &Arc<Seats>, made: u64) -> Entry<&'static str> {
        enter_with(seats, 2 - made).await
    }

    #[tokio::test]
    async fn those_under_way_count_until_they_are_written_down() {
        let seats = Arc::new(Seats::default());
        let Entry::Free(first) = enter(&seats, 0).await else { panic!("there is room for two") };
        let Entry::Free(second) = enter(&seats, 0).await else { panic!("there is room for two") };
        assert!(matches!(enter(&seats, 0).await, Entry::Full));
        first.leave(async {}).await;
        assert!(matches!(enter(&seats, 1).await, Entry::Full));
        // One that came to nothing gives its place back.
        drop(second);
        assert!(matches!(enter(&seats, 1).await, Entry::Free(_)));
        assert!(seats.lock().is_empty());
    }

    #[tokio::test]
    async fn four_are_made_at_once_and_the_next_one_waits() {
        let seats = Arc::new(Seats::default());
        let mut made = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            let Entry::Free(seat) = enter_with(&seats, 10).await else { panic!("there is room") };
            made.push((seat.in_flight().await, seat));
        }
        let Entry::Free(fifth) = enter_with(&seats, 10).await else { panic!("there is room") };
        let mut waits = Box::pin(fifth.in_flight());
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(made.pop());
        assert!(waits.await.is_some());
    }

    async fn enter_with(seats: &Arc<Seats>, left: u64) -> Entry<&'static str> {
        let looked: Result<_, Infallible> = seats.enter(JobId::nil(), async { Ok((None, left)) }).await;
        looked.unwrap_or(Entry::Full)
    }

    #[tokio::test]
    async fn one_that_is_known_takes_no_place() {
        let seats = Arc::new(Seats::default());
        let known: Result<_, Infallible> = seats.enter(JobId::nil(), async { Ok((Some("answer"), 0)) }).await;
        assert!(matches!(known, Ok(Entry::Known("answer"))));
        let failed = seats.enter(JobId::nil(), async { Err::<(Option<()>, u64), _>("busy") }).await;
        assert!(matches!(failed, Err("busy")));
        assert!(seats.lock().is_empty());
    }
}
