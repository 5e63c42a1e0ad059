//! Starts commands of tool calls under a supervisor.
//!
//! Owns what happens when the pids limit is reached. Never decides what a command does or how long it takes.

use std::{io, process::Command, sync::Arc, time::Duration};

use agent::ToolError;
use protocol::ToolErrorKind;
use rustix::io::Errno;

use super::limits::LimitMonitor;
use crate::{
    session::stop::{StopCause, StopSwitch},
    supervisor::{CallProcesses, Processes},
};

const MAX_SPAWN_ATTEMPTS: u32 = 6;
const SPAWN_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Starts commands.
pub(crate) struct Launcher {
    /// The registry of running calls.
    pub(crate) processes: Arc<Processes>,
    /// Records reached limits.
    pub(crate) limits: LimitMonitor,
    /// Stops the session when no process can be started.
    pub(crate) stop: StopSwitch,
}

/// Why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The container's pids limit is reached.
    #[error(
        "the command could not be started: the sandbox's limit of {limit} processes is reached{}",
        if *others_running { " by commands that are still running; wait for them to finish" } else { "" }
    )]
    PidsExhausted {
        /// The limit.
        limit: u32,
        /// Other calls are running and may free processes.
        others_running: bool,
    },
    /// A system call failed.
    #[error("the command could not be started: {0}")]
    Spawn(#[from] io::Error),
}

impl From<LaunchError> for ToolError {
    fn from(error: LaunchError) -> Self {
        let kind = match error {
            LaunchError::PidsExhausted { .. } => ToolErrorKind::Sandbox,
            LaunchError::Spawn(_) => ToolErrorKind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

impl Launcher {
    /// Starts the supervised command that `prepare` returns, together with this process's ends of its pipes. At the
    /// pids limit the start is retried after background processes of earlier calls have been killed. If it still fails
    /// and no other call is running, the session is stopped.
    pub(crate) async fn launch<P>(
        &self,
        prepare: impl Fn() -> io::Result<(Command, P)>,
    ) -> Result<(CallProcesses, P), LaunchError> {
        for attempt in 1..=MAX_SPAWN_ATTEMPTS {
            match self.spawn(&prepare).await {
                Ok(started) => return Ok(started),
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(attempt, error = &error as &dyn std::error::Error, "no process can be started");
                    if attempt == 1 {
                        self.limits.record_pids_exhausted().await;
                    } else {
                        self.processes.end_background_processes();
                    }
                    tokio::time::sleep(SPAWN_RETRY_DELAY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let others_running = self.processes.other_calls_running();
        if !others_running {
            self.stop.stop(StopCause::PidsExhausted);
        }
        Err(LaunchError::PidsExhausted { limit: self.limits.limits.pids, others_running })
    }

    async fn spawn<P>(&self, prepare: impl Fn() -> io::Result<(Command, P)>) -> io::Result<(CallProcesses, P)> {
        let (command, pipes) = prepare()?;
        let mut call = self.processes.start(command)?;
        call.started().await?;
        Ok((call, pipes))
    }
}

/// Whether `fork` or `clone` failed because of the pids limit (`EAGAIN`) or for lack of memory (`ENOMEM`).
fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::AGAIN | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, path::Path, time::Instant};

    use protocol::{JobId, Limits};
    use rstest::rstest;

    use super::*;
    use crate::{
        cgroup::Cgroup,
        client::{Identity, OrchestratorClient},
        journal::{EventPump, journal},
        session::secret::SessionSecret,
    };

    fn launcher() -> (Launcher, EventPump) {
        let (session, stop) = (SessionSecret::generate().unwrap(), StopSwitch::default());
        let identity = Identity { job_id: JobId::nil(), token: "token", session: &session, traceparent: None };
        let client = OrchestratorClient::new(Path::new("/nonexistent"), &identity, stop.clone()).unwrap();
        let (queue, pump) = journal(Arc::new(client));
        let processes = Arc::new(Processes::default());
        let limits = Limits { pids: 64, ..Limits::default() };
        let limits = LimitMonitor::new(Cgroup::at("/nonexistent"), limits, queue, Arc::clone(&processes));
        (Launcher { processes, limits, stop }, pump)
    }

    async fn failed_launch(launcher: &Launcher, errno: Errno) -> (ToolError, u32) {
        let attempts = Cell::new(0);
        let result = launcher.launch::<()>(|| {
            attempts.set(attempts.get() + 1);
            Err(errno.into())
        });
        (result.await.unwrap_err().into(), attempts.get())
    }

    #[tokio::test(start_paused = true)]
    async fn an_exhausted_pids_limit_is_retried_and_then_named_to_the_model() {
        let (launcher, _pump) = launcher();
        let (ToolError(failure), attempts) = failed_launch(&launcher, Errno::AGAIN).await;
        assert_eq!((failure.kind, attempts), (ToolErrorKind::Sandbox, MAX_SPAWN_ATTEMPTS));
        assert_eq!(failure.message, "the command could not be started: the sandbox's limit of 64 processes is reached");
        assert_eq!(launcher.stop.cause(), Some(StopCause::PidsExhausted));
    }

    #[rstest]
    #[case::missing_program(Errno::NOENT)]
    #[case::missing_permission(Errno::PERM)]
    #[tokio::test(start_paused = true)]
    async fn another_error_is_reported_at_once_and_the_session_continues(#[case] errno: Errno) {
        let (launcher, _pump) = launcher();
        let (ToolError(failure), attempts) = failed_launch(&launcher, errno).await;
        assert_eq!((failure.kind, attempts), (ToolErrorKind::Failed, 1));
        assert_eq!(launcher.stop.cause(), None);
    }

    /// Whether a process has this argument.
    fn is_running(argument: &str) -> bool {
        let has = |line: Vec<u8>| line.split(|byte| *byte == 0).any(|one| one == argument.as_bytes());
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        processes.map(|entry| entry.path().join("cmdline")).any(|line| std::fs::read(line).is_ok_and(has))
    }

    #[tokio::test(start_paused = true)]
    async fn an_exhausted_pids_limit_ends_returned_calls_and_spares_running_ones() {
        let (launcher, _pump) = launcher();
        let sleep = |seconds| {
            let mut command = Command::new("sleep");
            command.arg(seconds);
            launcher.processes.start(command).unwrap()
        };
        let running = sleep("7541");
        sleep("7542").detach();
        let until = |what: &str, condition: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_mins(1);
            while !condition() {
                assert!(Instant::now() < deadline, "{what}");
                std::thread::yield_now();
            }
        };
        // A new process has its command line some time after it was started.
        until("both commands run", &|| is_running("7541") && is_running("7542"));
        let (ToolError(failure), _) = failed_launch(&launcher, Errno::AGAIN).await;
        assert!(failure.message.ends_with("wait for them to finish"), "{}", failure.message);
        assert_eq!(launcher.stop.cause(), None);
        // A killed process is in the list until the kernel has torn it down.
        until("the background process is gone", &|| !is_running("7542"));
        assert!(is_running("7541"));
        running.end();
    }
}
