//! `gantry-worker run -- PROGRAM [ARGUMENT…]`: the supervisor process of one tool call.
//!
//! Owns starting the command, adopting and reaping its descendants, and reporting how it ended. It lives for as long as
//! it has descendants. It holds no secret and ends nothing: the worker does that, so a supervisor that its own command
//! stopped or killed protects nothing. Never allocates by what a command does and never reads from one.
//!
//! Standard input and output are the command's; standard error is the stream that the reports are written to.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::process::CommandExt,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    process::{DumpableBehavior, Pid, WaitOptions, getpid, set_child_subreaper, set_dumpable_behavior, setsid, wait},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::report::{ExitStatus, SupervisorReport};

/// The highest `oom_score_adj`: the kernel kills such a process before any other.
const FIRST_TO_BE_KILLED: &str = "1000";
/// The first descriptor that is not one of the standard streams.
const FIRST_FREE_DESCRIPTOR: i32 = 3;

/// The supervisor cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// There is no command to run.
    #[error("usage: gantry-worker run -- PROGRAM [ARGUMENT…]")]
    NoCommand,
    /// A system call failed.
    #[error("the supervisor cannot be set up")]
    System(#[from] io::Error),
}

/// Runs a command and returns when the last of its descendants has ended.
pub fn run(command: &[&str]) -> Result<(), SupervisorError> {
    let [program, arguments @ ..] = command else { return Err(SupervisorError::NoCommand) };
    let reports = File::from(fcntl_dupfd_cloexec(io::stderr(), FIRST_FREE_DESCRIPTOR).map_err(io::Error::from)?);
    dup2_stderr(io::stdout()).map_err(io::Error::from)?;
    // A session of its own also marks the call's processes where the kernel has no subreapers.
    setsid().map_err(io::Error::from)?;
    let is_subreaper = set_child_subreaper(Some(getpid())).is_ok();
    // A command that signals every process it can (`kill -TERM -1`) does not mean its supervisor. Unlike an ignored
    // signal, a handled one is back to its default in the command.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let _ = be_killed_first();
    let command = Command::new(program).args(arguments).process_group(0).spawn();
    // The command alone holds its streams, so that their readers see when it closes them.
    dup2_stdin(&reports)
        .and_then(|()| dup2_stdout(&reports))
        .and_then(|()| dup2_stderr(&reports))
        .map_err(io::Error::from)?;
    match command {
        Ok(command) => {
            send(&reports, SupervisorReport::Started { is_subreaper });
            reap_all(&reports, i32::try_from(command.id()).ok().and_then(Pid::from_raw));
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            send(&reports, SupervisorReport::NotStarted { errno });
        }
    }
    Ok(())
}

/// Makes the kernel kill this process, and the descendants that inherit it, before the worker when memory runs out.
/// Best effort: where it is refused the kernel chooses by itself.
fn be_killed_first() -> io::Result<()> {
    // The files of a process that is not dumpable belong to root, its own `oom_score_adj` too.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let written = fs::write("/proc/self/oom_score_adj", FIRST_TO_BE_KILLED);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    written
}

fn reap_all(reports: &File, command: Option<Pid>) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == command => {
                if let Some(status) = ExitStatus::of(status) {
                    send(reports, SupervisorReport::Ended(status));
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            // No descendant is left.
            Err(_) => return,
        }
    }
}

/// A worker that has stopped listening is no reason to leave processes unreaped.
fn send(mut reports: &File, report: SupervisorReport) {
    if let Ok(mut line) = serde_json::to_vec(&report) {
        line.push(b'\n');
        let _ = reports.write_all(&line);
    }
}
