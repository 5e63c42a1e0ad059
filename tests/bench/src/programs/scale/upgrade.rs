//! The migration of the database: how long it takes, that it goes on after a kill in its middle, and that the API then
//! shows what was stored.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use protocol::ErrorCode;
use reqwest::{Client, Method, StatusCode, header::CONTENT_TYPE};
use sqlx::SqliteConnection;

use super::Caller;
use crate::{
    Failure, database,
    installation::{Installation, Server},
    report::{Report, Series, Unit},
};

const MIGRATION_TIMEOUT: Duration = Duration::from_hours(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How far into the migration of the data the process is killed, for each thousandth of the full size.
const KILLED_AFTER: Duration = Duration::from_millis(5);

/// A user with few rows of each kind.
const FEW: &str = "user009";

const BEFORE: &str = "database before the migration";
const AFTER: &str = "database after the migration";
const UNTIL_KILLED: &str = "migration until SIGKILL";
const REST: &str = "migration after SIGKILL";
const WHOLE: &str = "migration";
const SAID_SO: &str = "GET /healthz: migrating";
const COUNTS: &str = "counts that the API shows as they were stored";

/// Starts the server on the database of an earlier version, with a kill in the middle of the migration, unless that has
/// ended before.
pub(super) async fn run(installation: &Installation, report: &mut Report, thousandths: u32) -> Result<Server, Failure> {
    let path = installation.database();
    report.figure(BEFORE, Unit::Mb, megabytes(&path)?);
    let stored = Stored::read(&path).await?;
    let started = Instant::now();
    let mut server = installation.serve()?;
    let mut health = Series::new(SAID_SO, Unit::Ms);
    if listens_within(installation, &mut server, KILLED_AFTER * thousandths, &mut health).await? {
        report.figure(WHOLE, Unit::Ms, started.elapsed().as_secs_f64() * 1_000.0);
    } else {
        server.kill().await?;
        report.figure(UNTIL_KILLED, Unit::Ms, started.elapsed().as_secs_f64() * 1_000.0);
        let started = Instant::now();
        server = installation.serve()?;
        server.listening(MIGRATION_TIMEOUT).await?;
        report.figure(REST, Unit::Ms, started.elapsed().as_secs_f64() * 1_000.0);
        report.side(health);
    }
    report.figure(AFTER, Unit::Mb, megabytes(&path)?);
    report.side(stored.compare(installation).await?);
    Ok(server)
}

fn megabytes(path: &Path) -> Result<f64, Failure> {
    let kilobytes = u32::try_from(std::fs::metadata(path)?.len() / 1_000)?;
    Ok(f64::from(kilobytes) / 1_000.0)
}

/// Whether the server listens before its migration of the data has taken `limit`. Asks the health check meanwhile.
async fn listens_within(
    installation: &Installation,
    server: &mut Server,
    limit: Duration,
    health: &mut Series,
) -> Result<bool, Failure> {
    let mut database = database::open(&installation.database()).await?;
    let (client, mut begun) = (Client::new(), None);
    while !server.is_listening(POLL_INTERVAL).await? {
        // The table does not exist before the schema is migrated.
        let unfinished = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM data_migrations WHERE NOT is_finished)");
        if begun.is_none() && unfinished.fetch_one(&mut database).await.unwrap_or(false) {
            begun = Some(Instant::now());
        }
        let Some(begun) = begun else { continue };
        health.add(said_migrating(installation, &client).await);
        if begun.elapsed() > limit {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn said_migrating(installation: &Installation, client: &Client) -> Result<f64, Failure> {
    let started = Instant::now();
    let response = client.get(format!("http://{}/healthz", installation.address)).send().await?;
    let body = response.text().await?;
    if body.contains("migrating") { Ok(started.elapsed().as_secs_f64() * 1_000.0) } else { Err(body.into()) }
}

/// What the earlier version stored, as it is compared with the API.
struct Stored {
    /// A path of a list, whether it is the user's or an admin's, and how many items it has.
    lists: Vec<(String, bool, usize)>,
    /// Of the model calls of all users.
    input_tokens: i64,
    routines: i64,
    idempotency_key: String,
}

impl Stored {
    async fn read(path: &Path) -> Result<Self, Failure> {
        let mut database = database::open(path).await?;
        let db = &mut database;
        let job = id_of(db, "SELECT id FROM jobs WHERE last_seq > 2000 LIMIT 1").await?;
        // One of those with most runs.
        let routine = id_of(db, "SELECT id FROM routines WHERE rowid = 200").await?;
        let mut lists = Vec::new();
        for (table, path, of) in [
            ("events", format!("/api/jobs/{job}/events"), ("job_id", &job)),
            ("llm_calls", format!("/api/jobs/{job}/llm-calls"), ("job_id", &job)),
            ("job_actions", format!("/api/jobs/{job}/actions"), ("job_id", &job)),
            ("routine_runs", format!("/api/routines/{routine}/runs"), ("routine_id", &routine)),
        ] {
            let count = format!("SELECT COUNT(*) FROM {table} WHERE {} = unhex(replace('{}', '-', ''))", of.0, of.1);
            lists.push((path, false, usize::try_from(count_of(db, &count).await?)?));
        }
        for (table, path) in
            [("jobs", "/api/jobs"), ("routine_runs", "/api/runs"), ("notifications", "/api/notifications")]
        {
            let count = format!("SELECT COUNT(*) FROM {table} WHERE user_id = '{FEW}'");
            lists.push((path.to_owned(), true, usize::try_from(count_of(db, &count).await?)?));
        }
        let tokens = "SELECT (SELECT SUM(input_tokens) FROM llm_calls) + (SELECT SUM(input_tokens) FROM thread_calls) \
                      + (SELECT SUM(input_tokens) FROM deleted_usage)";
        Ok(Self {
            lists,
            input_tokens: count_of(db, tokens).await?,
            routines: count_of(db, "SELECT COUNT(*) FROM routines").await?,
            idempotency_key: sqlx::query_scalar("SELECT key FROM idempotency_keys WHERE user_id = 'user001' LIMIT 1")
                .fetch_one(db)
                .await?,
        })
    }

    /// A sample for each count that is as it was, and a failure for each other.
    async fn compare(&self, installation: &Installation) -> Result<Series, Failure> {
        let admin = Caller::new(installation, "root", "admin").await?;
        let user = Caller::new(installation, FEW, "user").await?;
        let mut series = Series::new(COUNTS, Unit::Count);
        for (path, of_user, expected) in &self.lists {
            let caller = if *of_user { &user } else { &admin };
            series.add(same(path, expected, caller.items(path).await.map(|items| items.len())));
        }
        series.add(same("routines", &self.routines, routines(&admin).await));
        series.add(same("input tokens", &self.input_tokens, input_tokens(&admin).await));
        series.add(self.key_is_known(installation).await);
        Ok(series)
    }

    /// A key that was used is refused for another request.
    async fn key_is_known(&self, installation: &Installation) -> Result<f64, Failure> {
        let token = installation.token("user001", "user").await?;
        let request = Client::new().request(Method::POST, format!("http://{}/api/jobs", installation.address));
        let request = request.bearer_auth(token).header("Idempotency-Key", &self.idempotency_key);
        let response =
            request.header(CONTENT_TYPE, "application/json").body(r#"{"prompt":"bench: end"}"#).send().await?;
        let (status, body) = (response.status(), response.text().await?);
        if status == StatusCode::UNPROCESSABLE_ENTITY && body.contains(ErrorCode::IdempotencyMismatch.as_str()) {
            return Ok(1.0);
        }
        Err(format!("an idempotency key is not known any more: {status}: {body}").into())
    }
}

async fn routines(admin: &Caller) -> Result<i64, Failure> {
    let summary = admin.json("/api/routines/summary").await?;
    summary["total"].as_i64().ok_or_else(|| "no total".into())
}

async fn input_tokens(admin: &Caller) -> Result<i64, Failure> {
    let lines = admin.items("/api/usage?by=model").await?;
    Ok(lines.iter().filter_map(|line| line["input_tokens"].as_i64()).sum())
}

fn same<T: PartialEq + std::fmt::Display>(what: &str, expected: &T, found: Result<T, Failure>) -> Result<f64, Failure> {
    let found = found?;
    if found == *expected { Ok(1.0) } else { Err(format!("{what}: {expected} were stored, {found} are shown").into()) }
}

async fn count_of(db: &mut SqliteConnection, query: &str) -> Result<i64, Failure> {
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_one(db).await?)
}

async fn id_of(db: &mut SqliteConnection, query: &'static str) -> Result<String, Failure> {
    let id: uuid::Uuid = sqlx::query_scalar(query).fetch_one(db).await?;
    Ok(id.to_string())
}
