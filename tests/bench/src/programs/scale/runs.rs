//! The start of runs while many wait: half of the routines become due while the provider holds its answers, so that
//! their runs are queued. Then it answers at once, and each run that ends makes room for the next one.

use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;
use tokio::time::sleep;

use super::{super::Bench, Caller};
use crate::{
    Failure, clock, database,
    report::{Series, Unit},
};

/// Most runs that wait.
const QUEUED: i64 = 50_000;
/// How long runs are watched, and how long the server has to queue them.
const WATCHED: Duration = Duration::from_secs(10);
const SMOKE_WATCHED: Duration = Duration::from_secs(1);
const QUEUE_TIMEOUT: Duration = Duration::from_mins(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

const WAITING: &str = "runs that wait";
const QUEUING: &str = "due until all are queued";
const START: &str = "a run's start after the end of the one before it";
const MAX_START_MS: f64 = 20.0;

/// Times them.
pub(super) async fn run(bench: &mut Bench, admin: &Caller) -> Result<(), Failure> {
    let upstream = bench.upstream.as_ref().ok_or("the provider is not running")?;
    let mut store = database::open(&bench.stack.database()).await?;
    upstream.hold(true);
    let due = clock::wall();
    let made_due = sqlx::query(
        "UPDATE routines SET next_fire_at = $1 WHERE rowid IN (SELECT rowid FROM routines \
         WHERE enabled AND trigger_type = 'every' AND action_type = 'lightweight' LIMIT $2)",
    );
    let made_due = made_due.bind(due).bind(QUEUED).execute(&mut store).await?.rows_affected();
    let started = Instant::now();
    loop {
        let left = sqlx::query_scalar("SELECT COUNT(*) FROM routines WHERE enabled AND next_fire_at <= $1").bind(due);
        let left: i64 = left.fetch_one(&mut store).await?;
        if left == 0 {
            break;
        }
        if started.elapsed() > QUEUE_TIMEOUT {
            return Err(format!("{left} of {made_due} routines have not fired").into());
        }
        sleep(POLL_INTERVAL).await;
    }
    bench.report.figure(WAITING, Unit::Count, f64::from(u32::try_from(made_due)?));
    bench.report.figure(QUEUING, Unit::Ms, started.elapsed().as_secs_f64() * 1_000.0);
    let released = clock::wall();
    upstream.hold(false);
    sleep(bench.size(WATCHED, SMOKE_WATCHED)).await;
    upstream.hold(true);
    let mut series = Series::new(START, Unit::Ms);
    for gap in gaps(admin, released).await? {
        series.add(Ok(gap));
    }
    bench.report.side(series);
    bench.report.limit_at(START, 99, MAX_START_MS);
    bench.upstream.as_ref().ok_or("the provider is not running")?.hold(false);
    Ok(())
}

/// Milliseconds from the end of a run until the start of the one that took its place, in the order of both.
async fn gaps(admin: &Caller, released: DateTime<Utc>) -> Result<Vec<f64>, Failure> {
    let queued = (released - Duration::from_mins(10)).to_rfc3339_opts(SecondsFormat::Secs, true);
    let runs = admin.items(&format!("/api/runs?status=ok,attention,failed,running&since={queued}")).await?;
    let times = |field: &str| {
        let parsed = runs.iter().filter_map(|run| match &run[field] {
            Value::String(at) => at.parse::<DateTime<Utc>>().ok().filter(|at| *at >= released),
            _ => None,
        });
        let mut times: Vec<_> = parsed.collect();
        times.sort();
        times
    };
    let (ends, starts) = (times("completed_at"), times("started_at"));
    Ok(ends.iter().zip(&starts).map(|(end, start)| clock::milliseconds_between(*end, *start)).collect())
}
