//! `job-burst`: 100 jobs posted at once, eight running at a time, compared with 100 `docker run` of the same image and
//! posture, eight at a time.
//!
//! Each job makes a model call, a shell call and a final model call; each baseline container runs only the shell.
//! Nothing reads the jobs' events meanwhile.

use std::time::Instant;

use chrono::{DateTime, Utc};
use futures_util::{StreamExt, future::join_all, stream};
use protocol::{JobId, JobState};

use super::Bench;
use crate::{
    Failure, clock,
    containers::{self, BaselineContainers},
    report::{Series, Unit},
    stack::container_name,
};

/// Concurrent containers, on both sides.
pub(crate) const AT_ONCE: u32 = 8;
const JOBS: usize = 100;
const SMOKE_JOBS: usize = 10;

const FINISHED: &str = "100 jobs: posted to the last finished";
const GONE: &str = "100 jobs: posted to the last container gone";
const RAN: &str = "100 docker run --rm … sh -c true";
const JOB: &str = "a job of them: posted to finished";
const RUN: &str = "a docker run of them, from the first's start";
const MAX_RATIO: f64 = 1.3;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let baseline = bench.stack.baseline()?;
    let mut sides = [FINISHED, GONE, RAN, JOB, RUN].map(|name| Series::new(name, Unit::Ms));
    for _ in 0..bench.runs {
        let [finished, gone, ran, job, run] = &mut sides;
        jobs(bench, finished, gone, job).await;
        runs(&baseline, bench.size(JOBS, SMOKE_JOBS), ran, run).await;
    }
    for side in sides {
        bench.report.side(side);
    }
    bench.report.ratio(FINISHED, RAN, Some(MAX_RATIO));
    bench.report.ratio(GONE, RAN, Some(MAX_RATIO));
    Ok(())
}

/// Runs one burst. It has no total if one of its jobs fails.
async fn jobs(bench: &mut Bench, finished: &mut Series, gone: &mut Series, job: &mut Series) {
    let posted = clock::wall();
    let jobs = 0..bench.size(JOBS, SMOKE_JOBS);
    let created = join_all(jobs.map(|_| bench.stack.create("bench: shell", None))).await;
    let (mut last_finished, mut last_gone) = (Ok(posted), Ok(posted));
    for id in created {
        let ended = match id {
            Ok(id) => end_of(bench, id).await,
            Err(failure) => Err(failure),
        };
        match ended {
            Ok((at, removed)) => {
                last_finished = last_finished.map(|last| last.max(at));
                last_gone = last_gone.map(|last| last.max(removed));
                job.add(Ok(clock::milliseconds_between(posted, at)));
            }
            Err(failure) => {
                last_finished = Err("not all its jobs succeeded");
                last_gone = Err("not all its jobs succeeded");
                job.add(Err(failure));
            }
        }
    }
    let total = |last: DateTime<Utc>| clock::milliseconds_between(posted, last);
    finished.add(last_finished.map(total).map_err(Failure::from));
    gone.add(last_gone.map(total).map_err(Failure::from));
}

/// When a job finished, and when its container was removed.
async fn end_of(bench: &mut Bench, id: JobId) -> Result<(DateTime<Utc>, DateTime<Utc>), Failure> {
    let gone = bench.destroyed()?.wait_for(&container_name(id)).await?;
    let job = bench.stack.job(id).await?;
    match job.finished_at {
        Some(at) if job.state == JobState::Completed => Ok((at, gone)),
        _ => Err(format!("the job is {} {}", job.state, job.message.unwrap_or_default()).into()),
    }
}

async fn runs(baseline: &BaselineContainers, number: usize, ran: &mut Series, run: &mut Series) {
    let started = Instant::now();
    let elapsed = || started.elapsed().as_secs_f64() * 1_000.0;
    let mut all = stream::iter(0..number).map(|_| run_baseline(baseline)).buffer_unordered(AT_ONCE as usize);
    let mut total = Ok(());
    while let Some(one) = all.next().await {
        if one.is_err() {
            total = Err("not all of them succeeded");
        }
        run.add(one.map(|()| elapsed()));
    }
    ran.add(total.map(|()| elapsed()).map_err(Failure::from));
}

async fn run_baseline(baseline: &BaselineContainers) -> Result<(), Failure> {
    let mut command = baseline.run();
    command.args(["--rm", "--entrypoint=sh", baseline.image(), "-c", "true"]);
    containers::output(command).await.map(drop)
}
