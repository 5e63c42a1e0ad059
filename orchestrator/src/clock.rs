//! Time as an argument: the system's, or a test's own.
//!
//! Owns the only reads of the wall clock outside ids. Never sleeps.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, SubsecRound, Utc};

/// What time it is.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The system's.
    System {
        /// When this clock was made; monotonic time counts from here.
        since: Instant,
    },
    /// Set by hand.
    Manual(ManualClock),
}

/// A clock that stands still until it is told otherwise. Clones show the same time.
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

    /// The wall clock, in whole microseconds as every database keeps them.
    pub fn now(&self) -> DateTime<Utc> {
        match self {
            #[expect(clippy::disallowed_methods, reason = "this is the clock that everyone else is given")]
            Self::System { .. } => Utc::now().trunc_subsecs(6),
            Self::Manual(clock) => clock.lock().wall,
        }
    }

    /// Time that only goes forward, from an arbitrary start; for leases and timeouts.
    pub fn monotonic(&self) -> Duration {
        match self {
            Self::System { since } => since.elapsed(),
            Self::Manual(clock) => clock.lock().monotonic,
        }
    }
}

impl ManualClock {
    /// Starts at `wall`.
    pub fn at(wall: DateTime<Utc>) -> Self {
        Self(Arc::new(Mutex::new(ManualTime { wall: wall.trunc_subsecs(6), monotonic: Duration::ZERO })))
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, by: Duration) {
        let mut time = self.lock();
        time.wall = (time.wall + by).trunc_subsecs(6);
        time.monotonic += by;
    }

    /// Steps the wall clock alone, as an operator or NTP may.
    pub fn step_wall_to(&self, wall: DateTime<Utc>) {
        self.lock().wall = wall.trunc_subsecs(6);
    }

    fn lock(&self) -> MutexGuard<'_, ManualTime> {
        // Two plain values: a panic elsewhere cannot have left them half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_does_not_move_monotonic_time() {
        let start = DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap();
        let hand = ManualClock::at(start);
        let clock = Clock::Manual(hand.clone());
        assert_eq!(clock.now().timestamp_subsec_nanos(), 123_456_000);
        hand.advance(Duration::from_secs(5));
        hand.step_wall_to(start - Duration::from_hours(1));
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
