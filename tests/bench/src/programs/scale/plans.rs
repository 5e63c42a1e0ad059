//! The time of a plan, which the dispatcher makes after each change, with ten times the jobs at work: they are made up in
//! memory, in this process.

use std::time::Instant;

use dispatch::PlanScene;

use super::super::Bench;
use crate::{
    Failure,
    report::{Series, Unit},
};

/// Jobs of a plan for each job at work.
const JOBS_EACH: usize = 10;
const PLAN: &str = "a plan with ten times the jobs at work";
const MAX_MS: f64 = 20.0;

pub(super) async fn run(bench: &mut Bench, live_jobs: u32) -> Result<(), Failure> {
    let (jobs, plans) = (JOBS_EACH * usize::try_from(live_jobs)?, bench.runs);
    let timed = tokio::task::spawn_blocking(move || {
        let scene = PlanScene::with_running_jobs(jobs);
        let times = (0..plans).map(|_| {
            let listed = scene.list();
            let started = Instant::now();
            drop(scene.plan(listed));
            started.elapsed().as_secs_f64() * 1_000.0
        });
        times.collect::<Vec<_>>()
    });
    let mut series = Series::new(PLAN, Unit::Ms);
    timed.await?.into_iter().for_each(|time| series.add(Ok(time)));
    bench.report.side(series);
    bench.report.limit_at(PLAN, 99, MAX_MS);
    Ok(())
}
