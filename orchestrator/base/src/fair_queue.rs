//! A queue that is fair to users: the next item is one of the user with the fewest items in progress, of several such
//! users the one whose turn is the longest ago. A user's lanes (jobs, hosts) take turns likewise. Pure.
//!
//! Owns the order, and the number of items of each user that are in progress. Never knows what an item is, nor how
//! many may be in progress. Work that waits in the database is read by the statements of `store/sqlite/by_turns`.

use std::collections::{HashMap, VecDeque};

/// Items that wait, in the lanes of their users.
#[derive(Debug)]
pub struct FairQueue<L, T> {
    users: HashMap<String, User<L, T>>,
    /// Numbers the turns, so that they can be compared.
    turns: u64,
}

/// A user with items that wait or are in progress.
#[derive(Debug)]
struct User<L, T> {
    in_progress: usize,
    /// The user's last turn, or when the first of the items that wait came.
    turn: u64,
    /// Lanes with items that wait, the next one first. None is empty.
    lanes: VecDeque<(L, VecDeque<T>)>,
}

impl<L, T> Default for FairQueue<L, T> {
    fn default() -> Self {
        Self { users: HashMap::new(), turns: 0 }
    }
}

impl<L: PartialEq, T> FairQueue<L, T> {
    /// Adds an item behind those of its lane.
    pub fn push(&mut self, user: &str, lane: L, item: T) {
        let turn = self.next_turn();
        let user = self.user(user);
        if user.lanes.is_empty() {
            user.turn = turn;
        }
        match user.lanes.iter_mut().find(|(known, _)| *known == lane) {
            Some((_, items)) => items.push_back(item),
            None => user.lanes.push_back((lane, VecDeque::from([item]))),
        }
    }

    /// Takes the next item with its user. It is in progress until [`Self::finish`].
    pub fn pop(&mut self) -> Option<(String, T)> {
        let waiting = self.users.iter().filter(|(_, user)| !user.lanes.is_empty());
        let name = waiting.min_by_key(|(_, user)| (user.in_progress, user.turn)).map(|(name, _)| name.clone())?;
        let turn = self.next_turn();
        let user = self.user(&name);
        let (lane, mut items) = user.lanes.pop_front()?;
        let item = items.pop_front()?;
        if !items.is_empty() {
            user.lanes.push_back((lane, items));
        }
        user.turn = turn;
        user.in_progress += 1;
        Some((name, item))
    }

    /// Counts an item of a user as in progress that has not waited.
    pub fn begin(&mut self, user: &str) {
        self.user(user).in_progress += 1;
    }

    /// One item of a user is no longer in progress.
    pub fn finish(&mut self, name: &str) {
        let Some(user) = self.users.get_mut(name) else { return };
        user.in_progress = user.in_progress.saturating_sub(1);
        if user.in_progress == 0 && user.lanes.is_empty() {
            self.users.remove(name);
        }
    }

    /// The number of items of a user that are in progress.
    pub fn in_progress(&self, user: &str) -> usize {
        self.users.get(user).map_or(0, |user| user.in_progress)
    }

    /// The number of items of a user that wait.
    pub fn waiting(&self, user: &str) -> usize {
        self.users.get(user).map_or(0, |user| user.lanes.iter().map(|(_, items)| items.len()).sum())
    }

    /// Removes the items of a user that wait and are no longer wanted.
    pub fn retain(&mut self, name: &str, mut is_wanted: impl FnMut(&T) -> bool) {
        let Some(user) = self.users.get_mut(name) else { return };
        user.lanes.retain_mut(|(_, items)| {
            items.retain(&mut is_wanted);
            !items.is_empty()
        });
        if user.in_progress == 0 && user.lanes.is_empty() {
            self.users.remove(name);
        }
    }

    /// Whether no item waits and none is in progress.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn user(&mut self, name: &str) -> &mut User<L, T> {
        let new = || User { in_progress: 0, turn: 0, lanes: VecDeque::new() };
        self.users.entry(name.to_owned()).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Items are named by their users, in the order in which they came. None ends meanwhile.
    #[rstest]
    #[case::alone("aaa", "", "aaa")]
    #[case::one_each_by_turns("aaaabb", "", "ababaa")]
    #[case::the_first_of_equals("baab", "", "baba")]
    #[case::fewest_in_progress_first("aab", "a", "baa")]
    #[case::others_in_progress_do_not_count("ab", "cc", "ab")]
    #[case::a_busy_user_waits_for_the_others("aaabc", "aabc", "bcaaa")]
    #[case::none_waits("", "a", "")]
    fn users_take_turns(#[case] waiting: &str, #[case] running: &str, #[case] expected: &str) {
        let mut queue = FairQueue::default();
        running.chars().for_each(|user| queue.begin(&user.to_string()));
        waiting.chars().for_each(|user| queue.push(&user.to_string(), (), ()));
        let order = std::iter::from_fn(|| queue.pop()).map(|(user, ())| user);
        assert_eq!(order.collect::<String>(), expected);
    }

    #[test]
    fn a_fifth_user_is_next_though_four_have_all_turns_and_waited_longer() {
        let mut queue = FairQueue::default();
        for turn in 0..64 {
            let user = format!("busy-{}", turn % 4);
            queue.begin(&user);
            queue.push(&user, (), ());
        }
        queue.push("fifth", (), ());
        assert_eq!(queue.pop(), Some(("fifth".to_owned(), ())));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 64);
    }

    #[test]
    fn lanes_of_a_user_take_turns_and_what_is_over_leaves_nothing() {
        let mut queue = FairQueue::default();
        for (lane, item) in [(1, "1a"), (1, "1b"), (1, "1c"), (2, "2a"), (2, "2b"), (3, "3a")] {
            queue.push("ada", lane, item);
        }
        queue.retain("ada", |item| *item != "3a" && *item != "1b");
        assert_eq!(queue.waiting("ada"), 4);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, item)| item).collect();
        assert_eq!(order, ["1a", "2a", "1c", "2b"]);
        assert_eq!(queue.in_progress("ada"), 4);
        for _ in &order {
            queue.finish("ada");
        }
        assert!(queue.is_empty());
    }
}
