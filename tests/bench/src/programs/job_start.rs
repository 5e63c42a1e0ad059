//! `job-start`: from `POST /api/jobs` to the worker's first model call, compared with `docker run --rm` of the same
//! image and posture running `true`. One at a time, alternating; the first of each is a warm-up.

use std::time::Instant;

use protocol::EventData;

use super::Bench;
use crate::{
    Failure,
    containers::{self, BaselineContainers},
    report::{Series, Unit},
    stack::{container_name, is_final},
};

const OURS: &str = "job: request to first model call";
const OTHER: &str = "docker run --rm … true";
const BARE: &str = "docker version (the command line alone)";
const MAX_RATIO: f64 = 1.1;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let baseline = bench.stack.baseline()?;
    start_job(bench).await?;
    run_baseline(&baseline).await?;
    let (mut ours, mut other) = (Series::new(OURS, Unit::Ms), Series::new(OTHER, Unit::Ms));
    let mut bare = Series::new(BARE, Unit::Ms);
    for _ in 0..bench.runs {
        ours.add(start_job(bench).await);
        other.add(run_baseline(&baseline).await);
        bare.add(ask_version().await);
    }
    for side in [ours, other, bare] {
        bench.report.side(side);
    }
    bench.report.ratio(OURS, OTHER, Some(MAX_RATIO));
    Ok(())
}

async fn start_job(bench: &mut Bench) -> Result<f64, Failure> {
    let started = Instant::now();
    let job = bench.stack.create("bench: start", None).await?;
    let mut events = bench.stack.events(job).await?;
    events.until(|data| matches!(data, EventData::LlmCall { .. })).await?;
    let taken = started.elapsed();
    // The job's end must not overlap the next sample.
    events.until(is_final).await?;
    bench.destroyed()?.wait_for(&container_name(job)).await?;
    Ok(taken.as_secs_f64() * 1_000.0)
}

async fn run_baseline(baseline: &BaselineContainers) -> Result<f64, Failure> {
    let mut command = baseline.run();
    command.args(["--rm", "--entrypoint=true", baseline.image()]);
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
