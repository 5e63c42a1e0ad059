//! `glob` and `grep`: searches in a supervised process, so that hostile files cannot hang the worker or exhaust its
//! memory.
//!
//! Owns the search process: its request, its response (in bounded memory), and its end on a timeout, on a stop and with
//! the job. Never reads a file of the workspace.

use std::{io, path::PathBuf, process::Command, sync::Arc, time::Duration};

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolDefinition, ToolErrorKind};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use super::{
    file_tool::TOOL_TIMEOUT_SECONDS,
    launch::{LaunchError, Launcher},
};
use crate::{
    search::{MAX_RESPONSE_BYTES, SUBCOMMAND, SearchKind, SearchRequest, SearchResult},
    supervisor::{CallProcesses, ExitStatus, OWN_PROGRAM, supervised_command},
};

/// The `glob` or `grep` tool.
pub(crate) struct Search {
    /// The kind of search.
    pub(crate) kind: SearchKind,
    /// The definition that the model sees.
    pub(crate) definition: ToolDefinition,
    /// The path of the workspace.
    pub(crate) workspace: PathBuf,
    /// Starts the search process.
    pub(crate) launcher: Arc<Launcher>,
}

impl Tool for Search {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            approval: agent::container_tool_requirement(&self.definition.name),
            ..ToolSpec::new(self.definition.clone(), Duration::from_secs(TOOL_TIMEOUT_SECONDS))
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { arguments, stop, .. } = invocation;
            tokio::select! {
                biased;
                // Dropping the search ends its process.
                () = stop.cancelled() => Err(ToolError::new(ToolErrorKind::Failed, "stopped before it finished")),
                found = self.search(arguments) => {
                    found.map(ToolOutput::success)
                }
            }
        })
    }
}

struct Pipes {
    request: pipe::Sender,
    response: pipe::Receiver,
}

impl Search {
    async fn search(&self, arguments: Value) -> Result<String, ToolError> {
        let request = SearchRequest { kind: self.kind, workspace: self.workspace.clone(), arguments };
        let request = serde_json::to_vec(&request).map_err(|error| LaunchError::Spawn(error.into()))?;
        let before = self.launcher.limits.counters();
        let (mut process, pipes) = self.launcher.launch(prepare).await?;
        let (response, status) = exchange(&mut process, pipes, &request).await.map_err(LaunchError::Spawn)?;
        if status.is_success()
            && let Ok(result) = serde_json::from_slice::<SearchResult>(&response)
        {
            // A search starts no processes, so nothing is left to kill.
            process.detach();
            return result.map_err(ToolError);
        }
        let hit = self.launcher.limits.hit_by(&process, before, Some(status));
        process.end();
        self.launcher.limits.record(&hit).await;
        let notes = self.launcher.limits.notes(&hit);
        let message = format!("the search ended without a result: {}\n{notes}", reason(status));
        Err(ToolError::new(ToolErrorKind::Failed, message.trim_end()))
    }
}

fn prepare() -> io::Result<(Command, Pipes)> {
    let (stdin, request) = io::pipe()?;
    let (response, stdout) = io::pipe()?;
    let mut command = supervised_command(OWN_PROGRAM);
    command.arg(SUBCOMMAND).env_clear().current_dir("/").stdin(stdin).stdout(stdout);
    let pipes = Pipes {
        request: pipe::Sender::from_owned_fd(request.into())?,
        response: pipe::Receiver::from_owned_fd(response.into())?,
    };
    Ok((command, pipes))
}

/// Sends the request and reads the response.
async fn exchange(process: &mut CallProcesses, pipes: Pipes, request: &[u8]) -> io::Result<(Vec<u8>, ExitStatus)> {
    let Pipes { request: mut stdin, response: stdout } = pipes;
    // A search that exits early breaks the pipe. Its exit status is the more useful error.
    let _ = stdin.write_all(request).await;
    drop(stdin);
    let mut response = Vec::new();
    stdout.take(MAX_RESPONSE_BYTES as u64).read_to_end(&mut response).await?;
    Ok((response, process.wait().await?))
}

fn reason(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(0) => "invalid response".to_owned(),
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal(signal) => format!("killed by signal {signal}; use a narrower search"),
    }
}
