//! The writer: the handle to the one task that writes, and what a write is.
//!
//! `task` owns the connection and the transactions. Never decides what is written.

mod checkpoints;
mod task;
#[cfg(test)]
pub(crate) mod tests;

use std::{sync::Arc, time::Duration};

use agent::BoxFuture;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{checkpoints::Checkpoints, task::WriterTask};
use super::{
    write_queue::{Position, WriteQueue},
    write_tx::{Committed, WriteTx},
};
use crate::{
    StoreError,
    events::batch::{self, PendingBatch},
    users::user_storage::UserStorageLimit,
};

/// Maximum wait for the queue when the store closes: a locked database makes each group fail after `BUSY_TIMEOUT`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a write needs a savepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statements {
    /// One statement, which SQLite applies as a whole or not at all.
    One,
    /// Several, which need a transaction or a savepoint around them.
    Several,
    /// Several, the first of which are run by [`WriteTx::run`]: they share a round trip with the savepoint or the
    /// transaction.
    Batched,
}

/// A write in the queue, with its result type erased.
pub(crate) trait Write: Send {
    fn statements(&self) -> Statements;
    /// Runs it; its result is kept until `finish`.
    fn run<'t>(&'t mut self, tx: &'t mut WriteTx) -> BoxFuture<'t, Result<(), StoreError>>;
    /// Answers the caller: with the result, or with the reason why nothing was committed.
    fn finish(self: Box<Self>, committed: Result<(), StoreError>);
}

struct TypedWrite<T, F> {
    statements: Statements,
    work: Option<F>,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Write for TypedWrite<T, F>
where
    T: Send + 'static,
    F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
{
    fn statements(&self) -> Statements {
        self.statements
    }

    fn run<'t>(&'t mut self, tx: &'t mut WriteTx) -> BoxFuture<'t, Result<(), StoreError>> {
        Box::pin(async move {
            let Some(work) = self.work.take() else { return Err(StoreError::WriterFailed) };
            self.value = Some(work(tx).await?);
            Ok(())
        })
    }

    fn finish(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { value, answer, .. } = *self;
        // The caller may have gone; its write is committed nevertheless.
        let _ = answer.send(committed.and_then(|()| value.ok_or(StoreError::WriterFailed)));
    }
}

/// The handle to the writer. Dropping it closes the queue; the task ends after the queued writes.
pub(crate) struct Writer {
    queue: Arc<WriteQueue>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl Writer {
    /// Starts the task on a connection.
    pub(crate) fn start(
        connection: SqliteConnection,
        options: SqliteConnectOptions,
        user_storage_limit: UserStorageLimit,
        committed: Committed,
    ) -> Self {
        let (queue, tasks, ended) = (Arc::new(WriteQueue::default()), TaskTracker::new(), CancellationToken::new());
        let task = WriterTask {
            checkpoints: Checkpoints::start(options.clone(), &tasks),
            queue: Arc::clone(&queue),
            connection: Some(connection),
            options,
            user_storage_limit,
            committed,
        };
        let guard = ended.clone().drop_guard();
        tasks.spawn(async move {
            let _guard = guard;
            task.run().await;
        });
        Self { queue, tasks, ended }
    }

    /// Queues a write and waits for its commit. Dropping the future before the write has begun withdraws it.
    pub(crate) async fn write<T, F>(&self, statements: Statements, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let write = Box::new(TypedWrite { statements, work: Some(work), value: None, answer });
        let position = self.queue.push_write(write);
        self.answer(position, answered).await
    }

    /// Queues a worker's batch, to be written together with those of other jobs.
    pub(crate) async fn append(&self, batch: batch::Batch) -> Result<batch::Appended, StoreError> {
        let (answer, answered) = oneshot::channel();
        let position = self.queue.push_batch(PendingBatch { batch, answer });
        self.answer(position, answered).await
    }

    async fn answer<T>(
        &self,
        position: impl Future<Output = Result<Position, StoreError>>,
        answered: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let position = position.await?;
        tokio::pin!(answered);
        let answer = tokio::select! {
            biased;
            answer = &mut answered => answer,
            () = position.overdue() => {
                if position.withdraw() {
                    return Err(StoreError::Busy);
                }
                // It has begun, so its result arrives within the transaction's own timeouts.
                answered.await
            }
        };
        answer.unwrap_or(Err(StoreError::WriterFailed))
    }

    /// Refuses further writes and waits for the queued ones, at most [`CLOSE_TIMEOUT`].
    pub(crate) async fn close(&self) {
        self.queue.close();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("closing timed out because the database is busy; queued writes are lost");
        }
    }

    /// The number of queued writes and batches.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether a group is being written.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.is_group_taken()
    }

    /// Returns when the task has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

pub(crate) fn fail_all(writes: Vec<Box<dyn Write>>, error: StoreError) {
    let error = Arc::new(error);
    for write in writes {
        write.finish(Err(StoreError::GroupCommit(Arc::clone(&error))));
    }
}
