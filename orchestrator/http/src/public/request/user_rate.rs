//! Rates of each user, with a token bucket per user: how many refused requests are audited, and how much text is
//! written to memory.
//!
//! Never decides what is refused.

use std::{collections::HashMap, time::Duration};

use base::rate_limit::{Bucket, Rate};
use parking_lot::Mutex;

/// Maximum number of buckets; a full one is the same as none. Only holders of valid tokens get one.
const MAX_USERS: usize = 10_000;
/// The wait for a bucket while there are too many.
const NO_BUCKET: Duration = Duration::from_secs(1);

/// A rate, and the buckets by user.
pub(in crate::public) struct UserRate {
    rate: Rate,
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl UserRate {
    /// Refused requests that are audited: a burst for mistakes, then one per second: at most 86 400 rows of about 200
    /// bytes per user and day.
    pub(in crate::public) fn of_refusals() -> Self {
        Self { rate: Rate { burst: 60, per_hour: 3_600 }, buckets: Mutex::default() }
    }

    /// KiB of documents: 16 MiB at once, then 512 KiB a second. To index a MiB takes the writer of all users about a
    /// tenth of a second.
    pub(in crate::public) fn of_memory_kib() -> Self {
        Self { rate: Rate { burst: 16 * 1024, per_hour: 512 * 3_600 }, buckets: Mutex::default() }
    }

    /// Takes tokens of a user, or returns how long to wait for them.
    pub(in crate::public) fn take(&self, user: &str, tokens: u64, now: Duration) -> Result<(), Duration> {
        let (mut buckets, rate) = (self.buckets.lock(), self.rate);
        if buckets.len() >= MAX_USERS && !buckets.contains_key(user) {
            // Keep the buckets that are not full.
            buckets.retain(|_, bucket| bucket.take(rate, rate.burst.into(), now).is_err());
            if buckets.len() >= MAX_USERS {
                return Err(NO_BUCKET);
            }
        }
        buckets.entry(user.to_owned()).or_insert_with(|| Bucket::full(rate, now)).take(rate, tokens, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_burst_and_then_one_a_second() {
        let rate = UserRate::of_refusals();
        let recorded = |user, at| (0..100).filter(|_| rate.take(user, 1, Duration::from_secs(at)).is_ok()).count();
        assert_eq!((recorded("ada", 0), recorded("bob", 0)), (60, 60));
        assert_eq!(recorded("ada", 10), 10);
        assert_eq!(recorded("ada", 10_000), 60);
    }

    #[test]
    fn documents_have_a_burst_of_16_mib_and_then_two_seconds_for_each() {
        let rate = UserRate::of_memory_kib();
        let written = (0..20).filter(|_| rate.take("ada", 1024, Duration::ZERO).is_ok()).count();
        assert_eq!(written, 16);
        assert_eq!(rate.take("ada", 1024, Duration::from_secs(1)), Err(Duration::from_secs(1)));
        assert_eq!(rate.take("ada", 1024, Duration::from_secs(2)), Ok(()));
    }

    #[test]
    fn full_buckets_make_room_for_new_users() {
        let rate = UserRate::of_refusals();
        for user in 0..=MAX_USERS {
            assert!(rate.take(&user.to_string(), 1, Duration::from_secs(user as u64 * 2)).is_ok(), "{user}");
        }
        assert!(rate.buckets.lock().len() <= MAX_USERS);
    }
}
