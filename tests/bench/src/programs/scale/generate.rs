//! Generates a database as version 0350 of the schema has it, in some minutes, by SQL alone: `assets/scale`.
//!
//! Owns the numbers of rows. Rows are as the program of that version wrote them, over the last 60 days.

use std::{io::Write as _, path::Path, time::Instant};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, SqliteConnection,
    migrate::Migrator,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use crate::{Failure, clock};

static MIGRATIONS: Migrator = sqlx::migrate!("../../orchestrator/store/migrations/sqlite");
/// The newest migration of the version that a database is generated for.
const SCHEMA: i64 = 350;
const FILES: [(&str, &str); 5] = [
    ("numbers", include_str!("../../../assets/scale/1-numbers.sql")),
    ("jobs", include_str!("../../../assets/scale/2-jobs.sql")),
    ("events", include_str!("../../../assets/scale/3-events.sql")),
    ("routines", include_str!("../../../assets/scale/4-routines.sql")),
    ("chat", include_str!("../../../assets/scale/5-chat.sql")),
];
const DAYS: i64 = 60;
const DAY_MS: i64 = 86_400_000;

/// Numbers of rows. Each job has ten events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    jobs: u32,
    routines: u32,
    runs: u32,
    threads: u32,
    users: u32,
}

impl Size {
    /// A size in thousandths of the full one.
    pub(super) fn of(thousandths: u32) -> Self {
        Self {
            jobs: 1_000 * thousandths,
            routines: 100 * thousandths,
            runs: 2_000 * thousandths,
            threads: 50 * thousandths,
            users: (thousandths / 2).max(10),
        }
    }
}

/// Makes the database at `path`, which gets its name once it is complete.
pub(super) async fn database(path: &Path, size: Size) -> Result<(), Failure> {
    let partial = path.with_extension("partial");
    if partial.exists() {
        std::fs::remove_file(&partial)?;
    }
    let options = SqliteConnectOptions::new().filename(&partial).create_if_missing(true).foreign_keys(false);
    // A generation that is interrupted begins again, so nothing is kept for a rollback.
    let options = options.journal_mode(SqliteJournalMode::Off).synchronous(SqliteSynchronous::Off);
    let mut database = options.pragma("cache_size", "-1000000").pragma("temp_store", "memory").connect().await?;
    Migrator::with_migrations(MIGRATIONS.iter().filter(|migration| migration.version <= SCHEMA).cloned().collect())
        .run(&mut database)
        .await?;
    for (name, file) in FILES {
        let started = Instant::now();
        fill(&mut database, file, size).await.map_err(|failure| format!("{name}: {failure}"))?;
        let took = started.elapsed().as_secs_f64();
        if took > 5.0 {
            writeln!(std::io::stderr(), "scale: {name} generated in {took:.0} s")?;
        }
    }
    sqlx::Connection::close(database).await?;
    std::fs::rename(partial, path)?;
    Ok(())
}

async fn fill(database: &mut SqliteConnection, file: &str, size: Size) -> Result<(), Failure> {
    let Size { jobs, routines, runs, threads, users } = size;
    let now = clock::wall().timestamp_millis();
    let mut text = file.to_owned();
    for (name, value) in [
        ("{jobs}", jobs.to_string()),
        ("{routines}", routines.to_string()),
        ("{runs}", runs.to_string()),
        ("{threads}", threads.to_string()),
        ("{users}", users.to_string()),
        // Also the positions of 2,000 events.
        ("{numbers}", runs.max(2_000).to_string()),
        ("{now}", now.to_string()),
        ("{start}", (now - DAYS * DAY_MS).to_string()),
        ("{uuid_id}", uuid_text("id")),
        ("{uuid_routine_id}", uuid_text("routine_id")),
    ] {
        text = text.replace(name, &value);
    }
    sqlx::raw_sql(AssertSqlSafe(text)).execute(database).await?;
    Ok(())
}

/// An expression for the text of an id in a column.
fn uuid_text(column: &str) -> String {
    let part = |from: u32, digits: u32| format!("substr(hex({column}), {from}, {digits})");
    let parts = [part(1, 8), part(9, 4), part(13, 4), part(17, 4), part(21, 12)];
    format!("lower({})", parts.join(" || '-' || "))
}
