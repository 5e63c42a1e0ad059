//! `footprint`: what the orchestrator holds in memory idle and with live jobs, what a worker holds, and how large the
//! worker's program is, beside a small agent runtime in Python in the same image and posture.
//!
//! Memory is the kernel's `VmRSS`. `--runs` is the number of live jobs.

use std::process::Stdio;

use protocol::{EventData, JobId, LimitsRequest};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use super::Bench;
use crate::{
    Failure, containers,
    report::{Series, Unit, resident_mb},
    stack::container_name,
};

const AGENT: &str = include_str!("../../assets/agent.py");
const JOB_MEMORY_MB: u64 = 64;
/// Series of the Python runtime, taken alternately with the jobs' workers.
const PYTHON_SAMPLES: u32 = 3;

const IDLE: &str = "gantry serve, idle";
const BUSY: &str = "gantry serve, with its live jobs";
const PER_JOB: &str = "gantry serve, for each live job";
const WORKER: &str = "gantry-worker in a job";
const LAYER: &str = "gantry-worker, the file in the image";
const PYTHON: &str = "the Python runtime";
const MAX_IDLE_MB: f64 = 40.0;
const MAX_PER_JOB_MB: f64 = 1.0;
const MAX_WORKER_MB: f64 = 8.0;
const MAX_LAYER_MB: f64 = 6.0;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let daemon = bench.stack.process_id()?;
    let idle = resident_mb(daemon)?;
    let (mut worker, mut python) = (Series::new(WORKER, Unit::Mb), Series::new(PYTHON, Unit::Mb));
    let jobs = live_jobs(bench, &mut worker).await;
    let busy = resident_mb(daemon)?;
    if jobs.is_empty() {
        bench.report.side(worker);
        return Ok(());
    }
    for (turn, job) in (0..).zip(&jobs) {
        worker.add(worker_mb(*job).await);
        if turn < PYTHON_SAMPLES {
            python.add(python_mb(bench, *job, turn).await);
        }
    }
    let count = f64::from(u32::try_from(jobs.len())?);
    for (name, value) in [
        (IDLE, Ok(idle)),
        (BUSY, Ok(busy)),
        (PER_JOB, Ok((busy - idle) / count)),
        (LAYER, layer_mb(bench.stack.image()).await),
    ] {
        let mut single = Series::new(name, Unit::Mb);
        single.add(value);
        bench.report.side(single);
    }
    bench.report.side(worker);
    bench.report.side(python);
    bench.report.ratio(WORKER, PYTHON, None);
    bench.report.limit(IDLE, MAX_IDLE_MB);
    bench.report.limit(PER_JOB, MAX_PER_JOB_MB);
    bench.report.limit(WORKER, MAX_WORKER_MB);
    bench.report.limit(LAYER, MAX_LAYER_MB);
    Ok(())
}

/// Creates all jobs, then waits until each is in its tool call. A job that never gets there counts as a failed sample.
async fn live_jobs(bench: &Bench, worker: &mut Series) -> Vec<JobId> {
    let mut created = Vec::new();
    for _ in 0..bench.runs {
        let limits = LimitsRequest { memory_mb: Some(JOB_MEMORY_MB), ..LimitsRequest::default() };
        created.push(bench.stack.create("bench: sleep", Some(limits)).await);
    }
    let mut live = Vec::new();
    for job in created {
        // One reader at a time, so that readers do not add to the measured memory.
        let job = match job {
            Ok(job) => in_tool_call(bench, job).await.map(|()| job),
            Err(failure) => Err(failure),
        };
        match job {
            Ok(job) => live.push(job),
            Err(failure) => worker.add(Err(failure)),
        }
    }
    live
}

async fn in_tool_call(bench: &Bench, job: JobId) -> Result<(), Failure> {
    let mut events = bench.stack.events(job).await?;
    events.until(|data| matches!(data, EventData::ToolUse { .. })).await.map(drop)
}

async fn worker_mb(job: JobId) -> Result<f64, Failure> {
    let processes = containers::processes(&container_name(job), "gantry-worker").await?;
    processes.into_iter().map(resident_mb).sum()
}

/// The Python runtime in its own container, connected to the socket of a live job.
async fn python_mb(bench: &Bench, job: JobId, turn: u32) -> Result<f64, Failure> {
    let program = bench.stack.directory().join("agent.py");
    std::fs::write(&program, AGENT)?;
    let name = format!("{}-python-{turn}", container_name(job));
    let mut command = bench.stack.baseline()?.run_with(&bench.stack.run_directory(job));
    command.arg(containers::mount(&program, "/opt/agent.py,readonly")).arg(format!("--name={name}"));
    command.args(["--rm", "--entrypoint=python3", bench.stack.image(), "/opt/agent.py"]);
    let measured = measure_ready(command, &name).await;
    // If it never started, the removal fails too; the error of the start is the one to report.
    let removed = containers::remove(&name).await;
    let measured = measured?;
    removed?;
    Ok(measured)
}

async fn measure_ready(mut command: Command, name: &str) -> Result<f64, Failure> {
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let stdout = run.stdout.take().ok_or("the Python runtime has no standard output")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    if line.as_deref() != Some("ready") {
        return Err(format!("the Python runtime printed {line:?}, not \"ready\"").into());
    }
    containers::processes(name, "python3").await?.into_iter().map(resident_mb).sum()
}

async fn layer_mb(image: &str) -> Result<f64, Failure> {
    let mut command = containers::docker();
    command.args([
        "run",
        "--rm",
        "--network=none",
        "--entrypoint=stat",
        image,
        "-c",
        "%s",
        "/usr/local/bin/gantry-worker",
    ]);
    let bytes: u32 = containers::output(command).await?.parse()?;
    Ok(f64::from(bytes) / 1e6)
}
