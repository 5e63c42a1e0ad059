//! `soak`: many short jobs for `--minutes`, some of them cancelled, and the orchestrator's resident memory over time.
//!
//! The end is compared with the first quarter. `--runs` is the number of concurrent jobs.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream::FuturesUnordered};
use protocol::{EventData, JobId};
use tokio::time::{MissedTickBehavior, interval};

use super::Bench;
use crate::{
    Failure,
    containers::DestroyEvents,
    report::{Series, Unit, resident_mb},
    stack::{Stack, container_name, is_final},
};

const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Every n-th job is cancelled.
const CANCEL_ONE_OF: u64 = 5;
const SMOKE_CANCEL_ONE_OF: u64 = 2;
const SMOKE_LENGTH: Duration = Duration::from_secs(3);

const COMPLETED: &str = "job: request to completed";
const CANCELLED: &str = "job: cancel to ended";
const DONE: &str = "jobs done";
const CURVE: &str = "gantry serve, every 10 s";
const FIRST: &str = "gantry serve, first";
const QUARTER: &str = "gantry serve, after a quarter";
const HALF: &str = "gantry serve, after half";
const END: &str = "gantry serve, at the end";
const MOST: &str = "gantry serve, most";

/// Series collected so far.
struct Results {
    completed: Series,
    cancelled: Series,
    done: u32,
    curve: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let mut results = Results {
        completed: Series::new(COMPLETED, Unit::Ms),
        cancelled: Series::new(CANCELLED, Unit::Ms),
        done: 0,
        curve: Vec::new(),
    };
    let length = Duration::from_mins(u64::from(bench.minutes));
    let (length, cancel_one_of) = bench.size((length, CANCEL_ONE_OF), (SMOKE_LENGTH, SMOKE_CANCEL_ONE_OF));
    let destroyed = bench.destroyed.as_mut().ok_or("the engine is a stand-in")?;
    soak(&bench.stack, destroyed, (bench.runs, length, cancel_one_of), &mut results).await?;
    let Results { completed, cancelled, done, curve } = results;
    let at = |part: usize, of: usize| curve.get((curve.len().saturating_sub(1)) * part / of).copied();
    let most = curve.iter().copied().max_by(f64::total_cmp);
    let places = [(FIRST, at(0, 4)), (QUARTER, at(1, 4)), (HALF, at(2, 4)), (END, at(4, 4)), (MOST, most)];
    for (name, value) in places {
        bench.report.side(single(name, Unit::Mb, value.ok_or("no sample was taken")?));
    }
    bench.report.side(single(DONE, Unit::Count, f64::from(done)));
    bench.report.side(completed);
    bench.report.side(cancelled);
    let mut every = Series::new(CURVE, Unit::Mb);
    for sample in curve {
        every.add(Ok(sample));
    }
    bench.report.side(every);
    bench.report.ratio(END, QUARTER, None);
    Ok(())
}

/// Keeps the requested number of jobs running and samples memory; then waits for the jobs to end.
async fn soak(
    stack: &Stack,
    destroyed: &mut DestroyEvents,
    (at_once, length, cancel_one_of): (u32, Duration, u64),
    results: &mut Results,
) -> Result<(), Failure> {
    let daemon = stack.process_id()?;
    let started = Instant::now();
    let mut number = 0;
    let mut next = || {
        number += 1;
        one(stack, number % cancel_one_of == 0)
    };
    let mut in_flight: FuturesUnordered<_> = (0..at_once).map(|_| next()).collect();
    let mut tick = interval(SAMPLE_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = tick.tick() => results.curve.push(resident_mb(daemon)?),
            ended = in_flight.next() => {
                let Some((cancel, ended)) = ended else { break };
                let ended = gone(destroyed, ended).await;
                results.done += u32::from(ended.is_ok());
                if cancel { results.cancelled.add(ended) } else { results.completed.add(ended) }
                if started.elapsed() < length {
                    in_flight.push(next());
                }
            }
        }
    }
    results.curve.push(resident_mb(daemon)?);
    Ok(())
}

/// Waits until the job's container is removed as well.
async fn gone(destroyed: &mut DestroyEvents, ended: Result<(JobId, f64), Failure>) -> Result<f64, Failure> {
    let (job, taken) = ended?;
    destroyed.wait_for(&container_name(job)).await?;
    Ok(taken)
}

/// Runs one job; returns whether it was to be cancelled.
async fn one(stack: &Stack, cancel: bool) -> (bool, Result<(JobId, f64), Failure>) {
    (cancel, if cancel { cancelled(stack).await } else { completed(stack).await })
}

async fn completed(stack: &Stack) -> Result<(JobId, f64), Failure> {
    let started = Instant::now();
    let job = stack.create("bench: shell", None).await?;
    stack.events(job).await?.until(is_final).await?;
    Ok((job, started.elapsed().as_secs_f64() * 1_000.0))
}

async fn cancelled(stack: &Stack) -> Result<(JobId, f64), Failure> {
    let job = stack.create("bench: sleep", None).await?;
    let mut events = stack.events(job).await?;
    events.until(|data| matches!(data, EventData::ToolUse { .. })).await?;
    let asked = Instant::now();
    stack.cancel(job).await?;
    events.until(is_final).await?;
    Ok((job, asked.elapsed().as_secs_f64() * 1_000.0))
}

fn single(name: &'static str, unit: Unit, value: f64) -> Series {
    let mut attempts = Series::new(name, unit);
    attempts.add(Ok(value));
    attempts
}
