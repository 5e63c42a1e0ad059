//! Errors of the store, and what each says about the write that failed.

use std::sync::Arc;

use protocol::UserStorage;

/// SQLite's primary result code for an error in the statement itself.
const SQLITE_ERROR: u32 = 1;
/// The code of a lock that another connection holds.
const SQLITE_BUSY: u32 = 5;
/// SQLite's primary result code for an input/output error.
const SQLITE_IOERR: u32 = 10;
/// The code of a full disk.
const SQLITE_FULL: u32 = 13;
/// Primary result codes after which SQLite may have rolled back the whole transaction: out of memory, interrupted,
/// input/output error, full disk.
const ENDS_TRANSACTION: [u32; 4] = [7, 9, SQLITE_IOERR, SQLITE_FULL];

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("not a database URL")]
    Url(#[source] sqlx::Error),
    /// The database failed or did not answer.
    #[error("database error")]
    Database(#[from] sqlx::Error),
    /// The schema could not be migrated.
    #[error("migration failed")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// The transaction that this write shared with others failed.
    #[error("group commit failed")]
    GroupCommit(#[source] Arc<StoreError>),
    /// The write did not begin in time.
    #[error("the database is busy")]
    Busy,
    #[error("the store is closed")]
    Closed,
    /// The write panicked, or the writer ended.
    #[error("the write failed internally")]
    WriterFailed,
    /// The schema belongs to another version.
    #[error("the database has the schema of {} version of Gantry", if *is_newer { "a newer" } else { "an older" })]
    Schema {
        /// Whether the schema is newer than this program.
        is_newer: bool,
    },
    /// The user may store no more. Nothing was written.
    #[error("{0}")]
    UserStorageFull(Box<UserStorage>),
    /// A search over all users has found nothing in its time.
    #[error("nothing was found among the newest {rows}; narrow the search, for example with {narrower}")]
    QueryTooBroad { rows: usize, narrower: &'static str },
    /// A count would read too many rows.
    #[error("there are more than {max} to count; narrow the query, for example with {narrower}")]
    TooManyToCount { max: u32, narrower: &'static str },
    #[error("inconsistent row: {table}.{column} of {id}")]
    Inconsistent { table: &'static str, column: &'static str, id: String },
}

impl StoreError {
    /// Whether one row is at fault: reads and writes of other rows may succeed.
    pub const fn concerns_one_row(&self) -> bool {
        matches!(
            self,
            Self::Inconsistent { .. } | Self::Database(sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_))
        )
    }

    /// Whether a retry may succeed: the database is busy, full or unreachable, and did not reject the write as such.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                matches!(error.kind(), sqlx::error::ErrorKind::Other) && primary_code(&**error) != Some(SQLITE_ERROR)
            }
            Self::Database(error) => {
                matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed)
            }
            Self::GroupCommit(error) => error.is_transient(),
            Self::Busy => true,
            Self::Url(_)
            | Self::Migration(_)
            | Self::Closed
            | Self::WriterFailed
            | Self::Schema { .. }
            | Self::UserStorageFull(_)
            | Self::QueryTooBroad { .. }
            | Self::TooManyToCount { .. }
            | Self::Inconsistent { .. } => false,
        }
    }

    /// Whether the disk of the database is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => primary_code(&**error) == Some(SQLITE_FULL),
            Self::GroupCommit(error) => error.is_full(),
            _ => false,
        }
    }

    /// Whether the write may have been committed nevertheless: the failure came while the outcome was on its way.
    pub fn may_be_committed(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => primary_code(&**error) == Some(SQLITE_IOERR),
            Self::Database(error) => matches!(error, sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed),
            Self::GroupCommit(error) => error.may_be_committed(),
            Self::WriterFailed => true,
            _ => false,
        }
    }

    /// Whether another connection holds the lock of writers.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if primary_code(&**error) == Some(SQLITE_BUSY))
    }

    /// Whether SQLite may have rolled back the transaction by itself.
    pub(super) fn ends_transaction(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                primary_code(&**error).is_some_and(|code| ENDS_TRANSACTION.contains(&code))
            }
            Self::Database(error) => matches!(error, sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed),
            _ => false,
        }
    }
}

/// SQLite's extended result codes have the primary one in their low byte.
fn primary_code(error: &dyn sqlx::error::DatabaseError) -> Option<u32> {
    Some(error.code()?.parse::<u32>().ok()? & 0xff)
}

#[cfg(any(test, feature = "test-util"))]
impl StoreError {
    /// A transient error.
    pub fn busy() -> Self {
        Self::Busy
    }
}
