//! `glob` and `grep`: searches in a process of their own, which hostile files may hang or fill without harm.
//!
//! Owns the search process's life: its request, its answer within bounded memory, and its end on a timeout, on a stop and
//! with the job. Never reads a file of the workspace.

use std::{
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolDefinition, ToolErrorKind};
use rustix::process::WaitStatus;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use super::{
    file_tool::TOOL_TIMEOUT_SECONDS,
    launch::{Launcher, not_run},
};
use crate::{
    cgroup::Pressure,
    processes::CallProcesses,
    search::{MAX_ANSWER_BYTES, SUBCOMMAND, SearchKind, SearchRequest, SearchResult},
};

/// This program, also where its file cannot be read and where another one took its place.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// One of the two tools.
pub(crate) struct Search {
    /// Which.
    pub(crate) kind: SearchKind,
    /// As the model sees it.
    pub(crate) definition: ToolDefinition,
    /// The workspace, as the environment names it.
    pub(crate) workspace: PathBuf,
    /// Starts the search process.
    pub(crate) launcher: Arc<Launcher>,
}

impl Tool for Search {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            definition: self.definition.clone(),
            timeout: Duration::from_secs(TOOL_TIMEOUT_SECONDS),
            sensitive: Vec::new(),
            parallel: true,
        }
    }

    fn approval(&self, _: &Value) -> ApprovalRequirement {
        ApprovalRequirement::Never
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { arguments, stop, .. } = invocation;
            tokio::select! {
                biased;
                // Dropping the search ends its process.
                () = stop.cancelled() => Err(ToolError::new(ToolErrorKind::Failed, "stopped before it was done")),
                found = self.search(arguments) => {
                    found.map(|text| ToolOutput::success(text))
                }
            }
        })
    }
}

struct Pipes {
    request: pipe::Sender,
    answer: pipe::Receiver,
}

impl Search {
    async fn search(&self, arguments: Value) -> Result<String, ToolError> {
        let request = SearchRequest { kind: self.kind, workspace: self.workspace.clone(), arguments };
        let request = serde_json::to_vec(&request).map_err(|error| not_run(&error.into()))?;
        let before = self.launcher.limits.counters();
        let (mut process, pipes) = self.launcher.launch(prepare).await?;
        let (answer, status) = converse(&mut process, pipes, &request).await.map_err(|error| not_run(&error))?;
        if status.exit_status() == Some(0)
            && let Ok(result) = serde_json::from_slice::<SearchResult>(&answer)
        {
            return result.map_err(ToolError);
        }
        let hit = self.launcher.limits.hit_since(before);
        let memory: Vec<_> = hit.into_iter().filter(|pressure| *pressure == Pressure::Memory).collect();
        self.launcher.limits.report(&memory).await;
        let notes = self.launcher.limits.notes(&memory);
        let message = format!("the search ended without a result{}\n{notes}", how(status));
        Err(ToolError::new(ToolErrorKind::Failed, message.trim_end()))
    }
}

fn prepare() -> io::Result<(Command, Pipes)> {
    let (stdin, request) = io::pipe()?;
    let (answer, stdout) = io::pipe()?;
    let mut command = Command::new(OWN_PROGRAM);
    command.arg(SUBCOMMAND).env_clear().current_dir("/").process_group(0);
    command.stdin(stdin).stdout(stdout).stderr(Stdio::null());
    let pipes = Pipes {
        request: pipe::Sender::from_owned_fd(request.into())?,
        answer: pipe::Receiver::from_owned_fd(answer.into())?,
    };
    Ok((command, pipes))
}

async fn converse(process: &mut CallProcesses, pipes: Pipes, request: &[u8]) -> io::Result<(Vec<u8>, WaitStatus)> {
    let Pipes { request: mut stdin, answer: stdout } = pipes;
    // A search that dies early leaves a broken pipe; its status says more.
    let _ = stdin.write_all(request).await;
    drop(stdin);
    let mut answer = Vec::new();
    stdout.take(MAX_ANSWER_BYTES as u64).read_to_end(&mut answer).await?;
    Ok((answer, process.wait().await?))
}

fn how(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => ": its answer is not readable".to_owned(),
        (Some(code), _) => format!(": it failed with exit code {code}"),
        (None, Some(signal)) => format!(": it was ended by signal {signal}; search for something narrower"),
        (None, None) => String::new(),
    }
}
