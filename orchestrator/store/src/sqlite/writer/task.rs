//! The writer's task: it owns the connection that writes, and commits what is queued in groups.
//!
//! Owns the transactions: `BEGIN IMMEDIATE`, the queued writes, `COMMIT`, then the answers, the notifications and the
//! metrics. A write that fails is rolled back to its savepoint and does not affect the others of its group.
//!
//! A caller is answered only after the commit, and the effects come before the answers: who has an answer can read what
//! it wrote and is notified of it. SQLite ends a transaction by itself when the disk is full, and nothing that ran in
//! it is kept: then all writes of the group fail, and none runs outside a transaction. The connection is used again
//! only if it is certain that no transaction is open (`is_clean`). Which `Statements` a write has decides whether it
//! needs a savepoint; the savepoint itself is in `write_tx`.
//! `a_transaction_that_the_database_ended_by_itself_fails_its_group_and_no_other` and
//! `a_flood_of_batches_delays_a_write_by_one_group_and_a_bad_batch_fails_alone` (`writer/tests`) fail when this is
//! wrong.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use sqlx::{
    ConnectOptions as _, Connection as _,
    sqlite::{SqliteConnectOptions, SqliteConnection},
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        write_queue::{Group, WriteQueue},
        write_tx::Effects,
    },
    Committed, Statements, Write, WriteTx,
    checkpoints::Checkpoints,
    fail_all,
};
use crate::{
    BUSY_TIMEOUT, JobChange, StoreError,
    events::batch::{self, PendingBatch},
    users::user_storage::UserStorageLimit,
};

/// How often a command asks for the lock of writers.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);

/// The task that owns the writing connection.
pub(super) struct WriterTask {
    pub(super) queue: Arc<WriteQueue>,
    /// `None` after a failure that left it in an unknown state; reopened for the next group.
    pub(super) connection: Option<SqliteConnection>,
    pub(super) options: SqliteConnectOptions,
    pub(super) user_storage_limit: UserStorageLimit,
    pub(super) committed: Committed,
    pub(super) checkpoints: Checkpoints,
}

impl WriterTask {
    /// Writes groups until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        while let Some(group) = self.queue.next().await {
            let connection = match self.connection.take() {
                Some(connection) => Ok(connection),
                None => self.options.connect().await,
            };
            let mut tx = match connection {
                Ok(db) => WriteTx::new(db, self.user_storage_limit),
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
            if let Some(connection) = &mut self.connection {
                self.checkpoints.after_transaction(connection).await;
            }
        }
        self.checkpoints.stop().await;
        if let Some(connection) = self.connection.take()
            && let Err(error) = close(connection).await
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
        let begins_itself = alone && writes.iter().all(|write| write.statements() == Statements::Batched);
        if begins_itself {
            tx.begin_with_next_batch();
        } else if let Err(error) = begin(tx).await {
            fail_all(writes, error);
            return is_clean(tx).await;
        }
        let (mut effects, mut done) = (Effects::default(), Vec::with_capacity(writes.len()));
        let mut writes = writes.into_iter();
        while let Some(mut write) = writes.next() {
            let prepared = match write.statements() {
                _ if alone => Ok(()),
                Statements::One => Ok(()),
                Statements::Several => tx.set_savepoint().await,
                Statements::Batched => {
                    tx.set_savepoint_with_next_batch();
                    Ok(())
                }
            };
            let result = match prepared {
                Ok(()) => run_one(&mut write, tx).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else {
                effects.add(tx.take_effects());
                done.push(write);
                continue;
            };
            tx.take_effects();
            if alone {
                self.report_uncertain(&error);
                write.finish(Err(error));
                return is_clean(tx).await;
            }
            let undone = match write.statements() {
                Statements::One => Ok(()),
                Statements::Several | Statements::Batched => tx.roll_back_to_savepoint().await,
            };
            if undone.is_err() || error.ends_transaction() {
                self.report_uncertain(&error);
                // A full disk, or the like: SQLite has rolled back the whole transaction.
                done.push(write);
                done.extend(writes);
                fail_all(done, error);
                return is_clean(tx).await;
            }
            write.finish(Err(error));
        }
        match tx.commit().await {
            Ok(()) => {
                self.apply(effects);
                for write in done {
                    write.finish(Ok(()));
                }
                true
            }
            Err(error) => {
                self.report_uncertain(&error);
                fail_all(done, error);
                is_clean(tx).await
            }
        }
    }

    async fn finish_alone(&self, tx: &mut WriteTx, write: Box<dyn Write>, result: Result<(), StoreError>) -> bool {
        let effects = tx.take_effects();
        match result {
            Ok(()) => {
                self.apply(effects);
                write.finish(Ok(()));
                true
            }
            Err(error) => {
                self.report_uncertain(&error);
                write.finish(Err(error));
                is_clean(tx).await
            }
        }
    }

    /// Tells the observer of a failure after which the writes may be committed nevertheless: their effects are lost.
    fn report_uncertain(&self, error: &StoreError) {
        if error.may_be_committed() {
            (self.committed.observer)(JobChange::Uncertain);
        }
    }

    /// Writes the batches of several jobs in one transaction. If one of them is invalid, each is written in its own.
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
        if error.is_transient() || batches.len() == 1 || !clean {
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
        batches: &[&batch::Batch],
    ) -> Result<Vec<batch::Appended>, StoreError> {
        tx.begin_with_next_batch();
        let appended = batch::append_all(tx, batches).await?;
        tx.commit().await?;
        base::failpoint::reach("events.after_commit");
        self.apply(tx.take_effects());
        Ok(appended)
    }

    fn apply(&self, effects: Effects) {
        for effect in effects.after_commit {
            effect(&self.committed);
        }
        for topic in &effects.notified {
            self.committed.notifier.notify(topic);
        }
    }
}

/// Closes the connection once all that was committed is on the disk. A commit by itself does not wait for that, and the
/// close does only if no other connection is open.
async fn close(mut connection: SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut connection).await?;
    connection.close().await
}

/// Runs a write. A panic is an error of that write alone.
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

/// Begins a transaction. A server that has much to write holds the lock most of the time, with short gaps. A command
/// beside it asks often (`Store::open_existing`): SQLite itself would ask every 100 ms, and find a gap by chance.
async fn begin(tx: &mut WriteTx) -> Result<(), StoreError> {
    let started = Instant::now();
    loop {
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut tx.db).await.map_err(StoreError::from) {
            Err(error) if error.is_locked() && started.elapsed() < BUSY_TIMEOUT => sleep(LOCK_INTERVAL).await,
            begun => return begun.map(drop),
        }
    }
}

/// Rolls back the transaction that a failure may have left open. False when the connection must be replaced.
async fn is_clean(tx: &mut WriteTx) -> bool {
    tx.reset();
    match sqlx::query("ROLLBACK").execute(&mut tx.db).await {
        Ok(_) => true,
        // SQLite has already ended the transaction, or none was begun.
        Err(sqlx::Error::Database(error)) => error.message().contains("no transaction is active"),
        Err(_) => false,
    }
}
