//! `contain`: a victim's jobs and `GET /healthz` while another user's job floods, beside the same on the same Gantry without
//! a flood; the memory and the log that the orchestrator needs meanwhile.
//!
//! `--runs` is the number of rounds. A round measures without a flood first, then during each flood in turn.

use std::time::{Duration, Instant};

use attack::{
    FILES, FLOOD, MAX_HEALTH, MAX_LOG_GROWTH_BYTES, MAX_MEMORY_GROWTH_MB, MAX_SLOWDOWN, STARTED, TokenThief, Vitals,
};
use protocol::{InputFile, JobId};

use super::Bench;
use crate::{
    Failure,
    report::{Attempts, Unit},
    stack::{Stack, User, is_final},
};

/// How long one flood goes on, and a quiet time is measured.
const SECONDS: u64 = 8;
const START_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A time of the benchmark: the command that floods, and what its figures are called.
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
        command: Some("python3 flood.py connections 8"),
        jobs: "job: 20 000 connections",
        health: "health: 20 000 connections",
        memory: "memory: 20 000 connections",
        log: "log: 20 000 connections",
    },
    Phase {
        command: Some("python3 flood.py bodies-token 8"),
        jobs: "job: 100 half-sent bodies",
        health: "health: 100 half-sent bodies",
        memory: "memory: 100 half-sent bodies",
        log: "log: 100 half-sent bodies",
    },
    Phase {
        command: Some("python3 flood.py calls-forged 8"),
        jobs: "job: worker calls",
        health: "health: worker calls",
        memory: "memory: worker calls",
        log: "log: worker calls",
    },
    Phase {
        command: Some("python3 flood.py health 8"),
        jobs: "job: GET /health",
        health: "health: GET /health",
        memory: "memory: GET /health",
        log: "log: GET /health",
    },
    Phase {
        command: Some("python3 files.py tree 190000 508 8"),
        jobs: "job: a deep tree",
        health: "health: a deep tree",
        memory: "memory: a deep tree",
        log: "log: a deep tree",
    },
];

/// What was measured in one phase, over all rounds.
struct Measured {
    phase: &'static Phase,
    jobs: Attempts,
    health: Attempts,
    memory: Attempts,
    log: Attempts,
}

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let mut all: Vec<Measured> = PHASES.iter().map(Measured::of).collect();
    let thief = TokenThief::watch(bench.stack.run_dir());
    victims_job(&bench.stack).await?;
    for _ in 0..bench.runs {
        for measured in &mut all {
            measured.measure(&bench.stack, &thief).await?;
        }
    }
    for measured in all {
        let Measured { phase, jobs, health, memory, log } = measured;
        for side in [jobs, health, memory, log] {
            bench.report.side(side);
        }
        if phase.command.is_some() {
            let quiet = &PHASES[0];
            bench.report.ratio(phase.jobs, quiet.jobs, Some(MAX_SLOWDOWN));
            bench.report.ratio(phase.health, quiet.health, None);
            bench.report.limit_at(phase.health, 99, MAX_HEALTH.as_secs_f64() * 1_000.0);
            bench.report.limit(phase.memory, whole(MAX_MEMORY_GROWTH_MB));
            bench.report.limit(phase.log, whole(MAX_LOG_GROWTH_BYTES) / 1e6);
        }
    }
    Ok(())
}

impl Measured {
    const fn of(phase: &'static Phase) -> Self {
        Self {
            phase,
            jobs: Attempts::new(phase.jobs, Unit::Ms),
            health: Attempts::new(phase.health, Unit::Ms),
            memory: Attempts::new(phase.memory, Unit::Mb),
            log: Attempts::new(phase.log, Unit::Mb),
        }
    }

    async fn measure(&mut self, stack: &Stack, thief: &TokenThief) -> Result<(), Failure> {
        let vitals = Vitals::watch(stack.base(), stack.process_id()?);
        let log_before = stack.printed_bytes();
        let hostile = match self.phase.command {
            Some(command) => Some(hostile_job(stack, thief, command).await?),
            None => None,
        };
        let until = Instant::now() + Duration::from_secs(SECONDS);
        while Instant::now() < until {
            self.jobs.add(victims_job(stack).await);
        }
        if let Some(job) = hostile {
            // However it ends: what it does to itself is its own.
            stack.events_as(User::Hostile, job).await?.until(is_final).await?;
        }
        let readings = vitals.end();
        for taken in &readings.health {
            self.health.add(Ok(taken.as_secs_f64() * 1_000.0));
        }
        for _ in 0..readings.health_failures {
            self.health.add(Err("no answer".into()));
        }
        self.memory.add(Ok(whole(readings.memory_growth_mb())));
        self.log.add(Ok(whole(stack.printed_bytes() - log_before) / 1e6));
        Ok(())
    }
}

/// A short job from the request to its end.
async fn victims_job(stack: &Stack) -> Result<f64, Failure> {
    let started = Instant::now();
    let job = stack.create("bench: shell", None).await?;
    stack.events(job).await?.until(is_final).await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

/// The other user's job; its command has begun.
async fn hostile_job(stack: &Stack, thief: &TokenThief, command: &str) -> Result<JobId, Failure> {
    let file = |(path, content): (&str, &str)| InputFile {
        path: path.to_owned(),
        content: Some(content.to_owned()),
        content_base64: None,
    };
    let job = stack.create_hostile(&format!("bench: run {command}"), [FLOOD, FILES].map(file).to_vec()).await?;
    let workspace = stack.workspace(job);
    tokio::task::block_in_place(|| thief.hand_over(&job.to_string(), &workspace))?;
    let started = async {
        while !workspace.join(STARTED).exists() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(START_PATIENCE, started).await.map_err(|_| format!("{command} did not begin"))?;
    Ok(job)
}

fn whole(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}
