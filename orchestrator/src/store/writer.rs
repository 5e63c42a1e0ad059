//! The writer: one task that owns the only connection that writes, and commits what waits as a group.
//!
//! Owns the transactions: `BEGIN IMMEDIATE`, as many writes as wait, `COMMIT`, then the answers, the notifications and the
//! metrics. A write that fails is rolled back to its savepoint and fails nobody else. Never decides what is written.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use agent::BoxFuture;
use futures_util::FutureExt as _;
use protocol::JobId;
use sqlx::{
    ConnectOptions as _, Connection as _,
    sqlite::{SqliteConnectOptions, SqliteConnection},
};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Feed, JobObserver, StoreError,
    event_batch::{self, PendingBatch},
    write_queue::{Group, Position, WriteQueue},
};
use crate::telemetry::metrics::Metrics;

/// Closing waits so long for what is queued: a locked database makes each group fail after `BUSY_TIMEOUT`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Who learns of what is committed, before its caller is answered.
pub(super) struct Committed {
    pub(super) metrics: Metrics,
    pub(super) observer: JobObserver,
    pub(super) feed: Arc<Feed>,
}

/// What a write does once it is committed.
type Effect = Box<dyn FnOnce(&Committed) + Send>;

/// The transaction that a write runs in.
pub(super) struct WriteTx {
    /// The writing connection.
    pub(super) db: SqliteConnection,
    effects: Effects,
}

/// What follows the commit.
#[derive(Default)]
struct Effects {
    notified: Vec<JobId>,
    after_commit: Vec<Effect>,
}

impl WriteTx {
    /// Wakes the job's followers once this write is committed.
    pub(super) fn notify(&mut self, job: JobId) {
        if self.effects.notified.last() != Some(&job) {
            self.effects.notified.push(job);
        }
    }

    /// Runs `effect` once this write is committed.
    pub(super) fn after_commit(&mut self, effect: impl FnOnce(&Committed) + Send + 'static) {
        self.effects.after_commit.push(Box::new(effect));
    }
}

/// Whether a write needs a savepoint of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statements {
    /// One statement, which SQLite applies as a whole or not at all.
    One,
    /// Several, which need a transaction or a savepoint around them.
    Several,
}

/// A write in the queue, whatever it returns.
pub(super) trait Write: Send {
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
        // The caller may have gone; its write stands all the same.
        let _ = answer.send(committed.and_then(|()| value.ok_or(StoreError::WriterFailed)));
    }
}

/// The handle to the writer. Dropping it closes the queue; the task ends once it has written what is queued.
pub(super) struct Writer {
    queue: Arc<WriteQueue>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl Writer {
    /// Starts the task on a connection.
    pub(super) fn start(connection: SqliteConnection, options: SqliteConnectOptions, committed: Committed) -> Self {
        let (queue, tasks, ended) = (Arc::new(WriteQueue::default()), TaskTracker::new(), CancellationToken::new());
        let task = WriterTask { queue: Arc::clone(&queue), connection: Some(connection), options, committed };
        let guard = ended.clone().drop_guard();
        tasks.spawn(async move {
            let _guard = guard;
            task.run().await;
        });
        Self { queue, tasks, ended }
    }

    /// Queues a write and waits until it is committed. A caller that goes away before it has begun withdraws it.
    pub(super) async fn write<T, F>(&self, statements: Statements, work: F) -> Result<T, StoreError>
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
    pub(super) async fn append(&self, batch: event_batch::Batch) -> Result<event_batch::Appended, StoreError> {
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
                // It has begun: what becomes of it is known soon.
                answered.await
            }
        };
        answer.unwrap_or(Err(StoreError::WriterFailed))
    }

    /// Refuses further writes and waits, for a bounded time, until what is queued is written.
    pub(super) async fn close(&self) {
        self.queue.close();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("the database was busy for too long; what was queued is not written");
        }
    }

    /// How many writes and batches wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether a group is being written.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        self.queue.is_group_taken()
    }

    /// Returns when the task has ended, for whatever reason.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

struct WriterTask {
    queue: Arc<WriteQueue>,
    /// None after a failure that left it in an unknown state; opened anew for the next group.
    connection: Option<SqliteConnection>,
    options: SqliteConnectOptions,
    committed: Committed,
}

impl WriterTask {
    async fn run(mut self) {
        while let Some(group) = self.queue.next().await {
            let connection = match self.connection.take() {
                Some(connection) => Ok(connection),
                None => self.options.connect().await,
            };
            let mut tx = match connection {
                Ok(db) => WriteTx { db, effects: Effects::default() },
                Err(error) => {
                    group.fail(StoreError::Database(error));
                    continue;
                }
            };
            let usable = match group {
                Group::Writes(writes) => self.commit_writes(&mut tx, writes).await,
                Group::Batches(batches) => self.commit_batches(&mut tx, batches).await,
            };
            self.connection = usable.then_some(tx.db);
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the writing connection was not closed cleanly");
        }
    }

    /// Runs the writes of a group in one transaction. False when the connection must be replaced.
    async fn commit_writes(&self, tx: &mut WriteTx, mut writes: Vec<Box<dyn Write>>) -> bool {
        if let [write] = writes.as_mut_slice()
            && write.statements() == Statements::One
        {
            // SQLite's own transaction around a statement is enough.
            let result = run_one(write, tx).await;
            return self.finish_alone(tx, writes.remove(0), result).await;
        }
        let alone = writes.len() == 1;
        if let Err(error) = execute(tx, "BEGIN IMMEDIATE").await {
            fail_all(writes, error);
            return is_clean(tx).await;
        }
        let (mut effects, mut done, mut savepoint) = (Effects::default(), Vec::with_capacity(writes.len()), false);
        let mut writes = writes.into_iter();
        while let Some(mut write) = writes.next() {
            let prepared = match (alone || write.statements() == Statements::One, savepoint) {
                (true, _) => Ok(()),
                (false, false) => execute(tx, "SAVEPOINT w").await,
                // One crossing to the database's thread for both.
                (false, true) => execute(tx, "RELEASE w; SAVEPOINT w").await,
            };
            savepoint |= !alone && write.statements() == Statements::Several;
            let result = match prepared {
                Ok(()) => run_one(&mut write, tx).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else {
                effects.add(std::mem::take(&mut tx.effects));
                done.push(write);
                continue;
            };
            tx.effects = Effects::default();
            if alone {
                write.finish(Err(error));
                return is_clean(tx).await;
            }
            let undone = match write.statements() {
                Statements::One => Ok(()),
                Statements::Several => execute(tx, "ROLLBACK TO w").await,
            };
            if undone.is_err() || error.ends_transaction() {
                // A full disk, or the like: SQLite has rolled back the whole transaction.
                done.push(write);
                done.extend(writes);
                fail_all(done, error);
                return is_clean(tx).await;
            }
            write.finish(Err(error));
        }
        match execute(tx, "COMMIT").await {
            Ok(()) => {
                self.apply(effects);
                for write in done {
                    write.finish(Ok(()));
                }
                true
            }
            Err(error) => {
                fail_all(done, error);
                is_clean(tx).await
            }
        }
    }

    async fn finish_alone(&self, tx: &mut WriteTx, write: Box<dyn Write>, result: Result<(), StoreError>) -> bool {
        let effects = std::mem::take(&mut tx.effects);
        match result {
            Ok(()) => {
                self.apply(effects);
                write.finish(Ok(()));
                true
            }
            Err(error) => {
                write.finish(Err(error));
                is_clean(tx).await
            }
        }
    }

    /// Writes the batches of several jobs together. Where that fails for a reason that lies in one of them, each alone.
    async fn commit_batches(&self, tx: &mut WriteTx, batches: Vec<PendingBatch>) -> bool {
        let appended = self.append_all(tx, &batches.iter().map(|one| &one.batch).collect::<Vec<_>>()).await;
        let error = match appended {
            Ok(appended) => {
                for (one, appended) in batches.into_iter().zip(appended) {
                    one.finish(Ok(appended));
                }
                return true;
            }
            Err(error) => error,
        };
        let mut clean = is_clean(tx).await;
        if error.may_pass() || batches.len() == 1 || !clean {
            let error = Arc::new(error);
            for one in batches {
                one.finish(Err(StoreError::GroupCommit(Arc::clone(&error))));
            }
            return clean;
        }
        for one in batches {
            if !clean {
                one.finish(Err(StoreError::WriterFailed));
                continue;
            }
            match self.append_all(tx, &[&one.batch]).await {
                Ok(appended) => {
                    let appended = appended.into_iter().next().ok_or(StoreError::WriterFailed);
                    one.finish(appended);
                }
                Err(error) => {
                    clean = is_clean(tx).await;
                    one.finish(Err(error));
                }
            }
        }
        clean
    }

    async fn append_all(
        &self,
        tx: &mut WriteTx,
        batches: &[&event_batch::Batch],
    ) -> Result<Vec<event_batch::Appended>, StoreError> {
        execute(tx, "BEGIN IMMEDIATE").await?;
        let appended = event_batch::append_all(tx, batches).await?;
        execute(tx, "COMMIT").await?;
        crate::failpoint::reach("events.after_commit");
        self.apply(std::mem::take(&mut tx.effects));
        Ok(appended)
    }

    fn apply(&self, effects: Effects) {
        for effect in effects.after_commit {
            effect(&self.committed);
        }
        for job in effects.notified {
            self.committed.feed.notify(job);
        }
    }
}

impl Effects {
    fn add(&mut self, other: Self) {
        self.notified.extend(other.notified);
        self.after_commit.extend(other.after_commit);
    }
}

/// A panic is an error of that write alone.
async fn run_one(write: &mut Box<dyn Write>, tx: &mut WriteTx) -> Result<(), StoreError> {
    AssertUnwindSafe(write.run(tx)).catch_unwind().await.unwrap_or_else(|panic| {
        tracing::error!(panic = panic_message(panic.as_ref()), "a write panicked and is rolled back");
        Err(StoreError::WriterFailed)
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

pub(super) fn fail_all(writes: Vec<Box<dyn Write>>, error: StoreError) {
    let error = Arc::new(error);
    for write in writes {
        write.finish(Err(StoreError::GroupCommit(Arc::clone(&error))));
    }
}

async fn execute(tx: &mut WriteTx, statement: &'static str) -> Result<(), StoreError> {
    sqlx::query(statement).execute(&mut tx.db).await?;
    Ok(())
}

/// Leaves the transaction that a failure may have left open. False when the connection cannot be used any more.
async fn is_clean(tx: &mut WriteTx) -> bool {
    tx.effects = Effects::default();
    match sqlx::query("ROLLBACK").execute(&mut tx.db).await {
        Ok(_) => true,
        // SQLite has ended the transaction by itself, or none was begun.
        Err(sqlx::Error::Database(error)) => error.message().contains("no transaction is active"),
        Err(_) => false,
    }
}
