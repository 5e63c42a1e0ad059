//! What a job's model is offered: the worker's own tools that the job may use, and the orchestrator's.

use std::sync::Arc;

use agent::Tool;
use protocol::{JobAssignment, ToolDomain};
use tokio_util::task::TaskTracker;

use super::{
    file_tool::{FileTool, FileToolKind},
    files::{LIST_DIR, READ_FILE, WRITE_FILE},
    launch::Launcher,
    patch::APPLY_PATCH,
    remote::RemoteTool,
    search::Search,
    shell::Shell,
    workspace::Workspace,
};
use crate::{client::OrchestratorClient, environment::ShellEnvironment, search::SearchKind, stop::StopSwitch};

const FILE_TOOLS: [FileToolKind; 4] = [READ_FILE, WRITE_FILE, LIST_DIR, APPLY_PATCH];

/// All that tools work with.
pub(crate) struct Workbench {
    /// The files.
    pub(crate) workspace: Arc<Workspace>,
    /// What a command sees.
    pub(crate) shell: ShellEnvironment,
    /// Starts commands and searches.
    pub(crate) launcher: Arc<Launcher>,
    /// The orchestrator, for its tools.
    pub(crate) client: Arc<OrchestratorClient>,
    /// The session's.
    pub(crate) stop: StopSwitch,
}

/// One tool for each definition that the job brings: made here where the domain is the container's, else asked for
/// over the socket. The list narrows and never grants: what is not in it is not offered, and a container tool that this
/// worker does not have is left out.
pub(crate) fn offer(assignment: &JobAssignment, bench: &Workbench) -> Vec<Box<dyn Tool>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    for definition in &assignment.tools {
        match definition.domain {
            ToolDomain::Orchestrator => tools.push(Box::new(RemoteTool {
                definition: definition.clone(),
                client: Arc::clone(&bench.client),
                stop: bench.stop.clone(),
            })),
            ToolDomain::Container => {
                if let Some(tool) = container_tool(&definition.name, bench) {
                    tools.push(tool);
                } else {
                    tracing::warn!(tool.name = definition.name, "this worker has no such tool");
                }
            }
        }
    }
    tools
}

fn container_tool(name: &str, bench: &Workbench) -> Option<Box<dyn Tool>> {
    let definition = agent::container_tool(name)?;
    let search = |kind, definition| Search {
        kind,
        definition,
        workspace: bench.workspace.given_root().to_owned(),
        launcher: Arc::clone(&bench.launcher),
    };
    match name {
        "shell" => Some(Box::new(Shell {
            definition,
            workspace: Arc::clone(&bench.workspace),
            environment: bench.shell.clone(),
            launcher: Arc::clone(&bench.launcher),
            drains: TaskTracker::new(),
        })),
        "glob" => Some(Box::new(search(SearchKind::Glob, definition))),
        "grep" => Some(Box::new(search(SearchKind::Grep, definition))),
        _ => {
            let kind = FILE_TOOLS.into_iter().find(|kind| kind.name == name)?;
            Some(Box::new(FileTool { kind, definition, workspace: Arc::clone(&bench.workspace) }))
        }
    }
}
