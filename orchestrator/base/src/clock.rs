//! The clock, passed as an argument: the system's, or one that a test controls.
//!
//! Owns the only reads of the wall clock outside ids.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, SubsecRound, Utc};
use tokio::sync::watch;

/// A source of time.
#[derive(Debug, Clone)]
pub enum Clock {
    System {
        /// When this clock was created; the start of its monotonic time.
        since: Instant,
    },
    Manual(ManualClock),
}

/// A clock that only moves when a test advances it. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<watch::Sender<ManualTime>>);

#[derive(Debug, Clone, Copy)]
struct ManualTime {
    wall: DateTime<Utc>,
    monotonic: Duration,
}

impl Clock {
    pub fn system() -> Self {
        Self::System { since: Instant::now() }
    }

    /// The wall clock time, truncated to microseconds, the precision of databases.
    pub fn now(&self) -> DateTime<Utc> {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the only implementation of the clock")]
            Self::System { .. } => Utc::now().trunc_subsecs(6),
            Self::Manual(clock) => clock.0.borrow().wall,
        }
    }

    /// Monotonic time since an arbitrary start; for leases and timeouts.
    pub fn monotonic(&self) -> Duration {
        match self {
            Self::System { since } => since.elapsed(),
            Self::Manual(clock) => clock.0.borrow().monotonic,
        }
    }

    /// The monotonic time at which the wall clock shows `wall`, unless it is stepped before; now if it has passed.
    pub fn monotonic_at(&self, wall: DateTime<Utc>) -> Duration {
        let (monotonic, now) = match self {
            Self::System { since } => (since.elapsed(), self.now()),
            // Both at once: the clock may be advanced at any moment.
            Self::Manual(clock) => {
                let time = *clock.0.borrow();
                (time.monotonic, time.wall)
            }
        };
        monotonic + (wall - now).to_std().unwrap_or_default()
    }

    /// Returns once monotonic time has reached `until`.
    pub async fn sleep_until(&self, until: Duration) {
        match self {
            Self::System { since } => tokio::time::sleep_until((*since + until).into()).await,
            Self::Manual(clock) => {
                // The sender lives in `self`, so this cannot fail.
                let _ = clock.0.subscribe().wait_for(|time| time.monotonic >= until).await;
            }
        }
    }
}

impl ManualClock {
    /// A clock whose wall clock time is `wall`.
    pub fn at(wall: DateTime<Utc>) -> Self {
        Self(Arc::new(watch::Sender::new(ManualTime { wall: wall.trunc_subsecs(6), monotonic: Duration::ZERO })))
    }

    /// Advances wall clock and monotonic time.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|time| {
            time.wall = (time.wall + by).trunc_subsecs(6);
            time.monotonic += by;
        });
    }

    /// Steps only the wall clock, as an operator or NTP may.
    pub fn step_wall_to(&self, wall: DateTime<Utc>) {
        self.0.send_modify(|time| time.wall = wall.trunc_subsecs(6));
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

    #[tokio::test]
    async fn a_sleep_on_a_manual_clock_ends_when_the_clock_reaches_its_time() {
        let manual = ManualClock::at(DateTime::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        manual.advance(Duration::from_secs(10));
        clock.sleep_until(Duration::from_secs(10)).await;
        let sleep = clock.sleep_until(Duration::from_secs(20));
        tokio::pin!(sleep);
        manual.advance(Duration::from_secs(9));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        manual.advance(Duration::from_secs(1));
        sleep.await;
    }

    #[test]
    fn a_time_of_the_wall_clock_is_one_of_monotonic_time() {
        let manual = ManualClock::at(DateTime::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        manual.advance(Duration::from_secs(10));
        let at = |seconds| clock.monotonic_at(DateTime::from_timestamp(seconds, 0).unwrap());
        assert_eq!(
            (at(15), at(10), at(5)),
            (Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(10))
        );
    }

    #[test]
    fn the_system_clock_has_whole_microseconds() {
        let clock = Clock::system();
        assert_eq!(clock.now().timestamp_subsec_nanos() % 1000, 0);
        assert!(clock.monotonic() <= clock.monotonic());
    }
}
