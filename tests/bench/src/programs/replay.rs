//! `replay`: a client resumes at event 0 of a job with 10 000 and reads the stream until it has the last, beside reading
//! the same rows from the same file.

use std::time::Instant;

use sqlx::{Row, SqliteConnection};

use super::Bench;
use crate::{
    Failure, database,
    hand::{Hand, number},
    report::{Attempts, Unit},
};

const EVENTS: u64 = 10_000;
const BATCH: u64 = 1_000;

const OURS: &str = "10 000 events over the stream";
const OTHER: &str = "reading the 10 000 rows";
const AT_MOST_MS: f64 = 1_000.0;

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let candidate = Hand::create(&bench.stack).await?;
    let mut hand = Hand::take(&bench.stack, candidate).await?;
    while hand.last() < EVENTS {
        hand.send(BATCH.min(EVENTS - hand.last())).await?;
    }
    let mut rows = database::open(&bench.stack.database()).await?;
    stream(bench, &hand).await?;
    read(&mut rows, &hand).await?;
    let (mut ours, mut other) = (Attempts::new(OURS, Unit::Ms), Attempts::new(OTHER, Unit::Ms));
    for _ in 0..bench.runs {
        ours.add(stream(bench, &hand).await);
        other.add(read(&mut rows, &hand).await);
    }
    bench.report.side(ours);
    bench.report.side(other);
    bench.report.ratio(OURS, OTHER, None);
    bench.report.limit(OURS, AT_MOST_MS);
    Ok(())
}

async fn stream(bench: &Bench, hand: &Hand) -> Result<f64, Failure> {
    let started = Instant::now();
    bench.stack.events(hand.job).await?.until(|data| number(data) == Some(hand.last())).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

async fn read(rows: &mut SqliteConnection, hand: &Hand) -> Result<f64, Failure> {
    let started = Instant::now();
    let query =
        "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events WHERE job_id = ? AND seq > 0 ORDER BY seq";
    let found = sqlx::query(query).bind(*hand.job.as_uuid()).fetch_all(rows).await?;
    let taken = started.elapsed();
    let last: String = found.last().ok_or("the job has no events")?.try_get("data")?;
    if !last.contains(&format!("{} ", hand.last())) {
        return Err(format!("the last of {} rows is not the last event", found.len()).into());
    }
    Ok(taken.as_secs_f64() * 1_000.0)
}
