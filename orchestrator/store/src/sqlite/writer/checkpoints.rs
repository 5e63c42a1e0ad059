//! Moves what was committed from the write-ahead log into the database, beside the writer: a commit that did it would wait
//! for the disk.
//!
//! The log starts again at its beginning only when all of it was moved, and a busy writer adds to it meanwhile. So the
//! writer moves the rest itself, once most of a long log was moved. Never runs a write.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{
    ConnectOptions as _, Connection as _,
    sqlite::{SqliteConnectOptions, SqliteConnection},
};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// How often the length of the log is looked at while there are transactions.
const INTERVAL: Duration = Duration::from_millis(50);
/// Pages that are moved together, as SQLite does by itself.
const DUE: i64 = 1000;
/// The log is to start again from this length on, in pages of 4 KiB; SQLite reads from a longer one more slowly.
const LONG: i64 = 4000;
/// Moves what no reader needs in the log, and waits for nothing.
const MOVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Moves nothing.
const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
/// The pause after an error, or after a try that moved nothing.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The writer's side of the task that makes checkpoints.
pub(super) struct Checkpoints {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    /// Ends the task, also when the writer has panicked.
    stop: DropGuard,
}

#[derive(Default)]
struct Shared {
    written: Notify,
    is_rest_due: AtomicBool,
    stop: CancellationToken,
}

impl Checkpoints {
    /// Starts the task, which opens a connection with the first transaction.
    pub(super) fn start(options: SqliteConnectOptions, tasks: &TaskTracker) -> Self {
        let shared = Arc::new(Shared::default());
        let task = tasks.spawn(Arc::clone(&shared).run(options));
        let stop = shared.stop.clone().drop_guard();
        Self { shared, task, stop }
    }

    /// A transaction of the writer has ended. Moves the rest of a long log.
    pub(super) async fn after_transaction(&self, writer: &mut SqliteConnection) {
        self.shared.written.notify_one();
        if self.shared.is_rest_due.swap(false, Ordering::Relaxed)
            && let Err(error) = checkpoint(writer, MOVE).await
        {
            tracing::warn!(%error, "the end of the write-ahead log was not moved into the database");
        }
    }

    /// Ends the task and closes its connection.
    pub(super) async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task for checkpoints failed");
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>, options: SqliteConnectOptions) {
        let mut connection = None;
        let mut pause = INTERVAL;
        loop {
            let written = async {
                self.written.notified().await;
                sleep(pause).await;
            };
            if self.stop.run_until_cancelled(written).await.is_none() {
                break;
            }
            let moved = self.checkpoint(&options, &mut connection).await;
            // A reader that needs all of the log, such as a backup, does so for a while.
            pause = if matches!(moved, Ok(true)) { INTERVAL } else { RETRY_DELAY };
            if let Err(error) = moved {
                connection = None;
                tracing::warn!(%error, "the write-ahead log was not moved into the database");
            }
        }
        if let Some(connection) = connection
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the connection for checkpoints was not closed cleanly");
        }
    }

    /// Moves the log if it is long enough. False if it is, and a reader needs all of it.
    async fn checkpoint(
        &self,
        options: &SqliteConnectOptions,
        connection: &mut Option<SqliteConnection>,
    ) -> Result<bool, sqlx::Error> {
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(options.connect().await?),
        };
        let (length, before) = checkpoint(connection, LOOK).await?;
        if length - before < DUE {
            return Ok(true);
        }
        let (length, moved) = checkpoint(connection, MOVE).await?;
        if length >= LONG && moved > before {
            self.is_rest_due.store(true, Ordering::Relaxed);
        }
        Ok(moved > before)
    }
}

/// The pages of the log after the statement, and how many of them are in the database.
async fn checkpoint(connection: &mut SqliteConnection, statement: &'static str) -> Result<(i64, i64), sqlx::Error> {
    let (_busy, length, moved): (i64, i64, i64) = sqlx::query_as(statement).fetch_one(connection).await?;
    Ok((length, moved))
}
