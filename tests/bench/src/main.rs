//! Benchmarks: programs that print both sides of a comparison, measured in one run on one machine.
//!
//! Owns the command line and the sequence: start a stack, run one program, stop the stack, report. Never judges: a
//! missed target is a line in the table, and a failed sample is counted. It is an error only in a smoke run.

mod clock;
mod containers;
mod database;
mod installation;
mod programs;
mod report;
mod simulated_worker;
mod stack;
mod stand_in_engine;
mod upstream;

use std::{
    io::{self, Write},
    path::{Path, PathBuf, absolute},
    pin::{Pin, pin},
    process::ExitCode,
    time::Instant,
};

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    containers::DestroyEvents,
    installation::{Installation, Settings},
    programs::{Bench, scale},
    report::{Report, comparison},
    stack::{READY_TIMEOUT, Stack},
    stand_in_engine::StandInEngine,
    upstream::Upstream,
};

/// Why nothing could be measured. The text is enough: a person reads it.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Concurrent jobs, unless a program needs more.
const PARALLEL_JOBS: u32 = 5;
const MAX_PARALLEL_JOBS: u32 = 1000;
const MAX_MINUTES: i64 = 7 * 24 * 60;
/// Rounds of a comparison of two builds.
const ROUNDS: usize = 3;

/// Measures Gantry against a baseline, or against another build of it, and prints a table.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Arguments {
    /// Benchmarks to run, by default all
    #[arg(value_name = "NAME")]
    names: Vec<Program>,
    /// Number of runs; for footprint, live jobs; for soak, concurrent jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARALLEL_JOBS)))]
    runs: Option<u32>,
    /// Duration of soak, in minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=MAX_MINUTES))]
    minutes: u32,
    /// Path of the gantry program [default: next to this program]
    #[arg(long, value_name = "PATH")]
    gantry: Option<PathBuf>,
    /// Path of another gantry program, such as one of an older commit; both are measured in turns, three times
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Only prove that the benchmarks run: a small size, no figures, and a failed attempt is an error
    #[arg(long)]
    smoke: bool,
    /// Job image for both sides
    #[arg(long, default_value = "gantry-worker:latest")]
    image: String,
    /// Size of the database of scale, 0.001 to 1
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = thousandths)]
    scale: u32,
    /// Database of scale, made if it does not exist and kept [default: one that is deleted]
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Also write the reports, with every sample, to this file as a JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The programs; `docs/speed.md` explains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    /// From the request to the worker's first model call, against `docker run`
    JobStart,
    /// From the end, or the cancel request, until the container is gone, against `docker rm -f`
    JobEnd,
    /// 100 jobs at once, eight at a time, against as many `docker run`
    JobBurst,
    /// One tool turn of the agent loop, against a bare round trip on its socket
    Loop,
    /// Model calls through the gateway, against the provider directly
    Gateway,
    /// Memory and size, against an agent runtime in Python
    Footprint,
    /// Events of 100 jobs to 100 readers, against `SQLite`'s own inserts
    Events,
    /// 10 000 events to a resuming client, against reading the rows
    Replay,
    /// Two reads of the API with 100 000 stored jobs, against a handler that returns the same bytes
    Api,
    /// One user's jobs and the server's health while another user's job floods, against the same without a flood
    Contain,
    /// Searches in 10 000 documents of a user's memory, against the full-text index alone
    Memory,
    /// Calls of an orchestrator tool through the executor, against round trips on the same socket
    ToolCall,
    /// Turns of chat threads, against the provider directly
    Chat,
    /// 100 000 stored routines, 1 000 due each second, against tokio-cron-scheduler
    Routines,
    /// A database with 1,000,000 jobs, and 1,000 jobs at work, without an engine
    Scale,
    /// Memory over many short jobs
    Soak,
}

impl Program {
    const fn default_runs(self, smoke: bool) -> u32 {
        match self {
            Self::Soak if smoke => 2,
            _ if smoke => 1,
            Self::JobStart | Self::JobEnd => 30,
            Self::Loop | Self::Replay | Self::Api | Self::ToolCall => 10,
            Self::JobBurst | Self::Events | Self::Contain | Self::Gateway | Self::Chat => 3,
            Self::Soak => 4,
            Self::Routines => 1,
            Self::Footprint | Self::Memory => 50,
            Self::Scale => 100,
        }
    }

    /// How many jobs the stack runs concurrently.
    fn parallel_jobs(self, runs: u32, thousandths: u32) -> u32 {
        match self {
            Self::JobBurst => programs::job_burst::AT_ONCE,
            Self::Events => programs::events::JOBS,
            Self::Gateway => programs::gateway::JOBS,
            Self::Scale => scale::live_jobs(thousandths),
            _ => runs.max(PARALLEL_JOBS),
        }
    }

    /// Whether its jobs have containers of a real engine.
    const fn needs_engine(self) -> bool {
        !matches!(self, Self::Scale)
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    async fn run(self, bench: &mut Bench) -> Result<(), Failure> {
        match self {
            Self::JobStart => programs::job_start::run(bench).await,
            Self::JobEnd => programs::job_end::run(bench).await,
            Self::Loop => programs::agent_loop::run(bench).await,
            Self::Gateway => programs::gateway::run(bench).await,
            Self::Footprint => programs::footprint::run(bench).await,
            Self::JobBurst => programs::job_burst::run(bench).await,
            Self::Events => programs::events::run(bench).await,
            Self::Replay => programs::replay::run(bench).await,
            Self::Api => programs::api::run(bench).await,
            Self::Contain => programs::contain::run(bench).await,
            Self::Memory => programs::memory::run(bench).await,
            Self::ToolCall => programs::tool_call::run(bench).await,
            Self::Chat => programs::chat::run(bench).await,
            Self::Routines => programs::routines::run(bench).await,
            Self::Scale => scale::run(bench).await,
            Self::Soak => programs::soak::run(bench).await,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Writing fails when standard error is closed; there is no other place to report it.
            let _ = writeln!(io::stderr(), "bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut interrupted = pin!(asked_to_end()?);
    let programs = if arguments.names.is_empty() { Program::value_variants() } else { &arguments.names };
    // The process runs in another directory, so the paths must be absolute.
    let mut gantries = vec![match &arguments.gantry {
        Some(path) => absolute(path)?,
        None => std::env::current_exe()?.with_file_name("gantry"),
    }];
    let mut rounds = 1;
    if let Some(path) = &arguments.against {
        gantries.push(absolute(path)?);
        rounds = ROUNDS;
    }
    let mut all = Vec::new();
    for program in programs {
        let (name, started) = (program.name(), Instant::now());
        let mut reports = Vec::new();
        for gantry in std::iter::repeat_n(&gantries, rounds).flatten() {
            let measured = measure(*program, gantry, arguments, interrupted.as_mut()).await;
            let measured =
                measured.and_then(|report| if arguments.smoke { report.require_success() } else { Ok(report) });
            reports.push(measured.map_err(|failure| format!("{name}: {}", chain(&*failure)))?);
        }
        let text = match &reports[..] {
            [_] if arguments.smoke => format!("{name}: ok, {:.1} s", started.elapsed().as_secs_f64()),
            [report] => report.table(),
            reports => comparison::table(reports),
        };
        writeln!(io::stdout(), "{text}")?;
        all.extend(reports);
        if let Some(path) = &arguments.json {
            std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
        }
    }
    Ok(())
}

async fn measure(
    program: Program,
    gantry: &Path,
    arguments: &Arguments,
    mut interrupted: Pin<&mut impl Future<Output = ()>>,
) -> Result<Report, Failure> {
    // An interrupt ends the measurement; cleaning up still runs.
    let started = tokio::select! {
        started = start(program, gantry, arguments) => started,
        () = interrupted.as_mut() => Err(Failure::from("interrupted")),
    };
    let mut bench = started?;
    let ran = tokio::select! {
        ran = program.run(&mut bench) => ran,
        () = interrupted => Err(Failure::from("interrupted")),
    };
    let stopped = bench.stack.stop().await;
    ran.and(stopped)?;
    Ok(bench.report)
}

/// Starts what a program needs.
async fn start(program: Program, gantry: &Path, arguments: &Arguments) -> Result<Bench, Failure> {
    let (minutes, smoke) = (arguments.minutes, arguments.smoke);
    let runs = arguments.runs.unwrap_or(program.default_runs(smoke));
    let thousandths = if smoke { scale::SMOKE } else { arguments.scale };
    let mut report = Report::new(program.name(), runs, gantry)?;
    let (mut engine, mut destroyed) = (None, None);
    if program.needs_engine() {
        containers::require_image(&arguments.image).await?;
        destroyed = Some(DestroyEvents::watch().await?);
    } else {
        engine = Some(StandInEngine::start()?);
    }
    let upstream = match program {
        Program::Gateway | Program::Loop | Program::Chat | Program::Scale => Some(Upstream::start().await?),
        _ => None,
    };
    let installation = Installation::new(Settings {
        gantry: gantry.to_owned(),
        image: arguments.image.clone(),
        max_parallel_jobs: program.parallel_jobs(runs, thousandths),
        provider_url: upstream.as_ref().map(|upstream| upstream.base_url().to_owned()),
        engine: engine.as_ref().map(|engine| engine.address().to_owned()),
    })?;
    let server = if program == Program::Scale {
        scale::start(&installation, &mut report, (thousandths, arguments.database.as_deref())).await?
    } else {
        let mut server = installation.serve()?;
        server.listening(READY_TIMEOUT).await?;
        server
    };
    let stack = Stack::new(installation, server).await?;
    Ok(Bench { stack, upstream, destroyed, report, runs, minutes, smoke, _engine: engine })
}

/// An error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Completes at the first signal to end since this call.
fn asked_to_end() -> Result<impl Future<Output = ()>, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A factor of a size, in thousandths.
fn thousandths(text: &str) -> Result<u32, String> {
    let error = || format!("must be from 0.001 to 1, not {text}");
    let factor: f64 = text.parse().map_err(|_| error())?;
    (1..=scale::FULL)
        .find(|part| f64::from(*part) >= factor * f64::from(scale::FULL) - 0.5)
        .filter(|_| factor > 0.0)
        .ok_or_else(error)
}
