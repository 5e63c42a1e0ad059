//! `shell`: a command in the workspace, with its output as a terminal would show it.
//!
//! Owns the command's life: its time, its output within bounded memory, and every process that comes of it. Never
//! passes on the worker's own environment.

use std::{
    io,
    path::Path,
    pin::pin,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{ApprovalRequirement, BoxFuture, Invocation, Journal, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{Limits, ToolErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    process::{Child, Command},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    capture::Capture,
    file_tool::{definition, parsed},
    workspace::Workspace,
};
use crate::{
    cgroup::{Cgroup, Counters, Pressure},
    environment::ShellEnvironment,
    journal::EventQueue,
    processes::{CallProcesses, MARK, Processes},
    stop::{StopCause, StopSwitch},
};

const DEFAULT_TIMEOUT_SECONDS: u64 = 120;
const MOST_TIMEOUT_SECONDS: u64 = 3_600;
/// How long output is still read once the command itself has ended, when something it left behind could write more.
const PIPE_GRACE_MS: u64 = 300;
const READ_BYTES: usize = 64 * 1024;
const SPAWN_TRIES: u32 = 6;
const SPAWN_PAUSE_MS: u64 = 100;
/// A container short of memory ends a command before it ends the worker.
const OOM_SCORE_ADJUSTMENT: &str = "1000";

/// The tool.
pub(crate) struct Shell {
    /// Where commands start.
    pub(crate) workspace: Arc<Workspace>,
    /// What they see.
    pub(crate) environment: ShellEnvironment,
    /// What they leave behind.
    pub(crate) processes: Arc<Processes>,
    /// What they ran into.
    pub(crate) pressure: PressureGauge,
    /// Thrown when none can be started any more.
    pub(crate) stop: StopSwitch,
    /// Background processes' output, read to nowhere so that writing does not end them.
    pub(crate) drains: TaskTracker,
}

/// The container's limits: what they are, how often they were hit, and where that is told.
pub(crate) struct PressureGauge {
    /// The counters.
    pub(crate) cgroup: Cgroup,
    /// The values.
    pub(crate) limits: Limits,
    /// Where a limit event goes.
    pub(crate) journal: EventQueue,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout_seconds: Option<u64>,
    workdir: Option<String>,
}

impl Tool for Shell {
    fn spec(&self) -> ToolSpec {
        let parameters = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "description": "run by bash -c"},
                "timeout_seconds": {"type": "integer", "minimum": 1, "maximum": MOST_TIMEOUT_SECONDS, "description": "120 when left out"},
                "workdir": {"type": "string", "description": "folder to start in; the workspace when left out"}
            },
            "required": ["command"],
            "additionalProperties": false
        });
        let description = "Runs a command with bash in the workspace. Gives its output, standard error included, and \
                           its exit code. There is no network and no terminal; a process left in the background lives on.";
        ToolSpec {
            definition: definition("shell", description, parameters),
            // The command's own limit comes first; this one is for ending its processes.
            timeout: Duration::from_secs(MOST_TIMEOUT_SECONDS + 60),
            sensitive: &[],
            parallel: true,
        }
    }

    fn approval(&self, _: &Value) -> ApprovalRequirement {
        ApprovalRequirement::UnlessAutoApproved
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let arguments: Arguments = parsed(invocation.arguments)?;
            let folder = self.workspace.folder(arguments.workdir.as_deref().unwrap_or_default())?;
            self.run(&arguments, &folder, &invocation.stop).await
        })
    }
}

/// How a call ended.
enum End {
    Exited(ExitStatus, Pipe),
    TimedOut,
    Stopped,
}

/// Whether something still holds the output's other end.
enum Pipe {
    Closed,
    Open,
}

impl Shell {
    async fn run(
        &self,
        arguments: &Arguments,
        folder: &Path,
        stop: &CancellationToken,
    ) -> Result<ToolOutput, ToolError> {
        let before = self.pressure.cgroup.counters();
        let mut running = self.start(&arguments.command, folder).await?;
        let timeout_seconds = arguments.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS).min(MOST_TIMEOUT_SECONDS);
        let mut capture = Capture::default();
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Stopped,
            () = tokio::time::sleep(Duration::from_secs(timeout_seconds)) => End::TimedOut,
            exited = follow(&mut running.child, &mut running.output, &mut capture) => {
                let (status, pipe) = exited.map_err(|error| broken(&error))?;
                End::Exited(status, pipe)
            }
        };
        let hit = self.pressure.hit_since(before).await;
        match end {
            End::Exited(_, Pipe::Open) if !hit.contains(&Pressure::Pids) => self.leave_running(running),
            End::Exited(_, Pipe::Closed) if !hit.contains(&Pressure::Pids) => running.left.keep(),
            _ => running.left.end().await,
        }
        let mut text = capture.into_text();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        for pressure in &hit {
            text.push_str(&pressure.note(&self.pressure.limits));
            text.push('\n');
        }
        match end {
            End::Exited(status, _) => {
                let success = status.success() && hit.is_empty();
                let text = format!("{text}[exit {}]", exit_code(status));
                Ok(ToolOutput { content: Value::String(text), success })
            }
            End::TimedOut => {
                let told = format!(
                    "not done after {timeout_seconds} s; all its processes were killed; its output so far:\n{text}"
                );
                Err(ToolError::new(ToolErrorKind::Timeout, told.trim_end()))
            }
            End::Stopped => Err(ToolError::new(ToolErrorKind::Failed, "stopped before it was done")),
        }
    }

    /// Starts it. A container that is out of processes gets a moment, then loses what earlier calls left behind.
    async fn start(&self, command: &str, folder: &Path) -> Result<Running, ToolError> {
        for again in 1..=SPAWN_TRIES {
            match self.spawn(command, folder) {
                Ok(running) => return Ok(running),
                Err(error) if is_exhausted(&error) => {
                    tracing::warn!(again, "no process can be started");
                    if again == 1 {
                        // A closed journal means that the session is over; the loop hears it elsewhere.
                        let _ = self.pressure.journal.record(Pressure::Pids.event(&self.pressure.limits)).await;
                    } else {
                        self.processes.end_all();
                    }
                    tokio::time::sleep(Duration::from_millis(SPAWN_PAUSE_MS)).await;
                }
                Err(error) => return Err(broken(&error)),
            }
        }
        self.stop.stop(StopCause::PidsExhausted);
        Err(ToolError::new(
            ToolErrorKind::Sandbox,
            "no process can be started any more: the sandbox's limit is reached",
        ))
    }

    fn spawn(&self, command: &str, folder: &Path) -> io::Result<Running> {
        let (output, input) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(output.into())?;
        let spawned = self.processes.start(|mark| {
            let mut bash = Command::new("bash");
            bash.arg("-c").arg(command).current_dir(folder).process_group(0).kill_on_drop(true);
            bash.env_clear().env("HOME", &self.environment.home).env("PATH", &self.environment.path);
            bash.env("LANG", &self.environment.lang).env("PWD", folder).env("TERM", "dumb").env(MARK, mark);
            bash.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
            let child = bash.spawn()?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
            Ok::<_, io::Error>((child, pid))
        });
        let (child, call) = spawned?;
        if let Some(pid) = child.id() {
            // Best effort: a system that refuses it chooses by itself.
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE_ADJUSTMENT);
        }
        let left = LeftBehind { processes: Arc::clone(&self.processes), call: Some(call) };
        Ok(Running { child, output, left })
    }

    fn leave_running(&self, running: Running) {
        let Running { mut output, left, .. } = running;
        left.keep();
        self.drains.spawn(async move {
            let mut nowhere = vec![0; READ_BYTES];
            while output.read(&mut nowhere).await.is_ok_and(|length| length > 0) {}
        });
    }
}

impl PressureGauge {
    async fn hit_since(&self, before: Counters) -> Vec<Pressure> {
        let hit = self.cgroup.counters().since(before);
        for pressure in &hit {
            // As above: a closed journal is heard of elsewhere.
            let _ = self.journal.record(pressure.event(&self.limits)).await;
        }
        hit
    }
}

/// A command under way. Dropped before its end, it takes its processes along.
struct Running {
    child: Child,
    output: pipe::Receiver,
    left: LeftBehind,
}

/// The processes of one call: ended on drop, unless they are kept.
struct LeftBehind {
    processes: Arc<Processes>,
    call: Option<CallProcesses>,
}

impl LeftBehind {
    fn keep(mut self) {
        if let Some(call) = self.call.take() {
            self.processes.collected(&call);
        }
    }

    async fn end(mut self) {
        if let Some(call) = self.call.take() {
            let processes = Arc::clone(&self.processes);
            let ended = tokio::task::spawn_blocking(move || {
                processes.end_call(&call);
                processes.collected(&call);
            });
            if ended.await.is_err() {
                tracing::warn!("the ending of a call's processes broke down");
            }
        }
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.processes.end_call(&call);
            self.processes.collected(&call);
        }
    }
}

/// Reads until the command has ended and its output with it, or a moment later when something holds on to that.
async fn follow(
    child: &mut Child,
    output: &mut pipe::Receiver,
    capture: &mut Capture,
) -> io::Result<(ExitStatus, Pipe)> {
    let mut buffer = vec![0; READ_BYTES];
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            length = output.read(&mut buffer) => match length? {
                0 => return Ok((child.wait().await?, Pipe::Closed)),
                length => capture.take(&buffer[..length]),
            },
        }
    };
    let mut grace = pin!(tokio::time::sleep(Duration::from_millis(PIPE_GRACE_MS)));
    loop {
        tokio::select! {
            biased;
            () = &mut grace => return Ok((status, Pipe::Open)),
            length = output.read(&mut buffer) => match length? {
                0 => return Ok((status, Pipe::Closed)),
                length => capture.take(&buffer[..length]),
            },
        }
    }
}

/// As bash tells it: the code, or 128 and the signal.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}

fn broken(error: &io::Error) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("the command could not be run: {error}"))
}
