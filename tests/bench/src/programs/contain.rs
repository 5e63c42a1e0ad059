//! `contain`: short jobs of one user and `GET /healthz` while another user's job floods, compared with the same without
//! a flood; and the growth of the orchestrator's memory and log meanwhile.
//!
//! `--runs` is the number of rounds. A round measures without a flood first, then during each flood in turn.

use std::time::{Duration, Instant};

use attack::{
    FILES, FLOOD, MAX_HEALTH, MAX_LOG_GROWTH_BYTES, MAX_MEMORY_GROWTH_MB, MAX_SLOWDOWN, STARTED, TokenCopier, Vitals,
};
use protocol::{InputFile, JobId};

use super::Bench;
use crate::{
    Failure,
    report::{Series, Unit},
    stack::{Stack, User, is_final},
};

/// Duration of each phase.
const SECONDS: u64 = 8;
const SMOKE_SECONDS: u64 = 1;
/// Of the phases, a smoke run measures every second one.
const SMOKE_PHASES: usize = 2;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A phase of the benchmark: the flooding command without its duration, and the names of its results.
struct Phase {
    command: Option<&'static str>,
    jobs: &'static str,
    health: &'static str,
    memory: &'static str,
    log: &'static str,
}

const PHASES: [Phase; 6] = [
    Phase { command: None, jobs: "job: quiet", health: "health: quiet", memory: "memory: quiet", log: "log: quiet" },
    Phase {
        command: Some("python3 flood.py connections"),
        jobs: "job: 20 000 connections",
        health: "health: 20 000 connections",
        memory: "memory: 20 000 connections",
        log: "log: 20 000 connections",
    },
    Phase {
        command: Some("python3 flood.py bodies-token"),
        jobs: "job: 100 half-sent bodies",
        health: "health: 100 half-sent bodies",
        memory: "memory: 100 half-sent bodies",
        log: "log: 100 half-sent bodies",
    },
    Phase {
        command: Some("python3 flood.py calls-forged"),
        jobs: "job: worker calls",
        health: "health: worker calls",
        memory: "memory: worker calls",
        log: "log: worker calls",
    },
    Phase {
        command: Some("python3 flood.py health"),
        jobs: "job: GET /health",
        health: "health: GET /health",
        memory: "memory: GET /health",
        log: "log: GET /health",
    },
    Phase {
        command: Some("python3 files.py tree 190000 508"),
        jobs: "job: a deep tree",
        health: "health: a deep tree",
        memory: "memory: a deep tree",
        log: "log: a deep tree",
    },
];

/// Series of one phase, over all rounds.
struct PhaseSeries {
    phase: &'static Phase,
    jobs: Series,
    health: Series,
    memory: Series,
    log: Series,
}

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let mut all: Vec<PhaseSeries> = PHASES.iter().step_by(bench.size(1, SMOKE_PHASES)).map(PhaseSeries::of).collect();
    let thief = TokenCopier::watch(bench.stack.run_dir());
    victim_job(&bench.stack).await?;
    for _ in 0..bench.runs {
        for measured in &mut all {
            measured.measure(&bench.stack, &thief, bench.size(SECONDS, SMOKE_SECONDS)).await?;
        }
    }
    for measured in all {
        let PhaseSeries { phase, jobs, health, memory, log } = measured;
        for side in [jobs, health, memory, log] {
            bench.report.side(side);
        }
        if phase.command.is_some() {
            let quiet = &PHASES[0];
            bench.report.ratio(phase.jobs, quiet.jobs, Some(MAX_SLOWDOWN));
            bench.report.ratio(phase.health, quiet.health, None);
            bench.report.limit_at(phase.health, 99, MAX_HEALTH.as_secs_f64() * 1_000.0);
            bench.report.limit(phase.memory, to_f64(MAX_MEMORY_GROWTH_MB));
            bench.report.limit(phase.log, to_f64(MAX_LOG_GROWTH_BYTES) / 1e6);
        }
    }
    Ok(())
}

impl PhaseSeries {
    fn of(phase: &'static Phase) -> Self {
        Self {
            phase,
            jobs: Series::new(phase.jobs, Unit::Ms),
            health: Series::new(phase.health, Unit::Ms),
            memory: Series::new(phase.memory, Unit::Mb),
            log: Series::new(phase.log, Unit::Mb),
        }
    }

    async fn measure(&mut self, stack: &Stack, thief: &TokenCopier, seconds: u64) -> Result<(), Failure> {
        let vitals = Vitals::watch(stack.base(), stack.process_id()?);
        let log_before = stack.printed_bytes();
        let hostile = match self.phase.command {
            Some(command) => Some(hostile_job(stack, thief, &format!("{command} {seconds}")).await?),
            None => None,
        };
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            self.jobs.add(victim_job(stack).await);
        }
        if let Some(job) = hostile {
            // How the hostile job ends does not matter: it may hurt itself.
            stack.events_as(User::Hostile, job).await?.until(is_final).await?;
        }
        let readings = vitals.end();
        for taken in &readings.health {
            self.health.add(Ok(taken.as_secs_f64() * 1_000.0));
        }
        for _ in 0..readings.health_failures {
            self.health.add(Err("no answer".into()));
        }
        self.memory.add(Ok(to_f64(readings.memory_growth_mb())));
        self.log.add(Ok(to_f64(stack.printed_bytes() - log_before) / 1e6));
        Ok(())
    }
}

/// Runs a short job and returns the time from the request to its end.
async fn victim_job(stack: &Stack) -> Result<f64, Failure> {
    let started = Instant::now();
    let job = stack.create("bench: shell", None).await?;
    stack.events(job).await?.until(is_final).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

/// Starts the hostile user's job and waits until its command has begun.
async fn hostile_job(stack: &Stack, thief: &TokenCopier, command: &str) -> Result<JobId, Failure> {
    let file = |(path, content): (&str, &str)| InputFile {
        path: path.to_owned(),
        content: Some(content.to_owned()),
        content_base64: None,
        mode: None,
    };
    let job = stack.create_hostile(&format!("bench: run {command}"), [FLOOD, FILES].map(file).to_vec()).await?;
    let workspace = stack.workspace(job);
    tokio::task::block_in_place(|| thief.copy_to(&job.to_string(), &workspace))?;
    let started = async {
        while !workspace.join(STARTED).exists() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(START_TIMEOUT, started).await.map_err(|_| format!("{command} did not begin"))?;
    Ok(job)
}

fn to_f64(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}
