//! Connections that read: a bounded number, each opened when it is first needed and then kept.
//!
//! Owns which connection a read uses. A connection goes back as soon as its read is complete, without the ping of
//! sqlx's own pool, which is one more round trip to the database's thread and a task for each read. A connection whose
//! read was dropped before it was complete goes back once its thread is idle again, so that abandoned reads cannot pile
//! up. Never writes.

use std::{sync::Arc, time::Duration};

use agent::BoxFuture;
use futures_util::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use parking_lot::Mutex;
use sqlx::{
    ConnectOptions as _, Connection as _, Describe, Either, Execute, Executor, SqlStr, Sqlite,
    sqlite::{SqliteConnectOptions, SqliteConnection, SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// Acquire timeout: fail before the client's own timeout.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// A set of connections that read. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Readers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: SqliteConnectOptions,
    permits: Arc<Semaphore>,
    /// Connections that no read uses.
    idle: Mutex<Vec<SqliteConnection>>,
    /// Owns the connections that wait for an abandoned read to end.
    tasks: TaskTracker,
}

/// A connection for one read or several.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Taken when it is released.
    connection: Option<SqliteConnection>,
    permit: Option<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
}

impl Readers {
    /// A set of at most `connections`.
    pub(crate) fn new(options: SqliteConnectOptions, connections: u32) -> Self {
        let permits = Arc::new(Semaphore::new(connections as usize));
        Self(Arc::new(Shared { options, permits, idle: Mutex::default(), tasks: TaskTracker::new() }))
    }

    /// A connection, once one is free. For reads that proceed row by row; [`Reader::release`] returns it.
    pub(crate) async fn acquire(&self) -> Result<Reader, sqlx::Error> {
        let permit = tokio::time::timeout(ACQUIRE_TIMEOUT, Arc::clone(&self.0.permits).acquire_owned());
        let permit = permit.await.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.0.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.0.options.connect().await?,
        };
        Ok(Reader { connection: Some(connection), permit: Some(permit), shared: Arc::clone(&self.0) })
    }

    /// Refuses further reads and closes the connections. One in use closes when its read is complete. The first error
    /// is returned after all are closed.
    pub(crate) async fn close(&self) -> Result<(), sqlx::Error> {
        self.0.permits.close();
        let idle = std::mem::take(&mut *self.0.idle.lock());
        let mut result = Ok(());
        for connection in idle {
            result = result.and(connection.close().await);
        }
        result
    }
}

impl Shared {
    fn keep(&self, connection: SqliteConnection) {
        let mut idle = self.idle.lock();
        if !self.permits.is_closed() {
            idle.push(connection);
        }
    }
}

impl Reader {
    pub(crate) fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        // Only a release takes it, which consumes the reader.
        self.connection.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    /// Gives the connection back after a complete read. After an error that may have ended its thread it is replaced.
    pub(crate) fn release(mut self, error: Option<&sqlx::Error>) {
        let is_lost = matches!(error, Some(sqlx::Error::WorkerCrashed | sqlx::Error::Io(_)));
        if let Some(connection) = self.connection.take().filter(|_| !is_lost) {
            self.shared.keep(connection);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let (Some(mut connection), Some(permit)) = (self.connection.take(), self.permit.take()) else { return };
        // Outside a runtime there is nothing to wait with: the connection is closed.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            if connection.ping().await.is_ok() {
                shared.keep(connection);
            }
            drop(permit);
        });
    }
}

/// A statement whose rows are all read before the first is returned.
impl<'p> Executor<'p> for &'p Readers {
    type Database = Sqlite;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<SqliteQueryResult, SqliteRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        stream::once(async move {
            let mut reader = self.acquire().await?;
            let steps: Result<Vec<_>, _> = reader.connection()?.fetch_many(query).try_collect().await;
            reader.release(steps.as_ref().err());
            Ok::<_, sqlx::Error>(stream::iter(steps?.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<SqliteRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        Box::pin(async move {
            let mut reader = self.acquire().await?;
            let row = reader.connection()?.fetch_optional(query).await;
            reader.release(row.as_ref().err());
            row
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [SqliteTypeInfo],
    ) -> BoxFuture<'e, Result<SqliteStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.connection()?.prepare_with(sql, parameters).await })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Sqlite>, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.connection()?.describe(sql).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: &str =
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT i FROM n";

    #[tokio::test]
    async fn an_abandoned_read_returns_its_connection() {
        let readers = Readers::new(SqliteConnectOptions::new().in_memory(true), 1);
        let mut reader = readers.acquire().await.unwrap();
        let mut rows = sqlx::query_scalar::<_, i64>(SLOW).fetch(reader.connection().unwrap());
        assert_eq!(rows.try_next().await.unwrap(), Some(1));
        drop(rows);
        drop(reader);
        let again = tokio::time::timeout(ACQUIRE_TIMEOUT, sqlx::query_scalar::<_, i64>("SELECT 7").fetch_one(&readers));
        assert_eq!(again.await.expect("the connection is free again").unwrap(), 7);
        assert_eq!(readers.0.idle.lock().len(), 1);
        readers.close().await.unwrap();
        let closed = sqlx::query("SELECT 1").execute(&readers).await;
        assert!(matches!(closed, Err(sqlx::Error::PoolClosed)), "{closed:?}");
    }

    #[tokio::test]
    async fn a_lost_connection_is_replaced() {
        let readers = Readers::new(SqliteConnectOptions::new().in_memory(true), 1);
        readers.acquire().await.unwrap().release(Some(&sqlx::Error::WorkerCrashed));
        assert_eq!(readers.0.idle.lock().len(), 0);
        sqlx::query("SELECT 1").execute(&readers).await.unwrap();
        assert_eq!(readers.0.idle.lock().len(), 1);
    }
}
