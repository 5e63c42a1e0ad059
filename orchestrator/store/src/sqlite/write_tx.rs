//! The transaction that writes run in.
//!
//! Owns the writing connection while a group of writes runs, the savepoint around each write, and the effects after the
//! commit. Each statement is a round trip to the database's thread, which costs more than most statements do; so
//! statements whose arguments are known together are run as a batch, in one round trip, with the transaction's own
//! statements around them.
//!
//! A transaction has one savepoint, `w`, which moves from write to write; `Pending` is what the next batch still has to
//! begin with. While it is pending, or after it could not be set (`Savepoint::Failed`), `w` is that of the write
//! before, which must not be undone: in the first case there is nothing to undo, in the second only the whole
//! transaction can be rolled back. After `WriteTx::run_last` the transaction may be committed, so nothing may fail.
//! `writer/task` decides when each is called. `a_write_whose_savepoint_cannot_be_set_does_not_undo_the_one_before_it`
//! and `a_write_that_fails_in_a_group_fails_no_other_and_leaves_nothing` (`writer/tests`) fail when this is wrong.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use protocol::JobId;
use sqlx::{
    Arguments as _, AssertSqlSafe, Either, Encode, Execute as _, Executor as _, QueryBuilder, Sqlite, Type,
    sqlite::{SqliteArguments, SqliteConnection, SqliteRow},
};

use crate::{EventNotifier, JobObserver, StoreError, Topic, UserStorageLimit};
use telemetry::metrics::Metrics;

/// The receivers of committed changes. They are called before the writer's caller is answered.
pub(crate) struct Committed {
    pub(crate) metrics: Metrics,
    pub(crate) observer: JobObserver,
    pub(crate) notifier: Arc<EventNotifier>,
}

/// An effect of a write outside the database, applied after the commit.
type Effect = Box<dyn FnOnce(&Committed) + Send>;

/// The effects of a group of writes outside the database, applied after the commit.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) notified: Vec<Topic>,
    pub(crate) after_commit: Vec<Effect>,
}

impl Effects {
    pub(crate) fn add(&mut self, other: Self) {
        self.notified.extend(other.notified);
        self.after_commit.extend(other.after_commit);
    }
}

/// Statements that are run in one round trip. Arguments written as `$1` are numbered over all of them.
pub(crate) struct StatementBatch {
    sql: String,
    arguments: Result<SqliteArguments, sqlx::Error>,
}

impl StatementBatch {
    pub(crate) fn new(statements: &[&'static str]) -> Self {
        Self { sql: statements.join("; "), arguments: Ok(SqliteArguments::default()) }
    }

    /// Statements that were built, separated by semicolons.
    pub(crate) fn built(builder: &mut QueryBuilder<Sqlite>) -> Self {
        let mut query = builder.build();
        let arguments = query.take_arguments().map(Option::unwrap_or_default).map_err(sqlx::Error::Encode);
        Self { sql: query.sql().as_str().to_owned(), arguments }
    }

    /// Binds the next argument.
    #[must_use]
    pub(crate) fn bind<T: for<'q> Encode<'q, Sqlite> + Type<Sqlite>>(mut self, value: T) -> Self {
        self.arguments = self.arguments.and_then(|mut arguments| {
            arguments.add(value).map_err(sqlx::Error::Encode)?;
            Ok(arguments)
        });
        self
    }
}

/// The transaction that a write runs in.
pub(crate) struct WriteTx {
    pub(crate) db: SqliteConnection,
    pub(crate) user_storage_limit: UserStorageLimit,
    effects: Effects,
    /// Statements that the next batch begins with.
    pending: Option<Pending>,
    /// Whether the write is the only one of its transaction.
    is_alone: bool,
    /// Whether a batch has committed the transaction.
    is_committed: bool,
    savepoint: Savepoint,
}

/// The savepoint of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Savepoint {
    None,
    Set,
    /// It could not be set for the current write: one that is there belongs to the write before it.
    Failed,
}

/// Statements of the transaction that wait for the next batch.
#[derive(Debug, Clone, Copy)]
enum Pending {
    Begin,
    Savepoint,
    NextSavepoint,
}

impl Pending {
    const fn sql(self) -> &'static str {
        match self {
            Self::Begin => "BEGIN IMMEDIATE; ",
            Self::Savepoint => "SAVEPOINT w; ",
            // Keeps the previous write, which has succeeded, and sets a savepoint for the next.
            Self::NextSavepoint => "RELEASE w; SAVEPOINT w; ",
        }
    }

    const fn statements(self) -> usize {
        match self {
            Self::Begin | Self::Savepoint => 1,
            Self::NextSavepoint => 2,
        }
    }
}

/// The rows that a statement of a batch returned.
pub(crate) struct StatementResult {
    rows: Vec<SqliteRow>,
}

impl StatementResult {
    /// Its rows, decoded.
    pub(crate) fn decode<T: for<'r> sqlx::FromRow<'r, SqliteRow>>(&self) -> Result<Vec<T>, StoreError> {
        self.rows.iter().map(|row| T::from_row(row).map_err(StoreError::from)).collect()
    }

    /// Its first row, decoded.
    pub(crate) fn decode_first<T: for<'r> sqlx::FromRow<'r, SqliteRow>>(&self) -> Result<Option<T>, StoreError> {
        Ok(self.rows.first().map(T::from_row).transpose()?)
    }
}

impl WriteTx {
    pub(crate) fn new(db: SqliteConnection, user_storage_limit: UserStorageLimit) -> Self {
        Self {
            db,
            user_storage_limit,
            effects: Effects::default(),
            pending: None,
            is_alone: false,
            is_committed: false,
            savepoint: Savepoint::None,
        }
    }

    /// Notifies the subscribers of a topic after the commit.
    pub(crate) fn notify(&mut self, topic: Topic) {
        if !self.effects.notified.contains(&topic) {
            self.effects.notified.push(topic);
        }
    }

    /// Notifies the subscribers of a job and of its owner after the commit.
    pub(crate) fn notify_job(&mut self, job: JobId, owner: &str) {
        self.notify(Topic::Job(job));
        self.notify(Topic::User(owner.to_owned()));
    }

    /// Runs `effect` after the commit.
    pub(crate) fn after_commit(&mut self, effect: impl FnOnce(&Committed) + Send + 'static) {
        self.effects.after_commit.push(Box::new(effect));
    }

    /// Runs statements in one round trip. The result has an entry for each.
    pub(crate) async fn run(&mut self, batch: StatementBatch) -> Result<Vec<StatementResult>, StoreError> {
        self.run_batch(batch, false).await
    }

    /// Like [`Self::run`], for the last statements of a write: what they do is committed in the same round trip where
    /// no other write shares the transaction. The write must not fail afterwards.
    pub(crate) async fn run_last(&mut self, batch: StatementBatch) -> Result<Vec<StatementResult>, StoreError> {
        self.run_batch(batch, true).await
    }

    async fn run_batch(&mut self, batch: StatementBatch, is_last: bool) -> Result<Vec<StatementResult>, StoreError> {
        let arguments = batch.arguments?;
        let pending = self.pending.take();
        let commits = is_last && self.is_alone;
        let (before, after) = (pending.map_or("", Pending::sql), if commits { "; COMMIT" } else { "" });
        // Only constants and lists of placeholders are put together here.
        let sql = AssertSqlSafe(format!("{before}{}{after}", batch.sql));
        let mut outcomes = self.db.fetch_many(sqlx::query_with::<Sqlite, _>(sql, arguments));
        let (mut results, mut rows) = (Vec::new(), Vec::new());
        let ended = loop {
            match outcomes.try_next().await {
                Ok(Some(Either::Right(row))) => rows.push(row),
                Ok(Some(Either::Left(_))) => results.push(StatementResult { rows: std::mem::take(&mut rows) }),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(outcomes);
        if results.len() < pending.map_or(0, Pending::statements) {
            self.savepoint = Savepoint::Failed;
        } else if matches!(pending, Some(Pending::Savepoint)) {
            self.savepoint = Savepoint::Set;
        }
        ended?;
        if commits {
            results.pop();
            self.is_committed = true;
        }
        Ok(results.split_off(pending.map_or(0, Pending::statements).min(results.len())))
    }

    /// Whether a batch has committed the transaction already.
    pub(crate) const fn is_committed(&self) -> bool {
        self.is_committed
    }

    /// Begins the transaction with the next batch, which is of the only write in it.
    pub(crate) fn begin_with_next_batch(&mut self) {
        (self.pending, self.is_alone) = (Some(Pending::Begin), true);
    }

    /// Sets the savepoint of the next write with its first batch.
    pub(crate) fn set_savepoint_with_next_batch(&mut self) {
        self.pending =
            Some(if self.savepoint == Savepoint::None { Pending::Savepoint } else { Pending::NextSavepoint });
    }

    /// Sets the savepoint of the next write now, for writes that run their statements on the connection.
    pub(crate) async fn set_savepoint(&mut self) -> Result<(), StoreError> {
        self.set_savepoint_with_next_batch();
        self.run(StatementBatch::new(&[])).await.map(drop)
    }

    /// Undoes the write that failed. One that has run no statement has set no savepoint: the last one is another
    /// write's. Fails if the savepoint could not be set: only the whole transaction can be rolled back then.
    pub(crate) async fn roll_back_to_savepoint(&mut self) -> Result<(), StoreError> {
        if self.savepoint == Savepoint::Failed {
            return Err(StoreError::WriterFailed);
        }
        if self.pending.take().is_none() {
            sqlx::query("ROLLBACK TO w").execute(&mut self.db).await?;
        }
        Ok(())
    }

    /// Commits the transaction, unless a batch has done so or nothing was begun.
    pub(crate) async fn commit(&mut self) -> Result<(), StoreError> {
        let is_begun = !matches!(self.pending, Some(Pending::Begin));
        if is_begun && !self.is_committed {
            sqlx::query("COMMIT").execute(&mut self.db).await?;
        }
        self.reset_transaction();
        Ok(())
    }

    /// Returns the effects of the statements run since the last call.
    pub(crate) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Discards the state of a transaction that is rolled back.
    pub(crate) fn reset(&mut self) {
        self.effects = Effects::default();
        self.reset_transaction();
    }

    fn reset_transaction(&mut self) {
        (self.pending, self.is_alone, self.is_committed) = (None, false, false);
        self.savepoint = Savepoint::None;
    }
}
