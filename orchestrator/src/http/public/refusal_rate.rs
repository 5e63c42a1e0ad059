//! How many refusals of each user the audit records: a bucket per user, so that asking in vain costs the one who asks.
//!
//! Never decides what is refused.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::rate_limit::{Bucket, Rate};

/// At once what a person's mistakes or a script's first try come to; lasting one a second, which is 86 400 rows of some 200
/// bytes a day from the most stubborn.
const RATE: Rate = Rate { burst: 60, per_hour: 3_600 };
/// Users remembered; a full bucket is the same as none. Only holders of tokens that this server signed are users here.
const MAX_USERS: usize = 10_000;

/// The buckets.
#[derive(Default)]
pub(super) struct RefusalRate {
    buckets: Mutex<HashMap<String, Bucket>>,
}

impl RefusalRate {
    /// Whether another refusal of this user is recorded.
    pub(super) fn take(&self, user: &str, now: Duration) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_USERS && !buckets.contains_key(user) {
            // Whoever is still waiting for a place in theirs is forgotten last.
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
    fn many_users_do_not_fill_it_for_ever() {
        let rate = RefusalRate::default();
        for user in 0..=MAX_USERS {
            assert!(rate.take(&user.to_string(), Duration::from_secs(user as u64 * 2)), "{user}");
        }
        assert!(rate.buckets.lock().unwrap().len() <= MAX_USERS);
    }
}
