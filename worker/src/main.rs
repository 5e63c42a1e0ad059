//! `gantry-worker`: the process in the container. Says which part of the worker runs, and turns its end into an exit
//! code: 0 reported, 1 broken, 3 the attempt was over, 4 the orchestrator was lost.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use worker::{Environment, SessionEnd};

const USAGE: &str = "usage: gantry-worker [probe | search | run -- PROGRAM [ARGUMENT…] | --version]";
/// File tools, beside the one thread that everything else runs on.
const BLOCKING_THREADS: usize = 4;
/// A thread that idles is kept: in a container that is out of processes no new one would start.
const THREAD_KEEP_ALIVE_SECONDS: u64 = 7 * 24 * 3600;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    // First of all: no command that runs as the same user may look into this process or write to what it has open.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Of a call's own processes only the output matters, and their standard error is taken: they have no log.
    if !matches!(arguments.as_slice(), ["run" | "search", ..]) {
        tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_max_level(tracing::Level::INFO).init();
    }
    let ended = match arguments.as_slice() {
        _ if hidden.is_err() => Err("the kernel does not let this process be hidden from others".into()),
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
        tracing::error!(error = error.as_ref(), "the worker ends");
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
    // A write over the workspace's size limit is an error to tell, not the worker's end.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let runtime = runtime()?;
    let end = runtime.block_on(async {
        tokio::task::spawn_blocking(|| ()).await?;
        worker::run_session(&environment).await.map_err(Failure::from)
    });
    // A file tool that is still at work must not hold up the end.
    runtime.shutdown_background();
    Ok(match end? {
        SessionEnd::Reported => ExitCode::SUCCESS,
        SessionEnd::AttemptOver => ExitCode::from(3),
        SessionEnd::OrchestratorLost => ExitCode::from(4),
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(Duration::from_secs(THREAD_KEEP_ALIVE_SECONDS))
        .build()
}
