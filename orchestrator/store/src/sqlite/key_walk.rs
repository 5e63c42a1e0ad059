//! Walks over the users or routines that have rows in a table, for what is deleted of each.
//!
//! An index that begins with the key finds each next one in one step, however many rows a key has, and each statement
//! reads a bounded number of keys.

use sqlx::{AssertSqlSafe, Decode, Encode, Sqlite, Type};

use crate::{Store, StoreError};

/// Keys that one statement reads; of each it may count thousands of entries of an index.
const KEYS_PER_PAGE: usize = 20;

/// A walk over the keys of a table that meet a condition.
pub(crate) struct KeyWalk {
    pub(crate) table: &'static str,
    pub(crate) key: &'static str,
    /// A condition for `keys.key`.
    pub(crate) condition: String,
}

impl KeyWalk {
    /// The keys that have more than `max` rows, counted in the order of `id`.
    pub(crate) fn over(table: &'static str, key: &'static str, max: i64) -> Self {
        let condition =
            format!("EXISTS (SELECT 1 FROM {table} WHERE {key} = keys.key ORDER BY id LIMIT 1 OFFSET {max})");
        Self { table, key, condition }
    }

    /// The next keys after `$1`, each with whether it meets the condition.
    fn statement(&self) -> String {
        let Self { table, key, condition } = self;
        format!(
            "WITH RECURSIVE keys (key) AS (SELECT MIN({key}) FROM {table} WHERE {key} > $1 UNION ALL \
             SELECT (SELECT MIN({key}) FROM {table} WHERE {key} > keys.key) FROM keys WHERE key IS NOT NULL \
             LIMIT {KEYS_PER_PAGE}) SELECT key, {condition} FROM keys WHERE key IS NOT NULL"
        )
    }
}

impl Store {
    /// The keys that a walk finds. `before_all` is less than each of them.
    pub(crate) async fn keys<K>(&self, walk: &KeyWalk, before_all: K) -> Result<Vec<K>, StoreError>
    where
        K: Clone
            + Send
            + Sync
            + Unpin
            + 'static
            + Type<Sqlite>
            + for<'q> Encode<'q, Sqlite>
            + for<'r> Decode<'r, Sqlite>,
    {
        let (mut found, mut after) = (Vec::new(), before_all);
        loop {
            let page: Vec<(K, bool)> =
                sqlx::query_as(AssertSqlSafe(walk.statement())).bind(after.clone()).fetch_all(&self.read).await?;
            let read = page.len();
            if let Some((last, _)) = page.last() {
                after = last.clone();
            }
            found.extend(page.into_iter().filter(|(_, is_found)| *is_found).map(|(key, _)| key));
            if read < KEYS_PER_PAGE {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{fresh, raw};

    #[tokio::test]
    async fn a_walk_finds_each_user_with_too_many_rows_on_every_page() {
        let (directory, store) = fresh().await;
        // User n has n % 4 notifications.
        let rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 450) \
                    INSERT INTO notifications (id, user_id, kind, title, text, created_at) \
                    SELECT randomblob(16), printf('user%03d', n), 'message', '', '', '2026-11-22T12:00:00+00:00' \
                    FROM n JOIN (SELECT 1 AS copy UNION ALL SELECT 2 UNION ALL SELECT 3) ON copy <= n % 4";
        sqlx::query(rows).execute(&mut raw(&directory).await).await.unwrap();
        let found = store.keys(&KeyWalk::over("notifications", "user_id", 2), String::new()).await.unwrap();
        let expected: Vec<String> = (1..=450).filter(|n| n % 4 == 3).map(|n| format!("user{n:03}")).collect();
        assert_eq!(found, expected);
        store.close().await;
    }
}
