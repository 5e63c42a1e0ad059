//! `shell`: a command in the workspace, with its output as a terminal would show it.
//!
//! Owns the command's life: its time, its output within bounded memory, and every process that comes of it. Never
//! passes on the worker's own environment.

use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    pin::pin,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{
    ApprovalRequirement, BoxFuture, Invocation, MAX_SHELL_TIMEOUT_SECONDS, Tool, ToolError, ToolOutput, ToolSpec,
};
use protocol::{ToolDefinition, ToolErrorKind};
use rustix::process::WaitStatus;
use serde::Deserialize;
use serde_json::Value;
use tokio::{io::AsyncReadExt, net::unix::pipe};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    capture::Capture,
    file_tool::parsed,
    launch::{Launcher, not_run},
    workspace::Workspace,
};
use crate::{cgroup::Pressure, environment::ShellEnvironment, oom::make_expendable, processes::CallProcesses};

const DEFAULT_TIMEOUT_SECONDS: u64 = 120;

/// How long output is still read once the command itself has ended, when something it left behind could write more.
const PIPE_GRACE_MS: u64 = 300;
const READ_BYTES: usize = 64 * 1024;

/// The tool.
pub(crate) struct Shell {
    /// As the model sees it.
    pub(crate) definition: ToolDefinition,
    /// Where commands start.
    pub(crate) workspace: Arc<Workspace>,
    /// What they see.
    pub(crate) environment: ShellEnvironment,
    /// Starts them.
    pub(crate) launcher: Arc<Launcher>,
    /// Background processes' output, read to nowhere so that writing does not end them.
    pub(crate) drains: TaskTracker,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout_seconds: Option<u64>,
    workdir: Option<String>,
}

impl Tool for Shell {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            definition: self.definition.clone(),
            // The command's own limit comes first; this one is for ending its processes.
            timeout: Duration::from_secs(MAX_SHELL_TIMEOUT_SECONDS + 60),
            sensitive: Vec::new(),
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
    Exited(WaitStatus, Pipe),
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
        let before = self.launcher.limits.counters();
        let (mut call, mut output) = self.launcher.launch(|| self.prepare(&arguments.command, folder)).await?;
        let timeout_seconds =
            arguments.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS).min(MAX_SHELL_TIMEOUT_SECONDS);
        let mut capture = Capture::default();
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Stopped,
            () = tokio::time::sleep(Duration::from_secs(timeout_seconds)) => End::TimedOut,
            exited = follow(&mut call, &mut output, &mut capture) => {
                let (status, pipe) = exited.map_err(|error| not_run(&error))?;
                End::Exited(status, pipe)
            }
        };
        let hit = self.launcher.limits.hit_since(before);
        // Before anything that may wait: nothing of a call that is over may run on because the worker is busy.
        match end {
            End::Exited(_, Pipe::Open) if !hit.contains(&Pressure::Pids) => {
                call.keep();
                self.drain(output);
            }
            End::Exited(_, Pipe::Closed) if !hit.contains(&Pressure::Pids) => call.keep(),
            _ => call.end(),
        }
        self.launcher.limits.report(&hit).await;
        let mut text = capture.into_text();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&self.launcher.limits.notes(&hit));
        match end {
            End::Exited(status, _) => {
                let success = status.exit_status() == Some(0) && hit.is_empty();
                let text = format!("{text}[exit {}]", exit_code(status));
                Ok(ToolOutput { success, ..ToolOutput::success(text) })
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

    fn prepare(&self, command: &str, folder: &Path) -> io::Result<(Command, pipe::Receiver)> {
        let (output, input) = io::pipe()?;
        let mut bash = Command::new("bash");
        bash.arg("-c").arg(command).current_dir(folder).process_group(0);
        bash.env_clear().env("HOME", &self.environment.home).env("PATH", &self.environment.path);
        bash.env("LANG", &self.environment.lang).env("PWD", folder).env("TERM", "dumb");
        bash.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
        Ok((bash, pipe::Receiver::from_owned_fd(output.into())?))
    }

    fn drain(&self, mut output: pipe::Receiver) {
        self.drains.spawn(async move {
            let mut nowhere = vec![0; READ_BYTES];
            while output.read(&mut nowhere).await.is_ok_and(|length| length > 0) {}
        });
    }
}

/// Reads until the command has ended and its output with it, or a moment later when something holds on to that.
async fn follow(
    call: &mut CallProcesses,
    output: &mut pipe::Receiver,
    capture: &mut Capture,
) -> io::Result<(WaitStatus, Pipe)> {
    make_expendable(call.leader()).await;
    let mut buffer = vec![0; READ_BYTES];
    let status = loop {
        tokio::select! {
            status = call.wait() => break status?,
            length = output.read(&mut buffer) => match length? {
                0 => return Ok((call.wait().await?, Pipe::Closed)),
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
fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
