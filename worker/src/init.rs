//! The tiny init: process 1 of a container that brings none. It runs this same program again as the real worker,
//! passes signals on, reaps whoever is orphaned, and ends as its child ended.
//!
//! Never talks to the orchestrator and never decides anything about the job.

use std::{
    io,
    process::{Command, ExitCode},
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, waitpid};
use signal_hook::{
    consts::{SIGCHLD, SIGINT, SIGTERM},
    iterator::Signals,
};

/// Whether this process has to be the container's init.
pub fn is_process_one() -> bool {
    getpid().is_init()
}

/// Runs `arguments` of this same program as a child until it ends.
///
/// Where this is not process 1 it adopts orphans all the same, so that it does there what it does as process 1.
pub fn run(arguments: &[&str]) -> io::Result<ExitCode> {
    if !is_process_one() {
        set_child_subreaper(Some(getpid()))?;
    }
    // Before the child starts, so that no signal and no death goes unseen.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    let child = Command::new("/proc/self/exe").args(arguments).spawn()?;
    let child = Pid::from_child(&child);
    for signal in signals.forever() {
        match signal {
            // The child may have ended this moment: then its status is collected next.
            SIGTERM => drop(kill_process(child, Signal::TERM)),
            SIGINT => drop(kill_process(child, Signal::INT)),
            _ => {
                if let Some(status) = reap(child)? {
                    return Ok(exit_code(status));
                }
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Collects every dead process; the child's status when it was among them.
fn reap(child: Pid) -> io::Result<Option<WaitStatus>> {
    let mut ended = None;
    loop {
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => ended = Some(status),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(ended),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a shell would make of it: the code, or 128 and the signal.
fn exit_code(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
