//! `shell`: a command in the workspace, with its output as a terminal would show it.
//!
//! Owns the command's life: its time, its output within bounded memory, and every process that comes of it. Never
//! passes on the worker's own environment.

use std::{
    io,
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
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{capture::Capture, file_tool::parsed, launch::Launcher, workspace::Workspace};
use crate::{
    environment::ShellEnvironment,
    supervisor::{CallProcesses, ExitStatus, supervised_command},
};

const DEFAULT_TIMEOUT_SECONDS: u64 = 120;

/// How long output is still read once the command itself has ended, when something it left behind could write more.
const PIPE_GRACE: Duration = Duration::from_millis(300);
const READ_BYTES: usize = 64 * 1024;
/// Between two reads of what a background process writes, so that one that writes without end takes no CPU of the worker's.
const DISCARD_PAUSE: Duration = Duration::from_millis(10);

/// The tool.
pub(crate) struct Shell {
    /// The definition that the model sees.
    pub(crate) definition: ToolDefinition,
    /// The folder in which commands start.
    pub(crate) workspace: Arc<Workspace>,
    /// Their environment.
    pub(crate) environment: ShellEnvironment,
    /// Starts commands.
    pub(crate) launcher: Arc<Launcher>,
    /// Tasks that read and discard the output of background processes, which a closed pipe would kill.
    pub(crate) output_sinks: TaskTracker,
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
    Exited(ExitStatus, Pipe),
    /// Its supervisor was killed, by a command that signalled it.
    Lost(io::Error),
    TimedOut,
    Stopped,
}

impl End {
    const fn status(&self) -> Option<ExitStatus> {
        match self {
            Self::Exited(status, _) => Some(*status),
            Self::Lost(_) | Self::TimedOut | Self::Stopped => None,
        }
    }
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
        let limits = &self.launcher.limits;
        let before = limits.counters();
        let timeout_seconds =
            arguments.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS).min(MAX_SHELL_TIMEOUT_SECONDS);
        let deadline = Instant::now() + Duration::from_secs(timeout_seconds);
        // A command may stop its supervisor before that has reported the start.
        let launched = timeout_at(deadline, self.launcher.launch(|| self.prepare(&arguments.command, folder)));
        let (mut call, mut output) = launched.await.map_err(|_| timeout_error(timeout_seconds, ""))??;
        let mut capture = Capture::default();
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Stopped,
            () = sleep_until(deadline) => End::TimedOut,
            exited = follow(&mut call, &mut output, &mut capture) => match exited {
                Ok((status, pipe)) => End::Exited(status, pipe),
                Err(error) => End::Lost(error),
            },
            never = limits.watch() => match never {},
        };
        let hit = limits.hit_by(&call, before, end.status());
        // Before anything that may wait: nothing of a call that is over may run on because the worker is busy.
        match end {
            End::Exited(_, Pipe::Open) if !hit.must_end() => {
                call.keep();
                self.discard(output);
            }
            End::Exited(_, Pipe::Closed) if !hit.must_end() => call.keep(),
            _ => call.end(),
        }
        limits.record(&hit).await;
        let mut text = capture.into_text();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&limits.notes(&hit));
        match end {
            End::Exited(status, _) => {
                let success = status.is_success() && !hit.is_to_blame();
                let text = format!("{text}[exit {}]", status.shell_code());
                Ok(ToolOutput { success, ..ToolOutput::success(text) })
            }
            End::Lost(error) => {
                let message = format!("{error}, and so were all processes of the call; its output so far:\n{text}");
                Err(ToolError::new(ToolErrorKind::Failed, message.trim_end()))
            }
            End::TimedOut => Err(timeout_error(timeout_seconds, &text)),
            End::Stopped => Err(ToolError::new(ToolErrorKind::Failed, "stopped before it was done")),
        }
    }

    fn prepare(&self, command: &str, folder: &Path) -> io::Result<(Command, pipe::Receiver)> {
        let (output, input) = io::pipe()?;
        let mut bash = supervised_command("bash");
        bash.arg("-c").arg(command).current_dir(folder);
        bash.env_clear().env("HOME", &self.environment.home).env("PATH", &self.environment.path);
        bash.env("LANG", &self.environment.lang).env("PWD", folder).env("TERM", "dumb");
        bash.stdin(Stdio::null()).stdout(input);
        Ok((bash, pipe::Receiver::from_owned_fd(output.into())?))
    }

    fn discard(&self, mut output: pipe::Receiver) {
        self.output_sinks.spawn(async move {
            let mut chunk = vec![0; READ_BYTES];
            while output.read(&mut chunk).await.is_ok_and(|length| length > 0) {
                sleep(DISCARD_PAUSE).await;
            }
        });
    }
}

fn timeout_error(timeout_seconds: u64, output: &str) -> ToolError {
    let message =
        format!("not done after {timeout_seconds} s; all its processes were killed; its output so far:\n{output}");
    ToolError::new(ToolErrorKind::Timeout, message.trim_end())
}

/// Reads until the command has ended and its output with it, or a moment later when something holds on to that.
async fn follow(
    call: &mut CallProcesses,
    output: &mut pipe::Receiver,
    capture: &mut Capture,
) -> io::Result<(ExitStatus, Pipe)> {
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
    let mut grace = pin!(sleep(PIPE_GRACE));
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
