//! The clock, passed as an argument: the system's, or one that a test controls.
//!
//! Owns the only reads of the wall clock outside ids. Never sleeps.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, SubsecRound, Utc};

/// A source of time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The system's clock.
    System {
        /// When this clock was created; the start of its monotonic time.
        since: Instant,
    },
    /// A test's clock.
    Manual(ManualClock),
}

/// A clock that only moves when a test advances it. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<ManualTime>>);

#[derive(Debug, Clone, Copy)]
struct ManualTime {
    wall: DateTime<Utc>,
    monotonic: Duration,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::System { since: Instant::now() }
    }

    /// The wall clock time, truncated to microseconds, the precision of databases.
    pub fn now(&self) -> DateTime<Utc> {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the only implementation of the clock")]
            Self::System { .. } => Utc::now().trunc_subsecs(6),
            Self::Manual(clock) => clock.lock().wall,
        }
    }

    /// Monotonic time since an arbitrary start; for leases and timeouts.
    pub fn monotonic(&self) -> Duration {
        match self {
            Self::System { since } => since.elapsed(),
            Self::Manual(clock) => clock.lock().monotonic,
        }
    }
}

impl ManualClock {
    /// A clock whose wall clock time is `wall`.
    pub fn at(wall: DateTime<Utc>) -> Self {
        Self(Arc::new(Mutex::new(ManualTime { wall: wall.trunc_subsecs(6), monotonic: Duration::ZERO })))
    }

    /// Advances wall clock and monotonic time.
    pub fn advance(&self, by: Duration) {
        let mut time = self.lock();
        time.wall = (time.wall + by).trunc_subsecs(6);
        time.monotonic += by;
    }

    /// Steps only the wall clock, as an operator or NTP may.
    pub fn step_wall_to(&self, wall: DateTime<Utc>) {
        self.lock().wall = wall.trunc_subsecs(6);
    }

    fn lock(&self) -> MutexGuard<'_, ManualTime> {
        // A panic while the lock is held cannot leave the time inconsistent: every update completes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_does_not_move_monotonic_time() {
        let start = DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap();
        let manual = ManualClock::at(start);
        let clock = Clock::Manual(manual.clone());
        assert_eq!(clock.now().timestamp_subsec_nanos(), 123_456_000);
        manual.advance(Duration::from_secs(5));
        manual.step_wall_to(start - Duration::from_hours(1));
        assert_eq!(clock.monotonic(), Duration::from_secs(5));
        assert_eq!(clock.now().timestamp(), 1_700_000_000 - 3600);
    }

    #[test]
    fn the_system_clock_has_whole_microseconds() {
        let clock = Clock::system();
        assert_eq!(clock.now().timestamp_subsec_nanos() % 1000, 0);
        assert!(clock.monotonic() <= clock.monotonic());
    }
}
