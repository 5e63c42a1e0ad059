//! `replay`: a client resumes at event 0 of a job with 10 000 events and reads the stream to the last one, compared
//! with reading the same rows from the database file.

use std::time::Instant;

use protocol::LimitsRequest;
use sqlx::{Row, SqliteConnection};

use super::Bench;
use crate::{
    Failure, database,
    report::{Series, Unit},
    simulated_worker::{PendingWorker, SimulatedWorker, number},
};

const EVENTS: u64 = 10_000;
const SMOKE_EVENTS: u64 = 1_000;
const BATCH: u64 = 1_000;

const OURS: &str = "10 000 events over the stream";
const OTHER: &str = "reading the 10 000 rows";
const MAX_MS: f64 = 1_000.0;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let pending = PendingWorker::create(&bench.stack, LimitsRequest::default()).await?;
    let mut worker = pending.attach(&bench.stack).await?;
    let events = bench.size(EVENTS, SMOKE_EVENTS);
    while worker.last() < events {
        worker.send(BATCH.min(events - worker.last())).await?;
    }
    let mut rows = database::open(&bench.stack.database()).await?;
    stream(bench, &worker).await?;
    read(&mut rows, &worker).await?;
    let (mut ours, mut other) = (Series::new(OURS, Unit::Ms), Series::new(OTHER, Unit::Ms));
    for _ in 0..bench.runs {
        ours.add(stream(bench, &worker).await);
        other.add(read(&mut rows, &worker).await);
    }
    bench.report.side(ours);
    bench.report.side(other);
    bench.report.ratio(OURS, OTHER, None);
    bench.report.limit(OURS, MAX_MS);
    Ok(())
}

async fn stream(bench: &Bench, worker: &SimulatedWorker) -> Result<f64, Failure> {
    let started = Instant::now();
    bench.stack.events(worker.job).await?.until(|data| number(data) == Some(worker.last())).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

async fn read(rows: &mut SqliteConnection, worker: &SimulatedWorker) -> Result<f64, Failure> {
    let started = Instant::now();
    let query =
        "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events WHERE job_id = ? AND seq > 0 ORDER BY seq";
    let found = sqlx::query(query).bind(*worker.job.as_uuid()).fetch_all(rows).await?;
    let taken = started.elapsed();
    let last: String = found.last().ok_or("the job has no events")?.try_get("data")?;
    if !last.contains(&format!("{} ", worker.last())) {
        return Err(format!("the last of {} rows is not the last event", found.len()).into());
    }
    Ok(taken.as_secs_f64() * 1_000.0)
}
