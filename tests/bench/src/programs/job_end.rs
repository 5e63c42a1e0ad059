//! `job-end`: from a job's end, and from a cancel request, until its container is gone, compared with `docker rm -f` of
//! a sleeping container.
//!
//! The end is the engine's `destroy` event. The start is, on the same host's clock, the final `state` event of a job
//! that completes, the cancel request, or the start of the command.

use protocol::EventData;

use super::Bench;
use crate::{
    Failure, clock,
    containers::{self, BaselineContainers},
    report::{Series, Unit},
    stack::{container_name, is_final},
};

const COMPLETED: &str = "job: completed to gone";
const CANCELLED: &str = "job: cancel to gone";
const OTHER: &str = "docker rm -f";
const MAX_RATIO: f64 = 2.0;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let baseline = bench.stack.baseline()?;
    let (mut completed, mut cancelled) = (Series::new(COMPLETED, Unit::Ms), Series::new(CANCELLED, Unit::Ms));
    let mut other = Series::new(OTHER, Unit::Ms);
    complete(bench).await?;
    remove(bench, &baseline).await?;
    for _ in 0..bench.runs {
        completed.add(complete(bench).await);
        other.add(remove(bench, &baseline).await);
        cancelled.add(cancel(bench).await);
    }
    for side in [completed, cancelled, other] {
        bench.report.side(side);
    }
    bench.report.ratio(COMPLETED, OTHER, Some(MAX_RATIO));
    bench.report.ratio(CANCELLED, OTHER, Some(MAX_RATIO));
    Ok(())
}

async fn complete(bench: &mut Bench) -> Result<f64, Failure> {
    let job = bench.stack.create("bench: end", None).await?;
    let last = bench.stack.events(job).await?.until(is_final).await?;
    let gone = bench.destroyed()?.wait_for(&container_name(job)).await?;
    Ok(clock::milliseconds_between(last.at, gone))
}

async fn cancel(bench: &mut Bench) -> Result<f64, Failure> {
    let job = bench.stack.create("bench: sleep", None).await?;
    let mut events = bench.stack.events(job).await?;
    events.until(|data| matches!(data, EventData::ToolUse { .. })).await?;
    let asked = clock::wall();
    bench.stack.cancel(job).await?;
    let gone = bench.destroyed()?.wait_for(&container_name(job)).await?;
    events.until(is_final).await?;
    Ok(clock::milliseconds_between(asked, gone))
}

async fn remove(bench: &mut Bench, baseline: &BaselineContainers) -> Result<f64, Failure> {
    let mut command = baseline.run();
    // `docker run` prints the id, but destroy events are matched by name.
    command.args(["--detach", "--entrypoint=sleep", baseline.image(), "600"]);
    let id = containers::output(command).await?;
    let mut command = containers::docker();
    command.args(["inspect", "--format={{.Name}}", &id]);
    let name = containers::output(command).await?;
    let name = name.trim_start_matches('/');
    let asked = clock::wall();
    containers::remove(name).await?;
    let gone = bench.destroyed()?.wait_for(name).await?;
    Ok(clock::milliseconds_between(asked, gone))
}
