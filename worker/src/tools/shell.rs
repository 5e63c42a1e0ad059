//! `shell`: runs a command in the workspace and returns its output as a terminal would show it.
//!
//! Owns the command's timeout, its output (in bounded memory, and streamed while it runs) and all its processes. Never
//! passes on the worker's own environment.

use std::{
    io,
    path::Path,
    pin::pin,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{BoxFuture, Invocation, MAX_SHELL_TIMEOUT_SECONDS, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolDefinition, ToolErrorKind};
use serde::Deserialize;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    capture::Capture,
    file_tool::parse_arguments,
    launch::Launcher,
    output_stream::{OutputStream, StreamBudget},
    workspace::Workspace,
};
use crate::{
    environment::ShellEnvironment,
    journal::EventQueue,
    supervisor::{CallProcesses, ExitStatus, supervised_command},
};

const DEFAULT_TIMEOUT_SECONDS: u64 = 120;

/// How long output is read after the command has exited while a background process holds the pipe open.
const PIPE_GRACE: Duration = Duration::from_millis(300);
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Delay between two reads of a background process's output, so that endless output costs the worker little CPU.
const DISCARD_INTERVAL: Duration = Duration::from_millis(10);

/// The `shell` tool.
pub(crate) struct Shell {
    /// The definition that the model sees.
    pub(crate) definition: ToolDefinition,
    /// The directory in which commands start.
    pub(crate) workspace: Arc<Workspace>,
    /// The environment of commands.
    pub(crate) environment: ShellEnvironment,
    /// Starts commands.
    pub(crate) launcher: Arc<Launcher>,
    /// Takes the output of running commands.
    pub(crate) journal: EventQueue,
    /// The output that may still be streamed.
    pub(crate) stream_budget: Arc<StreamBudget>,
    /// Tasks that read and discard the output of background processes: a closed pipe would kill them with SIGPIPE.
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
        // The command's own timeout is shorter. The margin is for killing its processes.
        let timeout = Duration::from_secs(MAX_SHELL_TIMEOUT_SECONDS + 60);
        ToolSpec {
            approval: agent::container_tool_requirement(&self.definition.name),
            ..ToolSpec::new(self.definition.clone(), timeout)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let arguments: Arguments = parse_arguments(invocation.arguments)?;
            let directory = self.workspace.directory(arguments.workdir.as_deref().unwrap_or_default())?;
            let stream = OutputStream::new(self.journal.clone(), invocation.call_id, Arc::clone(&self.stream_budget));
            self.run(&arguments, &directory, stream, &invocation.stop).await
        })
    }
}

/// How a command ended.
enum CommandEnd {
    Exited(ExitStatus, OutputPipe),
    /// Its supervisor was killed.
    SupervisorKilled(io::Error),
    TimedOut,
    Stopped,
}

impl CommandEnd {
    const fn status(&self) -> Option<ExitStatus> {
        match self {
            Self::Exited(status, _) => Some(*status),
            Self::SupervisorKilled(_) | Self::TimedOut | Self::Stopped => None,
        }
    }
}

/// Whether a process still holds the write end of the output pipe.
enum OutputPipe {
    Closed,
    Open,
}

impl Shell {
    async fn run(
        &self,
        arguments: &Arguments,
        directory: &Path,
        stream: OutputStream,
        stop: &CancellationToken,
    ) -> Result<ToolOutput, ToolError> {
        let limits = &self.launcher.limits;
        let before = limits.counters();
        let timeout_seconds =
            arguments.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS).min(MAX_SHELL_TIMEOUT_SECONDS);
        let deadline = Instant::now() + Duration::from_secs(timeout_seconds);
        // The deadline covers the launch too: a command may stop its supervisor before the supervisor reports the
        // start.
        let launched = timeout_at(deadline, self.launcher.launch(|| self.prepare(&arguments.command, directory)));
        let (mut call, mut output) = launched.await.map_err(|_| timeout_error(timeout_seconds, ""))??;
        let mut read = OutputReader { capture: Capture::default(), stream };
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => CommandEnd::Stopped,
            () = sleep_until(deadline) => CommandEnd::TimedOut,
            exited = follow(&mut call, &mut output, &mut read) => match exited {
                Ok((status, pipe)) => CommandEnd::Exited(status, pipe),
                Err(error) => CommandEnd::SupervisorKilled(error),
            },
            never = limits.watch() => match never {},
        };
        let hit = limits.hit_by(&call, before, end.status());
        // Kill before anything that may wait, so that no process outlives its call because the worker is busy.
        match end {
            CommandEnd::Exited(_, OutputPipe::Open) if !hit.must_end_call() => {
                call.detach();
                self.discard(output);
            }
            CommandEnd::Exited(_, OutputPipe::Closed) if !hit.must_end_call() => call.detach(),
            _ => call.end(),
        }
        limits.record(&hit).await;
        if !matches!(end, CommandEnd::Stopped) {
            read.stream.finish().await;
        }
        let mut text = read.capture.into_text();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&limits.notes(&hit));
        match end {
            CommandEnd::Exited(status, _) => {
                let success = status.is_success() && !hit.is_responsible();
                let text = format!("{text}[exit {}]", status.shell_code());
                Ok(ToolOutput { success, ..ToolOutput::success(text) })
            }
            CommandEnd::SupervisorKilled(error) => {
                let message = format!("{error}; all processes of the call were killed; output so far:\n{text}");
                Err(ToolError::new(ToolErrorKind::Failed, message.trim_end()))
            }
            CommandEnd::TimedOut => Err(timeout_error(timeout_seconds, &text)),
            CommandEnd::Stopped => Err(ToolError::new(ToolErrorKind::Failed, "stopped before it finished")),
        }
    }

    fn prepare(&self, command: &str, directory: &Path) -> io::Result<(Command, pipe::Receiver)> {
        let (output, input) = io::pipe()?;
        let mut bash = supervised_command("bash");
        bash.arg("-c").arg(command).current_dir(directory);
        bash.env_clear().env("HOME", &self.environment.home).env("PATH", &self.environment.path);
        bash.env("LANG", &self.environment.lang).env("PWD", directory).env("TERM", "dumb");
        bash.envs(self.environment.egress_variables());
        bash.stdin(Stdio::null()).stdout(input);
        Ok((bash, pipe::Receiver::from_owned_fd(output.into())?))
    }

    fn discard(&self, mut output: pipe::Receiver) {
        self.output_sinks.spawn(async move {
            let mut chunk = vec![0; READ_BUFFER_BYTES];
            while output.read(&mut chunk).await.is_ok_and(|length| length > 0) {
                sleep(DISCARD_INTERVAL).await;
            }
        });
    }
}

fn timeout_error(timeout_seconds: u64, output: &str) -> ToolError {
    let message =
        format!("timed out after {timeout_seconds} s; all its processes were killed; output so far:\n{output}");
    ToolError::new(ToolErrorKind::Timeout, message.trim_end())
}

/// What is done with the output of a command.
struct OutputReader {
    /// For the result.
    capture: Capture,
    /// For those who follow the job.
    stream: OutputStream,
}

impl OutputReader {
    fn take(&mut self, chunk: &[u8]) {
        self.capture.take(chunk);
        self.stream.push(chunk);
    }
}

/// Reads output until the command has exited and the pipe is closed, or until [`PIPE_GRACE`] after the exit.
async fn follow(
    call: &mut CallProcesses,
    output: &mut pipe::Receiver,
    read: &mut OutputReader,
) -> io::Result<(ExitStatus, OutputPipe)> {
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let status = loop {
        tokio::select! {
            status = call.wait() => break status?,
            length = output.read(&mut buffer) => match length? {
                0 => tokio::select! {
                    status = call.wait() => return Ok((status?, OutputPipe::Closed)),
                    never = read.stream.send_pieces() => match never {},
                },
                length => read.take(&buffer[..length]),
            },
            never = read.stream.send_pieces() => match never {},
        }
    };
    let mut grace = pin!(sleep(PIPE_GRACE));
    loop {
        tokio::select! {
            biased;
            () = &mut grace => return Ok((status, OutputPipe::Open)),
            length = output.read(&mut buffer) => match length? {
                0 => return Ok((status, OutputPipe::Closed)),
                length => read.take(&buffer[..length]),
            },
        }
    }
}
