//! The start of a tool call's process, and the container's limits that it runs into.
//!
//! Owns what happens when no process can be started any more. Never decides what a process does or how long it takes.

use std::{io, process::Command, sync::Arc, time::Duration};

use agent::{Journal, ToolError};
use protocol::{Limits, ToolErrorKind};

use crate::{
    cgroup::{Cgroup, Counters, Pressure},
    journal::EventQueue,
    processes::{CallProcesses, MARK, Processes},
    stop::{StopCause, StopSwitch},
};

const SPAWN_TRIES: u32 = 6;
const SPAWN_PAUSE_MS: u64 = 100;

/// Starts processes.
pub(crate) struct Launcher {
    /// Where they are registered.
    pub(crate) processes: Arc<Processes>,
    /// What they run into.
    pub(crate) limits: LimitMonitor,
    /// Thrown when none can be started any more.
    pub(crate) stop: StopSwitch,
}

impl Launcher {
    /// Starts what `prepare` gives: a command, and what this process keeps of its pipes. A container that is out of
    /// processes gets a moment, then loses what earlier calls left behind.
    pub(crate) async fn launch<P>(
        &self,
        prepare: impl Fn() -> io::Result<(Command, P)>,
    ) -> Result<(CallProcesses, P), ToolError> {
        for again in 1..=SPAWN_TRIES {
            match self.spawn(&prepare) {
                Ok(started) => return Ok(started),
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(again, "no process can be started");
                    if again == 1 {
                        self.limits.report(&[Pressure::Pids]).await;
                    } else {
                        self.processes.end_all();
                    }
                    tokio::time::sleep(Duration::from_millis(SPAWN_PAUSE_MS)).await;
                }
                Err(error) => return Err(not_run(&error)),
            }
        }
        self.stop.stop(StopCause::PidsExhausted);
        Err(ToolError::new(
            ToolErrorKind::Sandbox,
            "no process can be started any more: the sandbox's limit is reached",
        ))
    }

    fn spawn<P>(&self, prepare: impl Fn() -> io::Result<(Command, P)>) -> io::Result<(CallProcesses, P)> {
        let (mut command, pipes) = prepare()?;
        let call = self.processes.start(|mark| command.env(MARK, mark).spawn())?;
        Ok((call, pipes))
    }
}

/// The container's limits: what they are, how often they were hit, and where that is told.
pub(crate) struct LimitMonitor {
    /// The counters.
    pub(crate) cgroup: Cgroup,
    /// The values.
    pub(crate) limits: Limits,
    /// Where a limit event goes.
    pub(crate) journal: EventQueue,
}

impl LimitMonitor {
    /// As they are now.
    pub(crate) fn counters(&self) -> Counters {
        self.cgroup.counters()
    }

    /// The limits that were hit since `before`.
    pub(crate) fn hit_since(&self, before: Counters) -> Vec<Pressure> {
        self.counters().since(before)
    }

    /// Records an event for each. May wait for the journal to have room.
    pub(crate) async fn report(&self, hit: &[Pressure]) {
        for pressure in hit {
            // A closed journal means that the session is over; the loop hears it elsewhere.
            let _ = self.journal.record(pressure.event(&self.limits)).await;
        }
    }

    /// What the model is told, one line each.
    pub(crate) fn notes(&self, hit: &[Pressure]) -> String {
        let mut notes = String::new();
        for pressure in hit {
            notes.push_str(&pressure.note(&self.limits));
            notes.push('\n');
        }
        notes
    }
}

/// What an error of the system is to the model.
pub(crate) fn not_run(error: &io::Error) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("the command could not be run: {error}"))
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}
