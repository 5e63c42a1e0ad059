//! The start of a tool call's command under its supervisor.
//!
//! Owns what happens when no process can be started any more. Never decides what a command does or how long it takes.

use std::{io, process::Command, sync::Arc, time::Duration};

use agent::ToolError;
use protocol::ToolErrorKind;

use super::limits::LimitMonitor;
use crate::{
    stop::{StopCause, StopSwitch},
    supervisor::{CallProcesses, Processes},
};

const SPAWN_TRIES: u32 = 6;
const SPAWN_PAUSE: Duration = Duration::from_millis(100);

/// Starts commands.
pub(crate) struct Launcher {
    /// The calls' processes.
    pub(crate) processes: Arc<Processes>,
    /// The limits that they run into.
    pub(crate) limits: LimitMonitor,
    /// Thrown when no process can be started any more.
    pub(crate) stop: StopSwitch,
}

impl Launcher {
    /// Starts what `prepare` gives: a supervised command, and what this process keeps of its pipes. A container that is
    /// out of processes gets a moment, then loses what earlier calls left behind.
    pub(crate) async fn launch<P>(
        &self,
        prepare: impl Fn() -> io::Result<(Command, P)>,
    ) -> Result<(CallProcesses, P), ToolError> {
        for again in 1..=SPAWN_TRIES {
            match self.spawn(&prepare).await {
                Ok(started) => return Ok(started),
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(again, "no process can be started");
                    if again == 1 {
                        self.limits.record_no_process().await;
                    } else {
                        self.processes.end_left_behind();
                    }
                    tokio::time::sleep(SPAWN_PAUSE).await;
                }
                Err(error) => return Err(spawn_error(&error)),
            }
        }
        let limit = self.limits.max_pids();
        if self.processes.others_run() {
            let message = format!(
                "no process can be started: the sandbox's limit of {limit} processes is reached by commands that still run"
            );
            return Err(ToolError::new(ToolErrorKind::Sandbox, message));
        }
        self.stop.stop(StopCause::PidsExhausted);
        let message =
            format!("no process can be started any more: the sandbox's limit of {limit} processes is reached");
        Err(ToolError::new(ToolErrorKind::Sandbox, message))
    }

    async fn spawn<P>(&self, prepare: impl Fn() -> io::Result<(Command, P)>) -> io::Result<(CallProcesses, P)> {
        let (command, pipes) = prepare()?;
        let mut call = self.processes.start(command)?;
        call.started().await?;
        Ok((call, pipes))
    }
}

/// An error of the system, for the model.
pub(crate) fn spawn_error(error: &io::Error) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("the command could not be run: {error}"))
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}
