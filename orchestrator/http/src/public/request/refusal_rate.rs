//! Limits how many refused requests of each user are audited, with a token bucket per user.
//!
//! Never decides what is refused.

use std::{collections::HashMap, time::Duration};

use base::rate_limit::{Bucket, Rate};
use parking_lot::Mutex;

/// A burst for mistakes, then one per second: at most 86 400 rows of about 200 bytes per user and day.
const RATE: Rate = Rate { burst: 60, per_hour: 3_600 };
/// Maximum number of buckets; a full one is the same as none. Only holders of valid tokens get one.
const MAX_USERS: usize = 10_000;

/// The buckets by user.
#[derive(Default)]
pub(in crate::public) struct RefusalRate {
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl RefusalRate {
    /// Whether another refusal of this user may be recorded.
    pub(in crate::public) fn take(&self, user: &str, now: Duration) -> bool {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_USERS && !buckets.contains_key(user) {
            // Keep the buckets that are not full.
            buckets.retain(|_, bucket| bucket.take(RATE, RATE.burst.into(), now).is_err());
            if buckets.len() >= MAX_USERS {
                return false;
            }
        }
        buckets.entry(user.to_owned()).or_insert_with(|| Bucket::full(RATE, now)).take(RATE, 1, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_burst_and_then_one_a_second() {
        let rate = RefusalRate::default();
        let recorded = |user, at| (0..100).filter(|_| rate.take(user, Duration::from_secs(at))).count();
        assert_eq!((recorded("ada", 0), recorded("bob", 0)), (60, 60));
        assert_eq!(recorded("ada", 10), 10);
        assert_eq!(recorded("ada", 10_000), 60);
    }

    #[test]
    fn full_buckets_make_room_for_new_users() {
        let rate = RefusalRate::default();
        for user in 0..=MAX_USERS {
            assert!(rate.take(&user.to_string(), Duration::from_secs(user as u64 * 2)), "{user}");
        }
        assert!(rate.buckets.lock().len() <= MAX_USERS);
    }
}
