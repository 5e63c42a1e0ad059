//! `routines`: 100 000 stored routines. What they cost while none is due, how late 1 000 a second fire, and how the API
//! answers while 10 000 fire at once; compared with tokio-cron-scheduler.
//!
//! The routines are copies of two that are created over the API. Those that fire in turns put a line into the main
//! session of one of 90 users; their time is over when the run has ended. Those that fire at once ask a model, ten at a
//! time. Times are set in the rows, as if the schedules had come to them.

use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use protocol::RunStatus;
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

/// How much is measured.
#[derive(Clone, Copy)]
struct Size {
    /// Routines that put a line into a main session, and those that ask a model.
    lines: i64,
    burst: i64,
    /// Routines that are due in a second, and for how many seconds.
    per_second: i64,
    seconds: i64,
    /// Routines that are due in one second, and jobs of the baseline.
    at_once: u32,
    /// Time for making routines due, and for adding the baseline's jobs.
    prepare: TimeDelta,
    add: TimeDelta,
    /// Time after which a job of the baseline that has not run counts as lost.
    latest: Duration,
    /// Time over which the idle process is watched.
    idle: Duration,
    /// Time over which the API is asked while the burst is worked on.
    asking: Duration,
    /// Routines that are disabled, and runs that are cancelled, in that time.
    changes: u32,
}

const FULL: Size = Size {
    lines: 90_000,
    burst: 10_000,
    per_second: 1_000,
    seconds: 30,
    at_once: 5_000,
    prepare: TimeDelta::seconds(6),
    add: TimeDelta::seconds(60),
    latest: Duration::from_secs(20),
    idle: Duration::from_secs(20),
    asking: Duration::from_secs(15),
    changes: 100,
};
const SMOKE: Size = Size {
    lines: 150,
    burst: 500,
    per_second: 50,
    seconds: 1,
    at_once: 100,
    prepare: TimeDelta::seconds(1),
    add: TimeDelta::seconds(2),
    latest: Duration::from_millis(500),
    idle: Duration::from_millis(200),
    asking: Duration::from_secs(1),
    changes: 10,
};

const USERS: i64 = 90;
/// Longest wait for the last of the runs.
const LAST: Duration = Duration::from_mins(2);

const LATENESS: &str = "1 000 a second: due until the run has ended";
/// The parts of that: until the run is recorded, until it is started, and until it has ended.
const CLAIMED: &str = "1 000 a second: due until claimed";
const STARTED: &str = "1 000 a second: claimed until started";
const WORKED: &str = "1 000 a second: started until ended";
const LATEST: &str = "1 000 a second: the latest";
const AT_ONCE: &str = "5 000 at once: due until the run has ended";
const NO_CPU: &str = "idle CPU, none stored, ms each second";
const IDLE_CPU: &str = "idle CPU, 100 000 stored, ms each second";
const MEMORY: &str = "memory of 100 000 stored, none due";
const LIST: &str = "10 000 at once: GET /api/routines";
const DISABLE: &str = "10 000 at once: POST …/disable";
const CANCEL: &str = "10 000 at once: POST /api/runs/{id}/cancel";
const MAX_LATENESS_MS: f64 = 250.0;
const MAX_CLAIM_MS: f64 = 100.0;
const MAX_ANSWER_MS: f64 = 250.0;
const MAX_MEMORY_MB: f64 = 100.0;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let (client, size) = (Client::new(), bench.size(FULL, SMOKE));
    let line = json!({"type": "system_event_text", "text": "A line."});
    let ask = json!({"type": "lightweight", "prompt": "bench: end"});
    create(bench, &client, "line", line).await?;
    create(bench, &client, "ask", ask).await?;
    let mut store = database::open(&bench.stack.database()).await?;
    let process = bench.stack.process_id()?;
    sleep(size.idle / 2).await;
    let (none, empty) = (idle_cpu(process, size.idle).await?, resident_mb(process)?);
    fill(&mut store, size).await?;
    sleep(size.idle / 2).await;
    let (idle, stored) = (idle_cpu(process, size.idle).await?, resident_mb(process)?);
    bench.report.figure(NO_CPU, Unit::Ms, none);
    bench.report.figure(IDLE_CPU, Unit::Ms, idle);
    bench.report.figure(MEMORY, Unit::Mb, stored - empty);
    bench.report.limit(MEMORY, MAX_MEMORY_MB);
    in_turns(bench, &mut store, size).await?;
    at_once(bench, &mut store, size).await?;
    burst(bench, &client, &mut store, size).await?;
    baseline::run(bench, size).await
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
pub(super) async fn idle_cpu(process: u32, idle: Duration) -> Result<f64, Failure> {
    let before = cpu_ms(process)?;
    sleep(idle).await;
    Ok((cpu_ms(process)? - before) / idle.as_secs_f64())
}

fn cpu_ms(process: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("the kernel tells no CPU time")?;
    let ticks: Result<Vec<u32>, _> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect();
    // Linux counts in hundredths of a second towards programs.
    Ok(f64::from(ticks?.iter().sum::<u32>()) * 10.0)
}

/// Inserts copies of the two routines: `line 000001`… of many users, and `ask 000001`… of the benchmark's user.
async fn fill(store: &mut SqliteConnection, size: Size) -> Result<(), Failure> {
    let columns =
        sqlx::query("SELECT name FROM pragma_table_info('routines') WHERE name NOT IN ('id', 'user_id', 'name')");
    let columns = columns.fetch_all(&mut *store).await?;
    let columns = columns.iter().map(|row| row.try_get("name")).collect::<Result<Vec<String>, _>>()?.join(", ");
    for (name, number, user) in
        [("line", size.lines, "'user ' || (n % $3)"), ("ask", size.burst, "iif($3 > 0, user_id, '')")]
    {
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
fn soon(size: Size) -> DateTime<Utc> {
    (clock::wall() + size.prepare).trunc_subsecs(0)
}

/// Fires 1 000 routines a second.
async fn in_turns(bench: &mut Bench, store: &mut SqliteConnection, size: Size) -> Result<(), Failure> {
    let start = soon(size);
    for second in 0..size.seconds {
        let numbers = (second * size.per_second + 1, (second + 1) * size.per_second);
        make_due(store, "line", numbers, start + TimeDelta::seconds(second)).await?;
    }
    let runs = ended_runs(store, (start, size.seconds), usize::try_from(size.seconds * size.per_second)?).await?;
    let latest = runs.iter().flatten().map(EndedRun::lateness).fold(0.0, f64::max);
    let parts: [(&str, Part); 4] = [
        (LATENESS, EndedRun::lateness),
        (CLAIMED, |run| clock::milliseconds_between(run.due, run.claimed)),
        (STARTED, |run| clock::milliseconds_between(run.claimed, run.started)),
        (WORKED, |run| clock::milliseconds_between(run.started, run.ended)),
    ];
    for (name, part) in parts {
        let mut series = Series::new(name, Unit::Ms);
        series.extend(runs.iter().map(|run| run.as_ref().map(part).map_err(|failure| failure.to_string().into())));
        bench.report.side(series);
    }
    bench.report.figure(LATEST, Unit::Ms, latest);
    bench.report.limit_at(LATENESS, 99, MAX_LATENESS_MS);
    bench.report.limit_at(CLAIMED, 99, MAX_CLAIM_MS);
    Ok(())
}

/// Fires as many routines in one second as the baseline does.
async fn at_once(bench: &mut Bench, store: &mut SqliteConnection, size: Size) -> Result<(), Failure> {
    let (start, number) = (soon(size), i64::from(size.at_once));
    let first = size.seconds * size.per_second + 1;
    make_due(store, "line", (first, first + number - 1), start).await?;
    let mut series = Series::new(AT_ONCE, Unit::Ms);
    let runs = ended_runs(store, (start, 1), usize::try_from(number)?).await?;
    series.extend(runs.into_iter().map(|run| run.map(|run| run.lateness())));
    bench.report.side(series);
    Ok(())
}

/// When a run was due, recorded, started and ended.
struct EndedRun {
    due: DateTime<Utc>,
    claimed: DateTime<Utc>,
    started: DateTime<Utc>,
    ended: DateTime<Utc>,
}

/// A part of the time of a run, in milliseconds.
type Part = fn(&EndedRun) -> f64;

impl EndedRun {
    /// Milliseconds from due until ended.
    fn lateness(&self) -> f64 {
        clock::milliseconds_between(self.due, self.ended)
    }
}

/// Waits until `expected` runs that were due within some seconds have ended. Returns them, and a failure for each run
/// that is missing.
async fn ended_runs(
    store: &mut SqliteConnection,
    (start, seconds): (DateTime<Utc>, i64),
    expected: usize,
) -> Result<Vec<Result<EndedRun, Failure>>, Failure> {
    let end = start + TimeDelta::seconds(seconds);
    let ended = "SELECT due_at, created_at, started_at, completed_at FROM routine_runs \
                 WHERE due_at >= $1 AND due_at < $2 AND status = 'ok'";
    let given_up = Instant::now() + LAST;
    loop {
        // Not asked while the load is there.
        let wait = (end - clock::wall()).to_std().unwrap_or_default().max(Duration::from_secs(2));
        sleep(wait).await;
        let rows = sqlx::query(ended).bind(start).bind(end).fetch_all(&mut *store).await?;
        if rows.len() < expected && Instant::now() < given_up {
            continue;
        }
        let mut runs = Vec::with_capacity(expected);
        for row in &rows {
            let (due, claimed) = (row.try_get("due_at")?, row.try_get("created_at")?);
            runs.push(Ok(EndedRun {
                due,
                claimed,
                started: row.try_get("started_at")?,
                ended: row.try_get("completed_at")?,
            }));
        }
        runs.extend((rows.len()..expected).map(|_| Err("no run has ended well".into())));
        return Ok(runs);
    }
}

/// Fires 10 000 routines of one user at once, and uses the API meanwhile.
async fn burst(bench: &mut Bench, client: &Client, store: &mut SqliteConnection, size: Size) -> Result<(), Failure> {
    let due = soon(size);
    make_due(store, "ask", (1, size.burst), due).await?;
    sleep((due - clock::wall()).to_std().unwrap_or_default()).await;
    let asked = Asked { base: bench.stack.base().to_owned(), token: bench.stack.token().to_owned(), size };
    let routines = asked.ids(client, "/api/routines?limit=200").await?;
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

/// Where requests go.
#[derive(Clone)]
struct Asked {
    base: String,
    token: String,
    size: Size,
}

impl Asked {
    async fn ids(&self, client: &Client, path: &str) -> Result<Vec<String>, Failure> {
        let response = client.get(format!("{}{path}", self.base)).bearer_auth(&self.token).send().await?;
        let page: Value = response.error_for_status()?.json().await?;
        let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)).collect())
    }

    /// The times of requests of one kind, on one connection, while the burst is worked on.
    async fn series(&self, name: &'static str, routines: &[String]) -> Result<Series, Failure> {
        let (client, mut series) = (Client::builder().pool_max_idle_per_host(1).build()?, Series::new(name, Unit::Ms));
        let waiting = format!("/api/runs?status={}&limit=1", RunStatus::Queued.as_str());
        for routine in routines.iter().take(self.size.changes as usize) {
            sleep(self.size.asking / self.size.changes).await;
            let path = match name {
                LIST => "/api/routines?limit=50".to_owned(),
                DISABLE => format!("/api/routines/{routine}/disable"),
                _ => match self.ids(&client, &waiting).await?.first() {
                    Some(run) => format!("/api/runs/{run}/cancel"),
                    None => continue,
                },
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
        }
        Ok(series)
    }
}
