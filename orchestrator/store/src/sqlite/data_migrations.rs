//! Data migrations: rows that an earlier version stored are moved or changed after the schema has been migrated.
//!
//! Runs each as bounded transactions in the order of the table's row ids, and keeps its position in the database, so that
//! a process that is killed goes on where it was. Never changes the schema, except what `finish` removes at its end.

mod accepted;

use std::time::{Duration, Instant};

use sqlx::{Connection as _, SqliteConnection};

use crate::{
    StoreError,
    calls::{model_calls, tool_calls, usage},
    retention,
    users::user_storage,
};

/// Rows of one transaction: some 20 ms for rows of a kilobyte.
const STEP_ROWS: i64 = 5_000;
/// How often the log says how far a migration is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The migrations, in their order. One that has finished on every installation may be removed.
const MIGRATIONS: &[DataMigration] = &[
    RESTART_NOTES,
    accepted::KEYS,
    accepted::DELIVERIES,
    accepted::RUNS,
    user_storage::COUNT_JOBS,
    user_storage::COUNT_PROMPTS,
    user_storage::COUNT_ROUTINES,
    user_storage::COUNT_RUNS,
    user_storage::COUNT_CALLS_OF_RUNS,
    usage::COUNT_MODEL_CALLS,
    usage::COUNT_TOOL_CALLS,
    model_calls::OF_THREADS,
    tool_calls::OF_THREADS,
    retention::CUT_TEXTS,
];

/// Earlier versions stored the note about the job that a job continues at the end of its prompt.
const RESTART_NOTES: DataMigration = DataMigration {
    name: "restart_notes",
    table: "jobs",
    step: &[
        "UPDATE job_texts SET note = substr(prompt, instr(prompt, char(10, 10) || '[Note: an earlier attempt at this task ended as ')), \
         prompt = substr(prompt, 1, instr(prompt, char(10, 10) || '[Note: an earlier attempt at this task ended as ') - 1) \
         WHERE job_id IN (SELECT id FROM jobs WHERE rowid > ?1 AND rowid <= ?2 AND restarted_from IS NOT NULL) \
         AND instr(prompt, char(10, 10) || '[Note: an earlier attempt at this task ended as ') > 0",
    ],
    finish: &[],
};

/// Moves or changes the rows of one table.
pub(crate) struct DataMigration {
    /// Names it in the database and in the log. Never changed.
    pub(crate) name: &'static str,
    /// The table whose rows it reads. It has row ids.
    pub(crate) table: &'static str,
    /// Statements of one step, for the rows with `rowid > ?1 AND rowid <= ?2`.
    pub(crate) step: &'static [&'static str],
    /// Statements that run once, after the last step: what nothing needs any longer is dropped.
    pub(crate) finish: &'static [&'static str],
}

/// Whether a migration of the data has not finished.
pub(crate) async fn are_pending(db: &mut SqliteConnection) -> Result<bool, StoreError> {
    for migration in MIGRATIONS {
        if !is_finished(db, migration.name).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs the migrations that have not finished.
pub(crate) async fn run(db: &mut SqliteConnection) -> Result<(), StoreError> {
    run_all(db, MIGRATIONS).await
}

async fn run_all(db: &mut SqliteConnection, migrations: &[DataMigration]) -> Result<(), StoreError> {
    for migration in migrations {
        if !is_finished(db, migration.name).await? {
            migration.run(db).await?;
        }
    }
    Ok(())
}

async fn is_finished(db: &mut SqliteConnection, name: &str) -> Result<bool, StoreError> {
    let finished: Option<bool> = sqlx::query_scalar("SELECT is_finished FROM data_migrations WHERE name = $1")
        .bind(name)
        .fetch_optional(db)
        .await?;
    Ok(finished.unwrap_or(false))
}

impl DataMigration {
    async fn run(&self, db: &mut SqliteConnection) -> Result<(), StoreError> {
        let last: i64 = scalar(db, format!("SELECT COALESCE(MAX(rowid), 0) FROM {}", self.table)).await?;
        let (started, mut shown) = (Instant::now(), Instant::now());
        while let Some(position) = self.step(db).await? {
            if shown.elapsed() >= PROGRESS_INTERVAL {
                shown = Instant::now();
                tracing::info!(migration = self.name, position, last, "migrating");
            }
        }
        let mut tx = db.begin().await?;
        for statement in self.finish {
            sqlx::query(*statement).execute(&mut *tx).await?;
        }
        sqlx::query(
            "INSERT INTO data_migrations (name, position, is_finished) VALUES ($1, $2, TRUE) \
             ON CONFLICT (name) DO UPDATE SET is_finished = TRUE",
        )
        .bind(self.name)
        .bind(last)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        if last > 0 {
            tracing::info!(migration = self.name, seconds = started.elapsed().as_secs(), "migrated");
        }
        Ok(())
    }

    /// Runs the next step; the row id that it reached, or `None` once there are no more rows.
    async fn step(&self, db: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
        let mut tx = db.begin().await?;
        let position: Option<i64> = sqlx::query_scalar("SELECT position FROM data_migrations WHERE name = $1")
            .bind(self.name)
            .fetch_optional(&mut *tx)
            .await?;
        let after = position.unwrap_or(0);
        let upto = format!(
            "SELECT MAX(rowid) FROM (SELECT rowid FROM {} WHERE rowid > {after} ORDER BY rowid LIMIT {STEP_ROWS})",
            self.table
        );
        let Some(upto) = scalar::<Option<i64>>(&mut tx, upto).await? else { return Ok(None) };
        for statement in self.step {
            sqlx::query(*statement).bind(after).bind(upto).execute(&mut *tx).await?;
        }
        sqlx::query(
            "INSERT INTO data_migrations (name, position, is_finished) VALUES ($1, $2, FALSE) \
             ON CONFLICT (name) DO UPDATE SET position = excluded.position",
        )
        .bind(self.name)
        .bind(upto)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Some(upto))
    }
}

/// The result of a statement that is made of the names and numbers of a migration.
async fn scalar<T>(db: &mut SqliteConnection, statement: String) -> Result<T, StoreError>
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(db).await?)
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions as _;

    use super::*;

    const MOVE: DataMigration = DataMigration {
        name: "old_to_new",
        table: "old",
        step: &[
            "INSERT INTO new (id, text) SELECT id, text FROM old WHERE rowid > ?1 AND rowid <= ?2",
            "DELETE FROM old WHERE rowid > ?1 AND rowid <= ?2",
        ],
        finish: &["DROP TABLE old"],
    };

    async fn database() -> SqliteConnection {
        let mut db = sqlx::sqlite::SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        for statement in [
            "CREATE TABLE data_migrations (name TEXT NOT NULL PRIMARY KEY, position INTEGER NOT NULL, is_finished INTEGER NOT NULL)",
            "CREATE TABLE old (id INTEGER PRIMARY KEY, text TEXT)",
            "CREATE TABLE new (id INTEGER PRIMARY KEY, text TEXT)",
            // With gaps between the row ids.
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) INSERT INTO old SELECT i * 7, 'text ' || i FROM n",
        ] {
            sqlx::query(statement).execute(&mut db).await.unwrap();
        }
        db
    }

    #[tokio::test]
    async fn a_migration_that_was_interrupted_goes_on_and_moves_each_row_once() {
        let mut db = database().await;
        assert_eq!(MOVE.step(&mut db).await.unwrap(), Some(35_000));
        assert_eq!(scalar::<i64>(&mut db, "SELECT COUNT(*) FROM old".to_owned()).await.unwrap(), 7_000);
        assert!(!is_finished(&mut db, MOVE.name).await.unwrap());

        // A new process begins at the stored position.
        run_all(&mut db, &[MOVE]).await.unwrap();
        assert_eq!(scalar::<i64>(&mut db, "SELECT COUNT(*) FROM new".to_owned()).await.unwrap(), 12_000);
        assert!(is_finished(&mut db, MOVE.name).await.unwrap());
        let tables = "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'old'";
        assert_eq!(scalar::<i64>(&mut db, tables.to_owned()).await.unwrap(), 0);

        // The table is gone, and nothing looks for it again.
        run_all(&mut db, &[MOVE]).await.unwrap();
    }
}
