//! `routines`: 100 000 stored routines. What they cost while none is due, how late 1 000 a second fire, and how the API answers
//! while 10 000 fire at once; compared with tokio-cron-scheduler.
//!
//! The routines are copies of two that are created over the API. Those that fire in turns put a line into the main session of one of 90 users;
//! their time is over when the run has ended. Those that fire at once ask a model, ten at a time. Times are set in the rows, as if
//! the schedules had come to them.

use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use protocol::{RunId, RunStatus};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use sqlx::{Row, SqliteConnection};
use tokio::{task::JoinSet, time::sleep};

mod baseline;

use super::Bench;
use crate::{
    Failure, clock, database,
    report::{Series, Unit, resident_mb},
};

/// Routines that put a line into a main session, and those that ask a model.
const LINES: i64 = 90_000;
const BURST: i64 = 10_000;
const USERS: i64 = 90;
/// Routines that are due in a second, and for how many seconds.
const PER_SECOND: i64 = 1_000;
const SECONDS: i64 = 30;
/// Time over which the idle process is watched.
const IDLE: Duration = Duration::from_secs(20);
/// Time over which the API is asked while the burst is worked on.
const ASKING: Duration = Duration::from_secs(15);
/// Routines that are disabled, and runs that are cancelled, in that time.
const CHANGES: usize = 100;
/// Longest wait for the last of the runs.
const LAST: Duration = Duration::from_mins(2);

const LATENESS: &str = "1 000 a second: due until the run has ended";
const LATEST: &str = "1 000 a second: the latest";
const UNRECORDED: &str = "1 000 a second: times without a run";
const AT_ONCE: &str = "5 000 at once: due until the run has ended";
const NO_CPU: &str = "idle CPU, none stored, ms each second";
const IDLE_CPU: &str = "idle CPU, 100 000 stored, ms each second";
const MEMORY: &str = "memory of 100 000 stored, none due";
const LIST: &str = "10 000 at once: GET /api/routines";
const DISABLE: &str = "10 000 at once: POST …/disable";
const CANCEL: &str = "10 000 at once: POST /api/runs/{id}/cancel";
const MAX_LATENESS_MS: f64 = 100.0;
const MAX_ANSWER_MS: f64 = 250.0;
const MAX_MEMORY_MB: f64 = 100.0;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let client = Client::new();
    let line = json!({"type": "system_event_text", "text": "A line."});
    let ask = json!({"type": "lightweight", "prompt": "bench: end"});
    create(bench, &client, "line", line).await?;
    create(bench, &client, "ask", ask).await?;
    let mut store = database::open(&bench.stack.database()).await?;
    let process = bench.stack.process_id()?;
    sleep(IDLE / 2).await;
    let (none, empty) = (idle_cpu(process).await?, resident_mb(process)?);
    fill(&mut store).await?;
    sleep(IDLE / 2).await;
    let (idle, stored) = (idle_cpu(process).await?, resident_mb(process)?);
    one(bench, NO_CPU, Unit::Ms, none);
    one(bench, IDLE_CPU, Unit::Ms, idle);
    one(bench, MEMORY, Unit::Mb, stored - empty);
    bench.report.limit(MEMORY, MAX_MEMORY_MB);
    in_turns(bench, &mut store).await?;
    at_once(bench, &mut store).await?;
    burst(bench, &client, &mut store).await?;
    baseline::run(bench).await
}

fn one(bench: &mut Bench, name: &'static str, unit: Unit, value: f64) {
    let mut series = Series::new(name, unit);
    series.add(Ok(value));
    bench.report.side(series);
}

/// Creates a routine that is not due while the benchmark runs.
async fn create(bench: &Bench, client: &Client, name: &str, action: Value) -> Result<(), Failure> {
    let body = json!({
        "name": name, "action": action, "trigger": {"type": "every", "every_seconds": 31_536_000},
        "guardrails": {"max_concurrent": 1},
    });
    ask(bench, client, Method::POST, "/api/routines", Some(body)).await.map(drop)
}

async fn ask(
    bench: &Bench,
    client: &Client,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, Failure> {
    let request = client.request(method, bench.stack.url(path)).bearer_auth(bench.stack.token());
    let response = request.json(&body.unwrap_or_else(|| json!({}))).send().await?;
    let status = response.status();
    let text = response.text().await?;
    if status.is_success() { Ok(serde_json::from_str(&text)?) } else { Err(format!("{path}: {status}: {text}").into()) }
}

/// Milliseconds of CPU time that a process takes in a second.
async fn idle_cpu(process: u32) -> Result<f64, Failure> {
    let before = cpu_ms(process)?;
    sleep(IDLE).await;
    Ok((cpu_ms(process)? - before) / IDLE.as_secs_f64())
}

fn cpu_ms(process: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("the kernel tells no CPU time")?;
    let ticks: Result<Vec<u32>, _> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect();
    // Linux counts in hundredths of a second towards programs.
    Ok(f64::from(ticks?.iter().sum::<u32>()) * 10.0)
}

/// Inserts copies of the two routines: `line 000001`… of many users, and `ask 000001`… of the benchmark's user.
async fn fill(store: &mut SqliteConnection) -> Result<(), Failure> {
    let columns =
        sqlx::query("SELECT name FROM pragma_table_info('routines') WHERE name NOT IN ('id', 'user_id', 'name')");
    let columns = columns.fetch_all(&mut *store).await?;
    let columns = columns.iter().map(|row| row.try_get("name")).collect::<Result<Vec<String>, _>>()?.join(", ");
    for (name, number, user) in [("line", LINES, "'user ' || (n % $3)"), ("ask", BURST, "iif($3 > 0, user_id, '')")] {
        let copy = format!(
            "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < $1) \
             INSERT INTO routines (id, user_id, name, {columns}) \
             SELECT randomblob(16), {user}, name || printf(' %06d', n), {columns} FROM copies, routines WHERE name = $2"
        );
        let copy = sqlx::query(sqlx::AssertSqlSafe(copy)).bind(number).bind(name).bind(USERS);
        copy.execute(&mut *store).await?;
    }
    Ok(())
}

/// Makes some routines due.
async fn make_due(
    store: &mut SqliteConnection,
    name: &str,
    (first, last): (i64, i64),
    due: DateTime<Utc>,
) -> Result<(), Failure> {
    let update = "UPDATE routines SET next_fire_at = $1 WHERE name BETWEEN $2 || printf(' %06d', $3) AND $2 || printf(' %06d', $4)";
    sqlx::query(update).bind(due).bind(name).bind(first).bind(last).execute(store).await?;
    Ok(())
}

/// A time of the wall clock, in whole seconds, that leaves time to make routines due.
fn soon() -> DateTime<Utc> {
    (clock::wall() + TimeDelta::seconds(6)).trunc_subsecs(0)
}

/// Fires 1 000 routines a second.
async fn in_turns(bench: &mut Bench, store: &mut SqliteConnection) -> Result<(), Failure> {
    let start = soon();
    for second in 0..SECONDS {
        let numbers = (second * PER_SECOND + 1, (second + 1) * PER_SECOND);
        make_due(store, "line", numbers, start + TimeDelta::seconds(second)).await?;
    }
    let (times, unrecorded) = lateness(store, (start, SECONDS), usize::try_from(SECONDS * PER_SECOND)?).await?;
    let latest = times.iter().copied().fold(0.0, f64::max);
    let mut series = Series::new(LATENESS, Unit::Ms);
    series.extend(times.into_iter().map(Ok));
    bench.report.side(series);
    one(bench, LATEST, Unit::Ms, latest);
    one(bench, UNRECORDED, Unit::Count, f64::from(u32::try_from(unrecorded)?));
    bench.report.limit_at(LATENESS, 99, MAX_LATENESS_MS);
    Ok(())
}

/// Fires as many routines in one second as the baseline does.
async fn at_once(bench: &mut Bench, store: &mut SqliteConnection) -> Result<(), Failure> {
    let (start, number) = (soon(), i64::from(baseline::AT_ONCE));
    let first = SECONDS * PER_SECOND + 1;
    make_due(store, "line", (first, first + number - 1), start).await?;
    let (times, _) = lateness(store, (start, 1), usize::try_from(number)?).await?;
    let mut series = Series::new(AT_ONCE, Unit::Ms);
    series.extend(times.into_iter().map(Ok));
    bench.report.side(series);
    Ok(())
}

/// Waits until `expected` runs that were due within some seconds have ended. Returns their lateness in milliseconds, and the number of
/// runs that are missing.
async fn lateness(
    store: &mut SqliteConnection,
    (start, seconds): (DateTime<Utc>, i64),
    expected: usize,
) -> Result<(Vec<f64>, usize), Failure> {
    let end = start + TimeDelta::seconds(seconds);
    let ended = "SELECT due_at, completed_at FROM routine_runs WHERE due_at >= $1 AND due_at < $2 AND status = 'ok'";
    let given_up = Instant::now() + LAST;
    loop {
        // Not asked while the load is there.
        let wait = (end - clock::wall()).to_std().unwrap_or_default().max(Duration::from_secs(2));
        sleep(wait).await;
        let rows = sqlx::query(ended).bind(start).bind(end).fetch_all(&mut *store).await?;
        if rows.len() < expected && Instant::now() < given_up {
            continue;
        }
        let mut times = Vec::with_capacity(rows.len());
        for row in &rows {
            let (due, completed): (DateTime<Utc>, DateTime<Utc>) =
                (row.try_get("due_at")?, row.try_get("completed_at")?);
            times.push(clock::milliseconds_between(due, completed));
        }
        return Ok((times, expected - rows.len().min(expected)));
    }
}

/// Fires 10 000 routines of one user at once, and uses the API meanwhile.
async fn burst(bench: &mut Bench, client: &Client, store: &mut SqliteConnection) -> Result<(), Failure> {
    let due = soon();
    make_due(store, "ask", (1, BURST), due).await?;
    sleep((due - clock::wall()).to_std().unwrap_or_default()).await;
    let routines = ids(bench, client, "/api/routines?limit=200").await?;
    let asked = Asked { base: bench.stack.base().to_owned(), token: bench.stack.token().to_owned() };
    let mut sides = JoinSet::new();
    for name in [LIST, DISABLE, CANCEL] {
        let (asked, routines) = (asked.clone(), routines.clone());
        sides.spawn(async move { asked.series(name, &routines).await });
    }
    while let Some(series) = sides.join_next().await {
        bench.report.side(series??);
    }
    for name in [LIST, DISABLE, CANCEL] {
        bench.report.limit_at(name, 99, MAX_ANSWER_MS);
    }
    Ok(())
}

async fn ids(bench: &Bench, client: &Client, path: &str) -> Result<Vec<String>, Failure> {
    let response = client.get(bench.stack.url(path)).bearer_auth(bench.stack.token()).send().await?;
    Ok(ids_of(&response.error_for_status()?.json().await?))
}

fn ids_of(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)).collect()
}

/// Where requests go.
#[derive(Clone)]
struct Asked {
    base: String,
    token: String,
}

impl Asked {
    /// The times of requests of one kind, on one connection, while the burst is worked on.
    async fn series(&self, name: &'static str, routines: &[String]) -> Result<Series, Failure> {
        let (client, mut series) = (Client::builder().pool_max_idle_per_host(1).build()?, Series::new(name, Unit::Ms));
        let pause = ASKING / u32::try_from(CHANGES)?;
        let mut waiting: Vec<String> = Vec::new();
        for number in 0..CHANGES {
            if name == CANCEL && waiting.is_empty() {
                let page =
                    client.get(format!("{}/api/runs?status={}&limit=200", self.base, RunStatus::Queued.as_str()));
                waiting = ids_of(&page.bearer_auth(&self.token).send().await?.error_for_status()?.json().await?);
            }
            let path = match name {
                LIST => "/api/routines?limit=50".to_owned(),
                DISABLE => format!("/api/routines/{}/disable", routines.get(number).map_or("", String::as_str)),
                _ => format!("/api/runs/{}/cancel", waiting.pop().unwrap_or_else(|| RunId::generate().to_string())),
            };
            let method = if name == LIST { Method::GET } else { Method::POST };
            let request = client.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
            let started = Instant::now();
            let answered = async { request.send().await?.error_for_status()?.bytes().await };
            let elapsed = match answered.await {
                Ok(_) => Ok(started.elapsed().as_secs_f64() * 1_000.0),
                Err(error) => Err(error.into()),
            };
            series.add(elapsed);
            sleep(pause).await;
        }
        Ok(series)
    }
}
