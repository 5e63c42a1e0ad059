//! When a server's event stream that has ended may be opened again.
//!
//! Owns the waits between attempts and their number. The protocol library opens a stream that broke at once, and after
//! as little time as the server asks for.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Wait before the second attempt; doubled with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait, also if the server asks for a longer one.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// A stream that was open for this long begins a new series of attempts.
const STABLE: Duration = Duration::from_secs(10);
/// Attempts after streams that ended earlier. The last one is made some two minutes after the first.
const MAX_ATTEMPTS: u32 = 8;

/// The attempts of one connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Reconnects(Arc<Mutex<Attempts>>);

#[derive(Debug, Default)]
struct Attempts {
    /// When the last stream was, or is to be, opened.
    last: Option<Instant>,
    /// Attempts since a stream was stable.
    count: u32,
    /// The least wait that the server asks for.
    asked: Duration,
}

impl Reconnects {
    /// The time to wait before a stream is opened; none if there were too many attempts.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        self.0.lock().next(now)
    }

    /// The server asks for this wait, in milliseconds.
    pub(super) fn ask(&self, milliseconds: u64) {
        self.0.lock().asked = Duration::from_millis(milliseconds);
    }
}

impl Attempts {
    fn next(&mut self, now: Instant) -> Option<Duration> {
        let wait = match self.last {
            None => Duration::ZERO,
            Some(last) => {
                if now.saturating_duration_since(last) >= STABLE {
                    self.count = 0;
                }
                if self.count == MAX_ATTEMPTS {
                    return None;
                }
                let wait = FIRST_WAIT.saturating_mul(1 << self.count);
                self.count += 1;
                wait.max(self.asked).min(MAX_WAIT)
            }
        };
        self.last = Some(now + wait);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits in seconds if each stream ends after `open`.
    fn waits(reconnects: &Reconnects, attempts: usize, open: Duration) -> Vec<Option<u64>> {
        let mut now = Instant::now();
        let mut next = || {
            let wait = reconnects.next(now);
            now += wait.unwrap_or_default() + open;
            wait.map(|wait| wait.as_secs())
        };
        (0..attempts).map(|_| next()).collect()
    }

    #[test]
    fn waits_grow_up_to_a_maximum_and_a_number() {
        let expected =
            [Some(0), Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(60), Some(60), None, None];
        assert_eq!(waits(&Reconnects::default(), 11, Duration::ZERO), expected);
    }

    #[test]
    fn a_stream_that_was_stable_begins_again() {
        assert_eq!(waits(&Reconnects::default(), 4, STABLE), [Some(0), Some(1), Some(1), Some(1)]);
        let reconnects = Reconnects::default();
        let now = Instant::now();
        while reconnects.next(now).is_some() {}
        assert_eq!(reconnects.next(now + Duration::from_hours(1)), Some(FIRST_WAIT));
    }

    #[test]
    fn a_server_can_ask_for_more_and_not_for_less() {
        for (asked, expected) in [(0, [0, 1, 2]), (1_500, [0, 1, 2]), (5_000, [0, 5, 5]), (u64::MAX, [0, 60, 60])] {
            let reconnects = Reconnects::default();
            reconnects.ask(asked);
            assert_eq!(waits(&reconnects, 3, Duration::ZERO), expected.map(Some), "{asked}");
        }
    }
}
