//! `gantry-worker run -- PROGRAM [ARGUMENT…]`: the supervisor process of one tool call.
//!
//! Owns starting the command, adopting and reaping its descendants, and reporting how it ended. It runs until its last
//! descendant has exited. It holds no secret and kills nothing: the worker ends processes, so a command gains nothing
//! by stopping or killing its supervisor. Memory use does not depend on the command, and nothing is read from it.
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

/// The highest `oom_score_adj`: the kernel's OOM killer picks such a process first.
const MAX_OOM_SCORE_ADJ: &str = "1000";
/// The lowest file descriptor that is not a standard stream.
const FIRST_NON_STANDARD_FD: i32 = 3;

/// Why a supervisor could not run its command.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// No command was given.
    #[error("usage: gantry-worker run -- PROGRAM [ARGUMENT…]")]
    NoCommand,
    /// A system call failed.
    #[error("the supervisor cannot be set up")]
    System(#[from] io::Error),
}

/// Runs a command and returns when the last of its descendants has ended.
pub fn run(command: &[&str]) -> Result<(), SupervisorError> {
    let [program, arguments @ ..] = command else { return Err(SupervisorError::NoCommand) };
    let reports = File::from(fcntl_dupfd_cloexec(io::stderr(), FIRST_NON_STANDARD_FD).map_err(io::Error::from)?);
    dup2_stderr(io::stdout()).map_err(io::Error::from)?;
    // Where the kernel has no subreapers, the separate session identifies the call's processes.
    setsid().map_err(io::Error::from)?;
    let is_subreaper = set_child_subreaper(Some(getpid())).is_ok();
    // The supervisor must survive a command that signals every process it can (`kill -TERM -1`). The signals are
    // handled rather than ignored because an ignored disposition would be inherited by the command.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let _ = raise_oom_score();
    let command = Command::new(program).args(arguments).process_group(0).spawn();
    // Only the command may hold its streams, so that their readers see end-of-file when it closes them.
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

/// Makes the OOM killer pick this process, and the descendants that inherit the score, before the worker. Best effort:
/// where the write is refused, the kernel's default choice applies.
fn raise_oom_score() -> io::Result<()> {
    // The `/proc` files of a process that is not dumpable are owned by root, including its own `oom_score_adj`.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let written = fs::write("/proc/self/oom_score_adj", MAX_OOM_SCORE_ADJ);
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

/// Errors are ignored: the supervisor must continue to reap when the worker no longer reads.
fn send(mut reports: &File, report: SupervisorReport) {
    if let Ok(mut line) = serde_json::to_vec(&report) {
        line.push(b'\n');
        let _ = reports.write_all(&line);
    }
}
