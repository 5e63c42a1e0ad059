//! Users by turns, where work waits in the database.
//!
//! The pattern: the users with work, then the first few rows of each.
//!
//! ```sql
//! WITH RECURSIVE users (user_id) AS (…)          -- users_with!("table", "condition")
//! SELECT t.id, t.user_id FROM users CROSS JOIN table AS t
//!     ON t.id IN (SELECT id FROM table WHERE user_id = users.user_id AND … ORDER BY … LIMIT $k)
//! ```
//!
//! An index that begins with `user_id`, limited to rows with the condition, finds each next user in one step: the cost
//! is users × k, however many rows a user has. Who of them is next is then decided in memory, by
//! `base::fair_queue::FairQueue`, which knows what is in progress. The condition repeats, word for word, what the index
//! is limited to, else SQLite does not use it.

/// The beginning of a statement: a table `users` of those with rows that meet a condition. Its last row is NULL.
macro_rules! users_with {
    ($table:literal, $condition:literal) => {
        concat!(
            "WITH RECURSIVE users (user_id) AS (SELECT MIN(user_id) FROM ",
            $table,
            " WHERE ",
            $condition,
            " UNION ALL SELECT (SELECT MIN(user_id) FROM ",
            $table,
            " WHERE ",
            $condition,
            " AND user_id > users.user_id) FROM users WHERE user_id IS NOT NULL) "
        )
    };
}
pub(crate) use users_with;
