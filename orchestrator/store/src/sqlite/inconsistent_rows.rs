//! Rows that make no sense: each is an error about that row alone, and stops nothing else.
//!
//! Guarantees that such a row is logged once and counted. Every read of several rows goes through
//! [`InconsistentRows::read_each`], which leaves it out; what a caller does about it besides is the caller's.

use std::collections::HashSet;

use parking_lot::Mutex;
use sqlx::{Decode, FromRow, Row as _, Sqlite, Type, sqlite::SqliteRow};
use uuid::Uuid;

use crate::StoreError;
use base::error_chain;
use telemetry::metrics::Metrics;

/// Rows that are remembered as logged. Then it begins again, so that the memory is bounded.
const MAX_REMEMBERED: usize = 1_000;

/// A row as it was read: of the type that its statement says, or not.
pub(crate) struct Row<R>(Result<R, sqlx::Error>);

impl<'r, R: FromRow<'r, SqliteRow>> FromRow<'r, SqliteRow> for Row<R> {
    fn from_row(row: &'r SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self(R::from_row(row)))
    }
}

impl<R> Row<R> {
    /// The row, for a read of one.
    pub(crate) fn get(self) -> Result<R, StoreError> {
        self.0.map_err(StoreError::from)
    }
}

/// A row with its id, which can be read whatever else the row has.
pub(crate) struct Keyed<R, K = Uuid> {
    pub(crate) id: K,
    pub(crate) row: Row<R>,
}

impl<'r, R: FromRow<'r, SqliteRow>, K: Decode<'r, Sqlite> + Type<Sqlite>> FromRow<'r, SqliteRow> for Keyed<R, K> {
    fn from_row(row: &'r SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self { id: row.try_get("id")?, row: Row::from_row(row)? })
    }
}

/// Logs and counts rows that make no sense.
#[derive(Debug)]
pub(crate) struct InconsistentRows {
    metrics: Metrics,
    logged: Mutex<HashSet<String>>,
}

impl InconsistentRows {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, logged: Mutex::default() }
    }

    /// What is read of rows, without those that make no sense.
    pub(crate) fn read_each<R, T>(
        &self,
        rows: Vec<Row<R>>,
        mut read: impl FnMut(R) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut items = Vec::with_capacity(rows.len());
        for row in rows {
            items.extend(self.skip(row.get().and_then(&mut read))?);
        }
        Ok(items)
    }

    /// What is read of a page's rows, each with its id: one that makes no sense, `None`, does not end the list.
    pub(crate) fn read_page<R, K, T>(
        &self,
        rows: Vec<Keyed<R, K>>,
        read: impl Fn(R) -> Result<T, StoreError>,
    ) -> Result<Vec<(K, Option<T>)>, StoreError> {
        rows.into_iter().map(|Keyed { id, row }| Ok((id, self.skip(row.get().and_then(&read))?))).collect()
    }

    /// What is read of a row; `None` if it makes no sense.
    pub(crate) fn skip<T>(&self, read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match read {
            Ok(item) => Ok(Some(item)),
            Err(error) if error.concerns_one_row() => {
                self.report(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Logs and counts a row that makes no sense, unless that was done before.
    pub(crate) fn report(&self, error: &StoreError) {
        let text = error_chain(error);
        {
            let mut logged = self.logged.lock();
            if logged.len() >= MAX_REMEMBERED {
                logged.clear();
            }
            if !logged.insert(text.clone()) {
                return;
            }
        }
        let table = match error {
            StoreError::Inconsistent { table, .. } => table,
            _ => "unknown",
        };
        tracing::error!(error = text, "a row makes no sense and is left out");
        self.metrics.inconsistent_row(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_makes_no_sense_is_left_out_and_counted_once() {
        let metrics = Metrics::default();
        let rows = InconsistentRows::new(metrics.clone());
        let read = |number: i64| match number {
            2 => Err(StoreError::Inconsistent { table: "gates", column: "state", id: number.to_string() }),
            9 => Err(StoreError::Busy),
            _ => Ok(number),
        };
        for _ in 0..3 {
            let undecoded = Row(Err(sqlx::Error::Decode("no time".into())));
            let numbers = vec![Row(Ok(1)), Row(Ok(2)), undecoded, Row(Ok(3))];
            assert_eq!(rows.read_each(numbers, read).unwrap(), [1, 3]);
        }
        assert!(matches!(rows.read_each(vec![Row(Ok(1)), Row(Ok(9))], read), Err(StoreError::Busy)));
        let metrics = metrics.render(&telemetry::metrics::DbCounts::default());
        for line in
            ["gantry_inconsistent_rows_total{table=\"gates\"} 1", "gantry_inconsistent_rows_total{table=\"unknown\"} 1"]
        {
            assert!(metrics.contains(line), "{line} in\n{metrics}");
        }
    }

    /// Of three rows of each list, one has a value that makes no sense, and one a time that is none.
    #[tokio::test]
    async fn lists_of_calls_and_deliveries_have_what_can_be_read() {
        let (directory, store) = crate::tests::fresh().await;
        let mut raw = crate::tests::raw(&directory).await;
        for statement in [
            "INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
             cache_read_tokens, cache_write_tokens, duration_ms, tries) VALUES \
             (zeroblob(16), 1, 'a', '2026-11-22T12:00:00+00:00', 'p', 'm', 1, 0, 0, 0, 1, 1), \
             (zeroblob(16), 1, 'b', '2026-11-22T12:00:01+00:00', 'p', 'm', -1, 0, 0, 0, 1, 1), \
             (zeroblob(16), 1, 'c', 'never', 'p', 'm', 1, 0, 0, 0, 1, 1)",
            "INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input) VALUES \
             (zeroblob(16), 1, 'a', '2026-11-22T12:00:00+00:00', 'echo', '{}'), \
             (zeroblob(16), 1, 'b', '2026-11-22T12:00:01+00:00', 'echo', '{'), \
             (zeroblob(16), 1, 'c', 'never', 'echo', '{}')",
            "INSERT INTO webhook_deliveries (id, routine_id, received_at, delivery_id, verdict, status) VALUES \
             (unhex(printf('%032x', 1)), zeroblob(16), '2026-11-22T12:00:00+00:00', 'a', 'accepted', 202), \
             (unhex(printf('%032x', 2)), zeroblob(16), '2026-11-22T12:00:00+00:00', 'b', 'from the future', 202), \
             (unhex(printf('%032x', 3)), zeroblob(16), 'never', 'c', 'accepted', 202)",
        ] {
            sqlx::query(statement).execute(&mut raw).await.unwrap();
        }
        let job = protocol::JobId::from_uuid(Uuid::nil());
        let models = store.model_calls(job, None, 10).await.unwrap();
        assert_eq!(models.iter().map(|(_, call)| call.is_some()).collect::<Vec<_>>(), [true, false]);
        let tools = store.tool_calls(job, None, 10).await.unwrap();
        assert_eq!(tools.iter().map(|(_, call)| call.is_some()).collect::<Vec<_>>(), [true, false]);
        let thread = store.thread_tool_calls(protocol::ThreadId::from_uuid(Uuid::nil()), None, 10).await.unwrap();
        assert_eq!(thread.iter().map(|(_, call)| call.is_some()).collect::<Vec<_>>(), [true, false]);
        let routine = protocol::RoutineId::from_uuid(Uuid::nil());
        let deliveries = store.webhook_deliveries(routine, None, 10).await.unwrap();
        assert_eq!(deliveries.iter().map(|(_, delivery)| delivery.is_some()).collect::<Vec<_>>(), [false, false, true]);
        store.close().await;
    }

    /// Of two rows of each list, the first has a time that is none.
    #[tokio::test]
    async fn lists_of_what_users_keep_have_what_can_be_read() {
        let (directory, store) = crate::tests::fresh().await;
        let mut raw = crate::tests::raw(&directory).await;
        for statement in [
            "INSERT INTO memory_documents (user_id, path, version, bytes, updated_at) VALUES ('ada', 'a', 1, 1, 'never'), \
             ('ada', 'b', 1, 1, '2026-11-22T12:00:00+00:00')",
            "INSERT INTO secrets (user_id, name, key_id, nonce, ciphertext, created_at, updated_at) VALUES \
             ('ada', 'A', 'k', x'00', x'00', 'never', '2026-11-22T12:00:00+00:00'), \
             ('ada', 'B', 'k', x'00', x'00', '2026-11-22T12:00:00+00:00', '2026-11-22T12:00:00+00:00')",
            "INSERT INTO tokens (jti, user_id, role, created_at, expires_at) VALUES \
             ('a', 'ada', 'user', '2026-11-22T12:00:00+00:00', 'never'), \
             ('b', 'ada', 'user', '2026-11-22T12:00:00+00:00', '2027-11-22T12:00:00+00:00')",
        ] {
            sqlx::query(statement).execute(&mut raw).await.unwrap();
        }
        let documents = store.memory_tree("ada", None, "", 10).await.unwrap();
        assert_eq!(documents.iter().map(|(_, entry)| entry.is_some()).collect::<Vec<_>>(), [false, true]);
        let secrets = store.secrets("ada", None, 10).await.unwrap();
        assert_eq!(secrets.iter().map(|(_, secret)| secret.is_some()).collect::<Vec<_>>(), [false, true]);
        let tokens = crate::tokens::list(&store).await.unwrap();
        assert_eq!(tokens.iter().map(|token| token.jti.as_str()).collect::<Vec<_>>(), ["b"]);
        store.close().await;
    }
}
