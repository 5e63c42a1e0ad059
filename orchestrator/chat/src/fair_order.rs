//! The order in which waiting threads get their turns. Pure.
//!
//! Users take turns: the one with the fewest turns in progress is next, of equals the one whose thread has waited
//! longest.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
};

use protocol::ThreadId;

/// Waiting threads with their owners, in the order in which they get their turns. Each is counted as in progress for
/// those after it.
pub(super) struct FairOrder {
    users: Vec<WaitingUser>,
    /// Each user that has a waiting thread: the number of turns, the position of the thread, the user's index.
    next: BinaryHeap<Reverse<(usize, usize, usize)>>,
}

struct WaitingUser {
    name: String,
    /// The threads with their positions, longest waiting first.
    threads: VecDeque<(usize, ThreadId)>,
}

impl FairOrder {
    /// The order of threads that wait, longest waiting first. `running` has the owner of each turn in progress.
    pub(super) fn new<'a>(
        waiting: impl IntoIterator<Item = (ThreadId, String)>,
        running: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut turns: HashMap<&str, usize> = HashMap::new();
        for user in running {
            *turns.entry(user).or_default() += 1;
        }
        let (mut users, mut index_of) = (Vec::<WaitingUser>::new(), HashMap::new());
        for (position, (thread, name)) in waiting.into_iter().enumerate() {
            let index = *index_of.entry(name.clone()).or_insert(users.len());
            if index == users.len() {
                users.push(WaitingUser { name, threads: VecDeque::new() });
            }
            users[index].threads.push_back((position, thread));
        }
        let first = |(index, user): (usize, &WaitingUser)| {
            let (position, _) = user.threads.front()?;
            Some(Reverse((turns.get(user.name.as_str()).copied().unwrap_or_default(), *position, index)))
        };
        let next = users.iter().enumerate().filter_map(first).collect();
        Self { users, next }
    }
}

impl Iterator for FairOrder {
    type Item = (ThreadId, String);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((turns, _, index)) = self.next.pop()?;
        let user = self.users.get_mut(index)?;
        let (_, thread) = user.threads.pop_front()?;
        if let Some((position, _)) = user.threads.front() {
            self.next.push(Reverse((turns + 1, *position, index)));
        }
        Some((thread, user.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Threads are named by their owner, in the order in which they wait.
    #[rstest]
    #[case::alone("aaa", "", "aaa")]
    #[case::one_each_by_turns("aaaabb", "", "ababaa")]
    #[case::the_oldest_of_equals("baab", "", "baab")]
    #[case::fewest_in_progress_first("aab", "a", "baa")]
    #[case::others_in_progress_do_not_count("ab", "cc", "ab")]
    #[case::a_busy_user_waits_for_the_others("aaabc", "aabc", "bcaaa")]
    #[case::none_waits("", "a", "")]
    fn users_take_turns(#[case] waiting: &str, #[case] running: &str, #[case] expected: &str) {
        let name = |user: char| (ThreadId::generate(), user.to_string());
        let running: Vec<String> = running.chars().map(|user| user.to_string()).collect();
        let order = FairOrder::new(waiting.chars().map(name), running.iter().map(String::as_str));
        assert_eq!(order.map(|(_, user)| user).collect::<String>(), expected);
    }

    #[test]
    fn a_fifth_user_is_next_though_four_have_all_turns_and_waited_longer() {
        let busy: Vec<String> = (0..64).map(|turn| format!("busy-{}", turn % 4)).collect();
        let mut waiting: Vec<_> = busy.iter().map(|user| (ThreadId::generate(), user.clone())).collect();
        waiting.push((ThreadId::generate(), "fifth".to_owned()));
        let mut order = FairOrder::new(waiting.clone(), busy.iter().map(String::as_str));
        assert_eq!(order.next(), waiting.last().cloned());
        assert_eq!(order.count(), 64);
    }
}
