//! The store: the only SQL. Contents, the connection, and how a transition is written.
//!
//! Every statement is plain enough for SQLite and PostgreSQL. One connection writes (SQLite has one writer; waiting for
//! it in our own queue is fair, waiting on its lock is not), the others read: some for the public API, some for the control
//! plane alone.

mod actions;
mod audit;
mod backup;
mod budget;
mod calls;
mod events;
mod feed;
mod idempotency;
mod intake;
mod job_list;
mod jobs;
mod lifecycle;
mod moves;
mod prompts;
mod retention;
mod rows;
mod sessions;
mod tally;
pub mod tokens;
mod usage;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use protocol::{InstanceId, JobId};
use sqlx::{
    Connection as _, Sqlite, SqliteConnection, SqlitePool, Transaction,
    migrate::Migrator,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

pub use actions::{ActionRow, KnownAction};
pub use audit::{AuditFilter, Deed};
pub use backup::{BackupError, backup};
pub use budget::Reserved;
pub use calls::{CallRow, CallsMade, KnownCall};
pub use events::EventPage;
pub use feed::{Feed, Follower};
pub use idempotency::{Claim, Key};
pub use intake::{Appended, WorkerBatch};
pub use job_list::{JobFilter, JobPage};
pub use jobs::{MAX_PENDING, MAX_PENDING_PER_USER, QueueFull, RunningJob, RunningJobs, Unfinished};
pub use lifecycle::Changed;
pub use prompts::Prompted;
pub use rows::StoredEvent;
pub use usage::{DayPage, UsageFilter};

use self::{audit::By, intake::Intake, moves::Was};
use crate::{domain::job::JobRecord, telemetry::metrics::Metrics};
pub use retention::{Kept, Trimmed};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Connections that read for the public API: a page takes milliseconds, and more of them would only share two or four cores.
pub const PUBLIC_READERS: u32 = 4;
/// Connections that read for the workers' calls and the dispatcher, whatever the public API is asked for.
const CONTROL_READERS: u32 = 4;
/// Whoever waits this long for a connection gives up: behind a database that somebody locks, writers stand in line, and an
/// answer that says so is worth more than one that comes after its reader has gone.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// A write that waits this long for another process (the command line's token commands) gives up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// SQLite's code for a statement that makes no sense to it.
const SQLITE_ERROR: &str = "1";

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is none.
    #[error("not a database's URL")]
    Url(#[source] sqlx::Error),
    /// The database said no, or nothing.
    #[error("database error")]
    Database(#[from] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("migration failed")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// What was to be written together was not.
    #[error("a write that others were part of failed")]
    Together(#[source] Arc<StoreError>),
    /// The schema is another version's.
    #[error("the database has the schema of {} version of Gantry", if *is_newer { "a newer" } else { "an older" })]
    Schema {
        /// Whether this program is the older one.
        is_newer: bool,
    },
    /// A row makes no sense.
    #[error("inconsistent row: {table}.{column} of {id}")]
    Inconsistent {
        /// Where.
        table: &'static str,
        /// In which column.
        column: &'static str,
        /// Of which row.
        id: String,
    },
}

impl StoreError {
    /// Whether the same write may do later: the database is busy, full or out of reach, and does not refuse what it was given.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                matches!(error.kind(), sqlx::error::ErrorKind::Other) && error.code().as_deref() != Some(SQLITE_ERROR)
            }
            Self::Database(error) => {
                matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed)
            }
            Self::Together(error) => error.may_pass(),
            Self::Url(_) | Self::Migration(_) | Self::Schema { .. } | Self::Inconsistent { .. } => false,
        }
    }
}

/// What was committed.
#[derive(Debug, Clone, Copy)]
pub enum JobChange<'a> {
    /// A transition; the record is as it left it.
    Transitioned(&'a JobRecord),
    /// A prompt for the job's worker.
    PromptAdded(JobId),
}

/// Called after the commit and before the change's caller is answered. Must not block.
pub type JobObserver = Arc<dyn Fn(JobChange<'_>) + Send + Sync>;

#[cfg(test)]
impl StoreError {
    /// One that may pass.
    pub(crate) fn busy() -> Self {
        Self::Database(sqlx::Error::PoolTimedOut)
    }
}

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    write: SqlitePool,
    /// What this handle reads by: the public API's connections, or the control plane's.
    read: SqlitePool,
    control: SqlitePool,
    feed: Arc<Feed>,
    observer: JobObserver,
    metrics: Metrics,
    by: By,
    intake: Arc<Intake>,
    /// Held while a transcript is rebuilt.
    transcripts: Arc<tokio::sync::Mutex<()>>,
}

impl Store {
    /// Opens (or makes) the database, `sqlite:…`, and brings its schema up to date. Nobody reads what it counts.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_observed(url, Metrics::default(), Arc::new(|_| {})).await
    }

    /// The same, counting what it writes and calling `observer` after each commit that concerns an attempt.
    pub async fn open_observed(url: &str, metrics: Metrics, observer: JobObserver) -> Result<Self, StoreError> {
        let options = options(url)?.create_if_missing(true);
        for_its_owner_alone(url, options.get_filename());
        let write = pool(1).connect_with(options.clone()).await?;
        MIGRATIONS.run(&write).await?;
        Self::over(write, options, metrics, observer).await
    }

    /// Opens a database that is there, as it is: its schema is not changed under a server that may be at work on it.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        let options = options(url)?;
        let write = pool(1).connect_with(options.clone()).await?;
        let newest: Option<i64> =
            sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations WHERE success").fetch_one(&write).await?;
        let known = MIGRATIONS.iter().map(|migration| migration.version).max();
        if newest != known {
            return Err(StoreError::Schema { is_newer: newest > known });
        }
        Self::over(write, options, Metrics::default(), Arc::new(|_| {})).await
    }

    async fn over(
        write: SqlitePool,
        options: SqliteConnectOptions,
        metrics: Metrics,
        observer: JobObserver,
    ) -> Result<Self, StoreError> {
        let options = options.read_only(true);
        let read = pool(PUBLIC_READERS).connect_with(options.clone()).await?;
        let control = pool(CONTROL_READERS).connect_with(options).await?;
        Ok(Self {
            write,
            read,
            control,
            feed: Arc::new(Feed::default()),
            observer,
            metrics,
            by: By::Gantry,
            intake: Arc::default(),
            transcripts: Arc::default(),
        })
    }

    /// A handle for the control plane: it reads by connections that no public request waits for or holds.
    #[must_use]
    pub fn control(&self) -> Self {
        Self { read: self.control.clone(), ..self.clone() }
    }

    /// Wakes whoever follows a job's events. Carries no data.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Answers when the database does.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.read).await?;
        Ok(())
    }

    /// This install's id: made once, kept for ever.
    pub async fn instance_id(&self) -> Result<InstanceId, StoreError> {
        let mut tx = self.begin().await?;
        let known: Option<uuid::Uuid> =
            sqlx::query_scalar("SELECT id FROM instance LIMIT 1").fetch_optional(&mut *tx).await?;
        if let Some(id) = known {
            return Ok(InstanceId::from_uuid(id));
        }
        let id = InstanceId::generate();
        sqlx::query("INSERT INTO instance (id) VALUES ($1)").bind(*id.as_uuid()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Closes all pools; pending writes are done.
    pub async fn close(&self) {
        self.intake.settled().await;
        self.read.close().await;
        self.control.close().await;
        self.write.close().await;
    }

    /// A transaction that writes: takes the write lock at once, so that what it reads stays true.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        Ok(self.write.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Ends a transition's transaction: whose deed it was is in it, and once it holds it is told.
    async fn settle(
        &self,
        mut tx: Transaction<'static, Sqlite>,
        was: &Was,
        changed: Changed,
    ) -> Result<Changed, StoreError> {
        if let Changed::Done(job) = &changed {
            self.note(&mut tx, job.id).await?;
        }
        tx.commit().await?;
        if let Changed::Done(job) = &changed {
            (self.observer)(JobChange::Transitioned(job));
        }
        self.feed.ring(was.job);
        moves::told(&self.metrics, was, &changed);
        Ok(changed)
    }
}

fn options(url: &str) -> Result<SqliteConnectOptions, StoreError> {
    let options = SqliteConnectOptions::from_str(url).map_err(StoreError::Url)?;
    Ok(options
        .journal_mode(SqliteJournalMode::Wal)
        // WAL with NORMAL loses nothing when the process dies; a power cut may lose the last commits, never the file.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .optimize_on_close(true, None))
}

/// A connection to a file in this process cannot have gone away meanwhile, so it is not asked before each use whether it has.
///
/// When the disk is full SQLite ends a transaction by itself, and what was to roll it back finds none: such a connection
/// would refuse every further transaction, so another one takes its place.
fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(QUEUE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}

/// The database and the two files beside it are their owner's, whatever folder they are in. SQLite gives its files the
/// mode that the database has.
fn for_its_owner_alone(url: &str, file: &Path) {
    if [":memory:", "mode=memory", "mode=ro"].iter().any(|word| url.contains(word)) {
        return;
    }
    // What is wrong with the path is told when it is opened.
    let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
    for end in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(end);
        let Ok(there) = fs::metadata(&path) else { continue };
        let (path, for_others) = (Path::new(&path), there.permissions().mode() & 0o077);
        if for_others > 0
            && let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        {
            tracing::warn!(path = %path.display(), %error, "others may read the database; give it mode 0600");
        }
    }
}

/// What both kinds of caller hold: a pool's connection or a transaction's.
type Connection = SqliteConnection;

#[cfg(test)]
mod tests;
