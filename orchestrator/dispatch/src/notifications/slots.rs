//! Which posts of notifications are made next: users by turns, with a limit for each user and each server. Pure; the
//! caller passes the time.
//!
//! Guarantees that a receiver that does not answer delays no posts to others: its server has few slots, and the last
//! slots are only for users who have no post in progress.

use std::{collections::HashMap, time::Duration};

use base::fair_queue::FairQueue;
use store::DueDelivery;

/// Posts at the same time.
const MAX_POSTS: usize = 32;
/// How many of them are only for users who have none in progress.
const RESERVED_POSTS: usize = 16;
/// Posts of one user at the same time.
pub(crate) const MAX_POSTS_PER_USER: usize = 4;
/// Posts to one server at the same time.
const MAX_POSTS_PER_HOST: usize = 4;
/// A server that has let this many posts in a row wait for nothing gets one at a time.
const MAX_TIMEOUTS: u32 = 2;
/// For this time.
const SLOW_FOR: Duration = Duration::from_mins(5);

/// Posts in progress, and servers that do not answer.
#[derive(Debug, Default)]
pub(crate) struct PostSlots {
    total: usize,
    users: HashMap<String, usize>,
    hosts: HashMap<String, Host>,
}

#[derive(Debug, Default)]
struct Host {
    in_progress: usize,
    /// Posts in a row without an answer, and when the last of them ended.
    timeouts: u32,
    timed_out_at: Duration,
}

impl Host {
    fn is_full(&self, now: Duration) -> bool {
        let is_slow = self.timeouts >= MAX_TIMEOUTS && now < self.timed_out_at + SLOW_FOR;
        self.in_progress >= if is_slow { 1 } else { MAX_POSTS_PER_HOST }
    }
}

impl PostSlots {
    /// Takes slots for posts that are due, as far as there are some, and returns these posts.
    pub(crate) fn take(&mut self, due: Vec<DueDelivery>, now: Duration) -> Vec<DueDelivery> {
        let mut queue = FairQueue::default();
        for (user, posts) in &self.users {
            (0..*posts).for_each(|_| queue.begin(user));
        }
        for post in due {
            queue.push(&post.user.clone(), post.host.clone(), post);
        }
        let mut taken = Vec::new();
        while self.total < MAX_POSTS
            && let Some((_, post)) = queue.pop()
        {
            if self.has_slot(&post, now) {
                self.total += 1;
                *self.users.entry(post.user.clone()).or_default() += 1;
                self.hosts.entry(post.host.clone()).or_default().in_progress += 1;
                taken.push(post);
            }
        }
        taken
    }

    fn has_slot(&self, post: &DueDelivery, now: Duration) -> bool {
        let own = self.users.get(&post.user).copied().unwrap_or_default();
        let total = if own == 0 { MAX_POSTS } else { MAX_POSTS - RESERVED_POSTS };
        let is_full = self.hosts.get(&post.host).is_some_and(|host| host.is_full(now));
        self.total < total && own < MAX_POSTS_PER_USER && !is_full
    }

    /// The servers that get no further post now.
    pub(crate) fn full_hosts(&self, now: Duration) -> Vec<String> {
        self.hosts.iter().filter(|(_, host)| host.is_full(now)).map(|(name, _)| name.clone()).collect()
    }

    /// Gives a slot back. `timed_out`: whether there was no answer, after a long time; `None` if the post was not made.
    pub(crate) fn give_back(&mut self, post: &DueDelivery, timed_out: Option<bool>, now: Duration) {
        self.total -= 1;
        if let Some(own) = self.users.get_mut(&post.user) {
            *own -= 1;
        }
        self.users.retain(|_, posts| *posts > 0);
        if let Some(host) = self.hosts.get_mut(&post.host) {
            host.in_progress -= 1;
            if let Some(timed_out) = timed_out {
                host.timeouts = if timed_out { host.timeouts + 1 } else { 0 };
                host.timed_out_at = now;
            }
        }
        self.hosts.retain(|_, host| host.in_progress > 0 || host.timeouts > 0 && now < host.timed_out_at + SLOW_FOR);
    }
}

#[cfg(test)]
mod tests {
    use protocol::DeliveryId;

    use super::*;

    fn posts(count: usize, user: &str, host: &str) -> Vec<DueDelivery> {
        let post = |_| DueDelivery { id: DeliveryId::generate(), user: user.to_owned(), host: host.to_owned() };
        (0..count).map(post).collect()
    }

    /// The users of posts, in order.
    fn users(posts: &[DueDelivery]) -> String {
        posts.iter().map(|post| post.user.as_str()).collect()
    }

    #[test]
    fn a_server_has_four_posts_at_a_time_and_users_take_turns() {
        let mut slots = PostSlots::default();
        let due = [posts(3, "a", "hangs"), posts(3, "b", "hangs"), posts(2, "c", "well")].concat();
        let taken = slots.take(due, Duration::ZERO);
        assert_eq!(users(&taken), "abcabc");
        assert_eq!(slots.full_hosts(Duration::ZERO), ["hangs"]);
        assert_eq!(users(&slots.take(posts(4, "d", "hangs"), Duration::ZERO)), "");
        slots.give_back(&taken[0], Some(false), Duration::ZERO);
        assert_eq!(users(&slots.take(posts(4, "d", "hangs"), Duration::ZERO)), "d");
    }

    #[test]
    fn a_server_that_timed_out_twice_has_one_post_at_a_time_for_five_minutes() {
        let (mut slots, second) = (PostSlots::default(), Duration::from_secs);
        let taken = slots.take(posts(4, "a", "hangs"), second(0));
        for post in &taken {
            slots.give_back(post, Some(true), second(30));
        }
        let one = slots.take(posts(4, "a", "hangs"), second(30));
        assert_eq!(one.len(), 1);
        assert_eq!(slots.full_hosts(second(30)), ["hangs"]);
        slots.give_back(&one[0], Some(true), second(60));
        assert_eq!(slots.take(posts(4, "a", "hangs"), second(359)).len(), 1);
        assert_eq!(slots.take(posts(4, "b", "hangs"), second(360)).len(), 3, "the time is over");
    }

    #[test]
    fn an_answer_makes_up_for_timeouts_and_nothing_is_left_of_what_is_over() {
        let mut slots = PostSlots::default();
        for timed_out in [true, false, true] {
            let taken = slots.take(posts(2, "a", "slow"), Duration::ZERO);
            assert_eq!(taken.len(), 2);
            slots.give_back(&taken[1], Some(timed_out), Duration::ZERO);
            slots.give_back(&taken[0], Some(false), Duration::ZERO);
        }
        assert!(slots.total == 0 && slots.users.is_empty() && slots.hosts.is_empty());
    }

    #[test]
    fn users_whose_posts_all_hang_leave_slots_for_the_others() {
        let mut slots = PostSlots::default();
        for user in ["a", "b", "c", "d", "e", "f"] {
            for host in 0..4 {
                slots.take(posts(1, user, &format!("{user}{host}")), Duration::ZERO);
            }
        }
        assert_eq!(slots.total, MAX_POSTS - RESERVED_POSTS + 2, "each of the last two has one");
        assert_eq!(users(&slots.take(posts(4, "g", "well"), Duration::ZERO)), "g");
    }
}
