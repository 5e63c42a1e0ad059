//! Which connection ends so that another one can be opened. Pure.
//!
//! Guarantees that users share the connections: a user who has more than an equal share gives one up first, and others
//! keep one that they have just used, so that users who take turns do not end each other's connections again and again.

use std::time::Duration;

/// Time for which a user who has no more than their share keeps a connection that is not in use.
const MIN_KEPT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
pub(super) struct OpenConnection<'s> {
    pub(super) user: &'s str,
    /// Whether no call uses it.
    pub(super) is_idle: bool,
    /// Monotonic time of the end of the last call.
    pub(super) last_used: Duration,
}

/// The greatest number of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxConnections {
    pub(super) total: usize,
    pub(super) of_user: usize,
}

/// Whether one more connection can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capacity {
    Free,
    /// It can, after the connection with this index has ended.
    After(usize),
    None,
}

/// Decides for a new connection of this user.
pub(super) fn capacity(open: &[OpenConnection<'_>], user: &str, max: MaxConnections, now: Duration) -> Capacity {
    let count = |user: &str| open.iter().filter(|one| one.user == user).count();
    let least_recently_used = |may_end: &dyn Fn(&OpenConnection<'_>) -> bool| {
        let idle = open.iter().enumerate().filter(|(_, one)| one.is_idle && may_end(one));
        idle.min_by_key(|(_, one)| one.last_used).map(|(index, _)| index)
    };
    let own = count(user);
    let is_own = |one: &OpenConnection<'_>| one.user == user;
    if own >= max.of_user {
        return least_recently_used(&is_own).map_or(Capacity::None, Capacity::After);
    }
    if open.len() < max.total {
        return Capacity::Free;
    }
    let mut users: Vec<&str> = open.iter().map(|one| one.user).chain([user]).collect();
    users.sort_unstable();
    users.dedup();
    let share = (max.total / users.len()).max(1);
    let has_more = |one: &OpenConnection<'_>| count(one.user) > share;
    let is_old = |one: &OpenConnection<'_>| now.saturating_sub(one.last_used) >= MIN_KEPT;
    let first = if own >= share { least_recently_used(&is_own) } else { None };
    let found = first.or_else(|| least_recently_used(&has_more)).or_else(|| least_recently_used(&is_old));
    found.map_or(Capacity::None, Capacity::After)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: MaxConnections = MaxConnections { total: 4, of_user: 3 };
    const NOW: Duration = Duration::from_secs(100);

    /// Connections as `user`, whether it is in use (`!`), and the seconds since its last use.
    fn open<'s>(connections: &[(&'s str, u64)]) -> Vec<OpenConnection<'s>> {
        let connection = |(user, unused): &(&'s str, u64)| OpenConnection {
            user: user.trim_end_matches('!'),
            is_idle: !user.ends_with('!'),
            last_used: NOW.saturating_sub(Duration::from_secs(*unused)),
        };
        connections.iter().map(connection).collect()
    }

    #[rstest::rstest]
    #[case::not_full(&[("bob", 50), ("bob", 50), ("eve", 50)], Capacity::Free)]
    #[case::own_limit(&[("ada", 1), ("ada", 3), ("ada", 2)], Capacity::After(1))]
    #[case::own_limit_in_use(&[("ada!", 1), ("ada!", 3), ("ada!", 2)], Capacity::None)]
    // The share of three users is one.
    #[case::more_than_their_share(&[("eve", 90), ("bob", 2), ("bob", 1), ("bob", 3)], Capacity::After(3))]
    #[case::more_than_their_share_in_use(&[("eve", 90), ("bob!", 2), ("bob!", 1), ("bob!", 3)], Capacity::After(0))]
    #[case::own_share(&[("ada", 1), ("bob", 90), ("bob", 90), ("eve", 90)], Capacity::After(0))]
    #[case::own_share_in_use(&[("ada!", 1), ("bob", 1), ("bob", 2), ("eve", 90)], Capacity::After(2))]
    // Of five users four have a connection.
    #[case::just_used(&[("bob", 29), ("eve", 1), ("dan", 1), ("joe", 1)], Capacity::None)]
    #[case::not_just_used(&[("bob", 1), ("eve", 30), ("dan", 31), ("joe!", 90)], Capacity::After(2))]
    fn a_connection_of_ada(#[case] connections: &[(&str, u64)], #[case] expected: Capacity) {
        assert_eq!(capacity(&open(connections), "ada", MAX, NOW), expected);
    }

    #[test]
    fn users_who_take_turns_do_not_end_connections_that_were_just_used() {
        let max = MaxConnections { total: 32, of_user: 8 };
        let users: Vec<String> = (0..40).map(|n| format!("user{n}")).collect();
        let mut open: Vec<OpenConnection<'_>> = Vec::new();
        let mut ended = 0;
        for second in 0..60 {
            for user in &users {
                let now = Duration::from_secs(second);
                if let Some(own) = open.iter_mut().find(|one| one.user == user) {
                    own.last_used = now;
                    continue;
                }
                match capacity(&open, user, max, now) {
                    Capacity::None => continue,
                    Capacity::After(index) => {
                        open.remove(index);
                        ended += 1;
                    }
                    Capacity::Free => {}
                }
                open.push(OpenConnection { user, is_idle: true, last_used: now });
            }
        }
        assert_eq!((open.len(), ended), (32, 0));
    }
}
