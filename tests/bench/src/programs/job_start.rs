//! `job-start`: from `POST /api/jobs` to the worker's first model call, beside `docker run --rm` of the same image in the
//! same posture, which runs `true`. One at a time, in turns; the first of each warms up and is not counted.

use std::time::Instant;

use protocol::EventData;

use super::Bench;
use crate::{
    Failure,
    containers::{self, Plain},
    report::{Attempts, Unit},
    stack::{container_name, is_final},
};

const OURS: &str = "job: request to first model call";
const OTHER: &str = "docker run --rm … true";
const BARE: &str = "docker version (the command line alone)";
const AT_MOST: f64 = 1.1;

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let plain = bench.stack.plain()?;
    start_job(bench).await?;
    run_plain(&plain).await?;
    let (mut ours, mut other) = (Attempts::new(OURS, Unit::Ms), Attempts::new(OTHER, Unit::Ms));
    let mut bare = Attempts::new(BARE, Unit::Ms);
    for _ in 0..bench.runs {
        ours.add(start_job(bench).await);
        other.add(run_plain(&plain).await);
        bare.add(ask_version().await);
    }
    for side in [ours, other, bare] {
        bench.report.side(side);
    }
    bench.report.ratio(OURS, OTHER, Some(AT_MOST));
    Ok(())
}

async fn start_job(bench: &mut Bench) -> Result<f64, Failure> {
    let started = Instant::now();
    let job = bench.stack.create("bench: start", None).await?;
    let mut events = bench.stack.events(job).await?;
    events.until(|data| matches!(data, EventData::LlmCall { .. })).await?;
    let taken = started.elapsed();
    // What it leaves to do must not fall into the other side's time.
    events.until(is_final).await?;
    bench.destroyed.at(&container_name(job)).await?;
    Ok(taken.as_secs_f64() * 1_000.0)
}

async fn run_plain(plain: &Plain) -> Result<f64, Failure> {
    let mut command = plain.run();
    command.args(["--rm", "--entrypoint=true", plain.image()]);
    let started = Instant::now();
    containers::output(command).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

async fn ask_version() -> Result<f64, Failure> {
    let mut command = containers::docker();
    command.arg("version");
    let started = Instant::now();
    containers::output(command).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}
