//! `scale`: the server on a large database, which an earlier version made: its migration, with a kill in the middle,
//! its lists, searches, chat turns, starts and runs, and the commands of an operator, while 1,000 jobs are at work.
//!
//! The database is generated, and its jobs have no workspaces. The jobs at work have containers of a stand-in engine;
//! the benchmark simulates their workers.

mod caller;
mod commands;
mod generate;
mod lists;
mod live;
mod plans;
mod requests;
mod runs;
mod searches;
mod turns;
mod upgrade;

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use self::{caller::Caller, generate::Size, live::LiveJobs};
use super::Bench;
use crate::{
    Failure,
    installation::{Installation, Server},
    report::{Report, Series, Unit},
};

/// A thousandth of the full size, which is also the smallest one.
pub(crate) const FULL: u32 = 1_000;
pub(crate) const SMOKE: u32 = 2;
/// Starts of the server that are measured.
const STARTS: u32 = 3;
/// Time over which the process is watched while its jobs do nothing.
const IDLE: Duration = Duration::from_secs(10);
const SMOKE_IDLE: Duration = Duration::from_millis(200);

const START: &str = "start of the server with all jobs at work";
const IDLE_CPU: &str = "CPU while the jobs at work do nothing, ms each second";
const MAX_START_MS: f64 = 3_000.0;

/// Jobs at work at a size in thousandths.
pub(crate) fn live_jobs(thousandths: u32) -> u32 {
    thousandths.max(5)
}

/// Brings a database of an earlier version into an installation, and has the server migrate it. `kept` is a database
/// that is used, or made if it does not exist; without it, one is made and deleted.
pub(crate) async fn start(
    installation: &Installation,
    report: &mut Report,
    (thousandths, kept): (u32, Option<&Path>),
) -> Result<Server, Failure> {
    let database = installation.database();
    std::fs::create_dir_all(installation.directory().join("data"))?;
    match kept {
        Some(kept) => {
            if !kept.exists() {
                generate::database(kept, Size::of(thousandths)).await?;
            }
            std::fs::copy(kept, &database)?;
        }
        None => generate::database(&database, Size::of(thousandths)).await?,
    }
    upgrade::run(installation, report, thousandths).await
}

/// Runs the benchmark. A part that fails is reported, and the others are measured.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let jobs = bench.stack.installation().settings.max_parallel_jobs;
    let planned = plans::run(bench, jobs).await;
    report_failure(bench, "plans", planned);
    let mut live = LiveJobs::default();
    let started = live.start(&bench.stack, jobs).await;
    report_failure(bench, "jobs at work", started);
    sleep(bench.size(IDLE, SMOKE_IDLE) / 2).await;
    let cpu = super::routines::idle_cpu(bench.stack.process_id()?, bench.size(IDLE, SMOKE_IDLE)).await?;
    bench.report.figure(IDLE_CPU, Unit::Ms, cpu);
    live.work();
    let admin = Caller::new(bench.stack.installation(), "root", "admin").await?;
    let mut users = Vec::new();
    // The owner of most jobs, the owner of most routines, and the owner of few of both.
    for user in ["user001", "user002", "user009"] {
        users.push(Caller::new(bench.stack.installation(), user, "user").await?);
    }
    let listed = lists::run(bench, users.iter().chain([&admin])).await;
    report_failure(bench, "lists", listed);
    let searched = searches::run(bench, &admin, &users[1]).await;
    report_failure(bench, "searches", searched);
    let turned = turns::run(bench).await;
    report_failure(bench, "chat turns", turned);
    let commanded = commands::run(bench).await;
    report_failure(bench, "commands", commanded);
    live.pause();
    let started = starts(bench).await;
    report_failure(bench, "starts", started);
    live.work();
    let ran = runs::run(bench, &admin).await;
    report_failure(bench, "runs", ran);
    Ok(())
}

fn report_failure(bench: &mut Bench, part: &'static str, result: Result<(), Failure>) {
    if let Err(failure) = result {
        let mut series = Series::new(part, Unit::Count);
        series.add(Err(failure));
        bench.report.side(series);
    }
}

async fn starts(bench: &mut Bench) -> Result<(), Failure> {
    let mut series = Series::new(START, Unit::Ms);
    for _ in 0..bench.size(STARTS, 1) {
        series.add(Ok(bench.stack.restart().await?.as_secs_f64() * 1_000.0));
    }
    bench.report.side(series);
    bench.report.limit_at(START, 99, MAX_START_MS);
    Ok(())
}
