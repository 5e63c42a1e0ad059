//! `gantry-worker`: the process in the container. Dispatches subcommands and maps the end of a session to an exit code:
//! 0 reported, 1 error, 3 the attempt was over, 4 the orchestrator was lost.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use worker::{Environment, SessionEnd};

const USAGE: &str = "usage: gantry-worker [probe | search | run -- PROGRAM [ARGUMENT…] | --version]";
/// Threads for file tools. Everything else runs on one thread.
const BLOCKING_THREADS: usize = 4;
/// Idle threads are kept: at the pids limit no new thread could be started.
const THREAD_KEEP_ALIVE_SECONDS: u64 = 7 * 24 * 3600;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // Must come first: commands run as the same user and must not read this process's memory or its open files.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // `run` and `search` do not log: their standard error is a report stream or part of a tool's output.
    if !matches!(arguments.as_slice(), ["run" | "search", ..]) {
        tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_max_level(tracing::Level::INFO).init();
    }
    let ended = match arguments.as_slice() {
        _ if hidden.is_err() => Err("cannot make the process non-dumpable".into()),
        [] => session(),
        ["run", "--", command @ ..] => {
            worker::run_supervised(command).map(|()| ExitCode::SUCCESS).map_err(Failure::from)
        }
        ["search"] => worker::run_search().map(|()| ExitCode::SUCCESS).map_err(Failure::from),
        ["probe"] => probe(),
        ["--version" | "-V"] => version().map_err(Failure::from),
        _ => Err(USAGE.into()),
    };
    ended.unwrap_or_else(|error| {
        tracing::error!(error = error.as_ref(), "the worker failed");
        ExitCode::FAILURE
    })
}

fn version() -> io::Result<ExitCode> {
    writeln!(io::stdout(), "gantry-worker {}", env!("CARGO_PKG_VERSION"))?;
    Ok(ExitCode::SUCCESS)
}

fn probe() -> Result<ExitCode, Failure> {
    let socket = Environment::socket()?;
    runtime()?.block_on(worker::probe(&socket))?;
    Ok(ExitCode::SUCCESS)
}

fn session() -> Result<ExitCode, Failure> {
    let environment = Environment::read()?;
    // A write beyond the file size limit must fail with EFBIG instead of killing the worker.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let runtime = runtime()?;
    let end = runtime.block_on(async {
        tokio::task::spawn_blocking(|| ()).await?;
        worker::run_session(&environment).await.map_err(Failure::from)
    });
    // Do not wait for file tools that are still running.
    runtime.shutdown_background();
    Ok(match end? {
        SessionEnd::Reported => ExitCode::SUCCESS,
        SessionEnd::AttemptEnded => ExitCode::from(3),
        SessionEnd::OrchestratorUnreachable => ExitCode::from(4),
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(Duration::from_secs(THREAD_KEEP_ALIVE_SECONDS))
        .build()
}
