//! The store: the only SQL. Contents, the connections, errors.
//!
//! Statements use SQLite's dialect. SQLite has one writer, so one task owns the connection that writes
//! (`sqlite/writer`). All others read (`sqlite/readers`), in three sets: one for the public API, one for its searches,
//! so that they delay no other request, and one for the control plane (workers' calls and the dispatcher), so that no
//! public request delays it. A handle reads from the set it was made for ([`Store::control`]).

/// The work of [`Store::write`] and the like: an async closure cannot promise yet that its future is `Send`.
macro_rules! transaction {
    (|$tx:ident| $work:expr) => {
        move |$tx| Box::pin(async move { $work })
    };
}

mod accepted;
mod access;
mod calls;
mod chat;
mod error;
mod events;
mod jobs;
mod memory;
mod notifications;
mod retention;
mod routines;
mod sqlite;
mod users;

use std::{str::FromStr, sync::Arc, time::Duration};

use agent::BoxFuture;
use protocol::InstanceId;
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    migrate::Migrator,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

pub use accepted::{IdempotencyKey, Lookup};
pub use access::{
    audit::{AuditEntry, AuditFilter},
    mcp::{DefinitionApproval, DefinitionStatus, SeenDefinition, StoredDefinition},
    secrets::{ResealCounts, Resealed, SealedSecret, SealedValue, SecretStored},
    sessions, tokens,
    tool_policy::StoredPolicy,
};
pub use calls::{
    budget::Reserved,
    call_key::{CallKey, CallPosition},
    model_calls::{CallFailure, CallRow, CallWithEvents, CallsMade, KnownCall, NewCall, OpenedCall, RunUsage},
    tool_calls::{ClosedToolCall, NewToolCall, OpenedToolCall, ToolCallOutcome},
    usage::{DayPage, UsagePosition, UsageQuery},
};
pub use chat::{
    ChatJob, Delivery, MAX_QUEUED_PER_USER, MAX_THREADS_PER_USER, MessagePage, MessagePosition, OwnedThread,
    ParkedTurn, Sent, SentMessage, ThreadCaller, ThreadChange, ThreadFilter, Turn, TurnEnd, TurnError, TurnKey,
    TurnRequest, WaitingTurn,
    gates::{GateAnswer, GateFilter, GateOutcome, GateTarget},
    heartbeats::{DeferredHeartbeat, DueHeartbeat, HeartbeatEnd, HeartbeatReply, StartedHeartbeat},
    system_lines::{LineOrigin, NewSystemLine, SystemLine},
};
pub use error::StoreError;
pub use events::{
    EventFilter, EventPage, EventQuery,
    batch::{Appended, BatchEvent},
    egress::MAX_EGRESS_COUNTERS,
    instance_events::{InstanceEventFilter, InstanceEventPage, StoredInstanceEvent},
    notifier::{EventNotifier, EventSubscription, Topic},
};
pub use jobs::{
    CreateOutcome, MAX_HELD_PER_USER, MAX_PENDING, MAX_PENDING_PER_USER, QueueFull, RunningJob,
    deletion::JobDeletion,
    json::{JobJson, JobPage, TokenChecked, events::JobAtWork},
    lifecycle::{Reported, Transition},
    list::JobFilter,
    open_jobs::{JobChange, OpenJobs, RevisionSum},
    prompts::Prompted,
    tree::{JobScope, ListedJob},
};
pub use memory::{MemoryDeleteOutcome, MemoryDeletion, MemoryText, MemoryWrite, MemoryWriteOutcome};
pub use notifications::{
    MarkedRead, NewNotification, NotificationFilter,
    deliveries::{ClaimedDelivery, DeliveryOutcome, DueDelivery},
};
pub use routines::{
    AbandonedRun, Automation, CancelledRun, CronJobFilter, Delivered, DeliveryDigests, DueRoutine, DueRoutines,
    EventAnswer, EventName, EventRoutine, EventRoutines, FireOutcome, Firing, NewDelivery, NewRoutine, NewRoutineEvent,
    PendingEvent, PlannedFiring, RefusedDelivery, RoutineDefinition, RoutineFilter, RoutineStored, RoutineUpdate,
    RunAttempt, RunFilter, ScheduledRoutine, ScheduledRoutines, Triggered, WebhookTarget,
};
pub use sqlite::{
    backup::{BackupError, backup},
    hour_counts::{HourFilter, StatesOfHours},
    rows::StoredEvent,
    search::SEARCH_READERS,
};
pub use users::{settings::SettingsWriteOutcome, user_storage::UserStorageLimit};

use self::sqlite::{
    file_mode::restrict_to_owner,
    inconsistent_rows::InconsistentRows,
    readers::Readers,
    write_tx::{Committed, WriteTx},
    writer::{Statements, Writer},
};
use base::per_user_semaphore::PerUserSemaphore;
pub use retention::{RetentionLimits, Trimmed};
use telemetry::metrics::Metrics;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Connections that read for the public API: a page takes milliseconds, and more connections would only share two or
/// four cores.
pub const PUBLIC_READERS: u32 = 4;
/// Connections that read for workers' calls and for the dispatcher.
const CONTROL_READERS: u32 = 4;
/// How long a transaction waits for another process's lock (the token commands of the command line) before it fails.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepared statements that each connection keeps. Batches of events differ in their number of rows.
const STATEMENT_CACHE: usize = 400;

/// The size in bytes of a database that [`Store::open`] will migrate; `None` if it is up to date or does not exist yet.
pub async fn pending_migration(url: &str) -> Result<Option<u64>, StoreError> {
    let options = options(url)?;
    if !options.get_filename().exists() {
        return Ok(None);
    }
    let mut connection = options.connect().await?;
    if newest_migration(&mut connection).await? == known_migration()
        && !sqlite::data_migrations::are_pending(&mut connection).await?
    {
        return Ok(None);
    }
    let bytes: i64 = sqlx::query_scalar("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        .fetch_one(&mut connection)
        .await?;
    Ok(u64::try_from(bytes).ok())
}

/// The newest migration of the schema that a database has; `None` if it has no schema.
async fn newest_migration(db: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
    let has_schema: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations')")
            .fetch_one(&mut *db)
            .await?;
    if !has_schema {
        return Ok(None);
    }
    Ok(sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations WHERE success").fetch_one(db).await?)
}

/// Brings the schema to the newest version, one migration after the other: a large table takes a while to index.
async fn migrate_schema(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    if let Some(newest) = newest_migration(connection).await? {
        for migration in MIGRATIONS.iter().filter(|migration| migration.version > newest) {
            tracing::info!(version = migration.version, description = %migration.description, "migrating the schema");
            MIGRATIONS.run_to(migration.version, &mut *connection).await?;
        }
    }
    // Checks those that were applied before, too.
    Ok(MIGRATIONS.run(connection).await?)
}

fn known_migration() -> Option<i64> {
    MIGRATIONS.iter().map(|migration| migration.version).max()
}

/// Called in the order of commits, after each commit and before the change's caller is answered. Must not block.
pub type JobObserver = Arc<dyn Fn(JobChange<'_>) + Send + Sync>;

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    writer: Arc<Writer>,
    options: Arc<SqliteConnectOptions>,
    /// The connections that this handle reads from: the public API's or the control plane's.
    read: Readers,
    control: Readers,
    /// The connections of searches.
    search: Readers,
    notifier: Arc<EventNotifier>,
    inconsistent: Arc<InconsistentRows>,
    /// Held while a transcript is rebuilt.
    transcripts: Arc<tokio::sync::Mutex<()>>,
    /// Held while a document is written to memory.
    memory_writes: Arc<PerUserSemaphore>,
    user_storage_limit: UserStorageLimit,
}

impl Store {
    /// Opens or creates the database (`sqlite:…`) and migrates its schema. Its metrics are not exported.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_observed(url, UserStorageLimit::default(), Metrics::default(), Arc::new(|_| {})).await
    }

    /// Like [`Self::open`], with a limit on what each user stores, the metrics to record in and an observer of what is
    /// committed.
    pub async fn open_observed(
        url: &str,
        user_storage_limit: UserStorageLimit,
        metrics: Metrics,
        observer: JobObserver,
    ) -> Result<Self, StoreError> {
        let options = options(url)?;
        restrict_to_owner(url, options.get_filename());
        let mut connection = options.clone().create_if_missing(true).connect().await?;
        migrate_schema(&mut connection).await?;
        // A connection keeps the statistics that it began with, also once a migration has deleted them.
        connection.close().await?;
        let mut connection = for_writer(&options).connect().await?;
        sqlite::data_migrations::run(&mut connection).await?;
        // From here on they are made beside the writer.
        sqlx::query("PRAGMA wal_autocheckpoint = 0").execute(&mut connection).await?;
        Ok(Self::with_writer(
            connection,
            options,
            user_storage_limit,
            Committed { metrics, observer, notifier: Arc::default() },
        ))
    }

    /// Opens an existing database without migrating it: a server may be using it.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        let options = options(url)?;
        let mut connection = options.connect().await?;
        let (newest, known) = (newest_migration(&mut connection).await?, known_migration());
        if newest != known || sqlite::data_migrations::are_pending(&mut connection).await? {
            return Err(StoreError::Schema { is_newer: newest > known });
        }
        // The writer itself asks for the lock, more often than SQLite would.
        sqlx::query("PRAGMA busy_timeout = 0").execute(&mut connection).await?;
        let (metrics, observer): (_, JobObserver) = (Metrics::default(), Arc::new(|_| {}));
        Ok(Self::with_writer(
            connection,
            options,
            UserStorageLimit::default(),
            Committed { metrics, observer, notifier: Arc::default() },
        ))
    }

    fn with_writer(
        connection: SqliteConnection,
        options: SqliteConnectOptions,
        user_storage_limit: UserStorageLimit,
        committed: Committed,
    ) -> Self {
        let read_only = options.clone().read_only(true);
        let read = Readers::new(read_only.clone(), PUBLIC_READERS);
        let control = Readers::new(read_only.clone(), CONTROL_READERS);
        let search = Readers::new(read_only, SEARCH_READERS);
        let notifier = Arc::clone(&committed.notifier);
        let inconsistent = Arc::new(InconsistentRows::new(committed.metrics.clone()));
        let writer = Writer::start(
            connection,
            for_writer(&options).pragma("wal_autocheckpoint", "0"),
            user_storage_limit,
            committed,
        );
        Self {
            writer: Arc::new(writer),
            options: Arc::new(options),
            read,
            control,
            search,
            notifier,
            inconsistent,
            transcripts: Arc::default(),
            memory_writes: Arc::new(PerUserSemaphore::new(memory::MAX_WRITES, 1)),
            user_storage_limit,
        }
    }

    /// A handle for the control plane: it reads from connections that no public request can occupy.
    #[must_use]
    pub fn control(&self) -> Self {
        Self { read: self.control.clone(), ..self.clone() }
    }

    /// Notifications of new events, by job and by user.
    pub fn event_notifier(&self) -> &Arc<EventNotifier> {
        &self.notifier
    }

    /// Checks that the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.read).await?;
        Ok(())
    }

    /// This install's id: created once, never changed.
    pub async fn instance_id(&self) -> Result<InstanceId, StoreError> {
        self.write(transaction!(|tx| {
            let known: Option<uuid::Uuid> =
                sqlx::query_scalar("SELECT id FROM instance LIMIT 1").fetch_optional(&mut tx.db).await?;
            if let Some(id) = known {
                return Ok(InstanceId::from_uuid(id));
            }
            let id = InstanceId::generate();
            sqlx::query("INSERT INTO instance (id) VALUES ($1)").bind(id).execute(&mut tx.db).await?;
            Ok(id)
        }))
        .await
    }

    /// Refuses further reads and writes, waits (bounded) for the writes that are queued, and closes all connections.
    /// The writer is last: SQLite moves the write-ahead log into the database when the last connection closes, and only
    /// if that one may write.
    pub async fn close(&self) {
        for readers in [&self.read, &self.control, &self.search] {
            if let Err(error) = readers.close().await {
                tracing::warn!(%error, "a reading connection was not closed cleanly");
            }
        }
        self.writer.close().await;
    }

    /// Moves the write-ahead log into the database and returns when all that was committed is on the disk, which a
    /// commit by itself does not wait for. Fails while another connection reads an older state.
    pub async fn sync_to_disk(&self) -> Result<(), StoreError> {
        let mut connection = self.options.connect().await?;
        let busy: bool = sqlx::query_scalar("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await?;
        connection.close().await?;
        if busy { Err(StoreError::Busy) } else { Ok(()) }
    }

    /// Returns when the writer task has ended.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// Runs several statements in the writer's transaction and returns once that is committed. An error rolls back only
    /// this write. A caller that goes away before the write has begun withdraws it; one that goes away later changes
    /// nothing.
    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        self.writer.write(Statements::Several, work).await
    }

    /// Like [`Self::write`], for a write whose first statements are run by [`WriteTx::run`].
    async fn write_batched<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        self.writer.write(Statements::Batched, work).await
    }

    /// Like [`Self::write`], for a single statement.
    async fn write_one<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        self.writer.write(Statements::One, work).await
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Store {
    /// Runs a statement that no method has, to bring the database into a state that a test needs.
    pub async fn execute(&self, statement: &'static str) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| {
            // The comment tells the tests' check of query plans that no code of the program has this statement.
            sqlx::query(sqlx::AssertSqlSafe(format!("-- test\n{statement}"))).execute(&mut tx.db).await?;
            Ok(())
        }))
        .await
    }
}

/// The writer keeps 16 MiB of pages, in place of 2, so that it need not write and read again those of a large transaction.
fn for_writer(options: &SqliteConnectOptions) -> SqliteConnectOptions {
    options.clone().pragma("cache_size", "-16384")
}

fn options(url: &str) -> Result<SqliteConnectOptions, StoreError> {
    let options = SqliteConnectOptions::from_str(url).map_err(StoreError::Url)?;
    Ok(options
        .journal_mode(SqliteJournalMode::Wal)
        // WAL with NORMAL loses nothing when the process dies; a power cut may lose the last commits, never the file.
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .statement_cache_capacity(STATEMENT_CACHE))
}

/// A connection of a pool, or the writer's.
type Connection = SqliteConnection;

#[cfg(test)]
mod tests;
