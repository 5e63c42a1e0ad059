//! Builds a job's tools: the worker's own tools and, as remote tools, the orchestrator's.

use std::sync::Arc;

use agent::{ApprovalContext, Tool, ToolContext, ToolPolicy};
use protocol::{JobAssignment, ToolDomain, UserId, WorkId};
use tokio_util::task::TaskTracker;

use super::{
    file_tool::{FileTool, FileToolKind},
    files::{LIST_DIR, READ_FILE, WRITE_FILE},
    launch::Launcher,
    output_stream::StreamBudget,
    patch::APPLY_PATCH,
    remote::RemoteTool,
    search::Search,
    shell::Shell,
    workspace::Workspace,
};
use crate::{client::OrchestratorClient, environment::ShellEnvironment, journal::EventQueue, search::SearchKind};

const FILE_TOOLS: [FileToolKind; 4] = [READ_FILE, WRITE_FILE, LIST_DIR, APPLY_PATCH];

/// The dependencies of tools.
pub(crate) struct ToolDeps {
    /// The workspace of the file tools.
    pub(crate) workspace: Arc<Workspace>,
    /// The environment of commands.
    pub(crate) shell: ShellEnvironment,
    /// Starts commands and searches.
    pub(crate) launcher: Arc<Launcher>,
    /// Takes the output of running commands.
    pub(crate) journal: EventQueue,
    /// Sends the calls of remote tools.
    pub(crate) client: Arc<OrchestratorClient>,
}

/// The context of every call in this worker: one job, without a person who could approve. The orchestrator checks
/// approvals, quotas and the owner's permissions for the calls that it runs; a worker does not know the owner.
pub(crate) fn context(assignment: &JobAssignment) -> ToolContext {
    ToolContext {
        owner: UserId::default(),
        work: WorkId::Job(assignment.job_id),
        approval: ApprovalContext::Autonomous { levels: vec![assignment.approve.iter().cloned().collect()] },
        policy: ToolPolicy::default(),
        only: None,
        egress: assignment.egress.clone(),
        max_children: assignment.limits.max_children,
    }
}

/// Builds one tool for each of the job's definitions: container tools run here, orchestrator tools are called over the
/// socket. Tools that are not in the list are not offered. Container tools that this worker does not have are skipped.
pub(crate) fn build_tools(assignment: &JobAssignment, deps: &ToolDeps) -> Vec<Box<dyn Tool>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    for definition in &assignment.tools {
        match definition.domain {
            ToolDomain::Orchestrator => {
                tools.push(Box::new(RemoteTool { definition: definition.clone(), client: Arc::clone(&deps.client) }));
            }
            ToolDomain::Container => {
                if let Some(tool) = container_tool(&definition.name, deps) {
                    tools.push(tool);
                } else {
                    tracing::warn!(tool.name = definition.name, "unknown container tool");
                }
            }
        }
    }
    tools
}

fn container_tool(name: &str, deps: &ToolDeps) -> Option<Box<dyn Tool>> {
    let definition = agent::container_tool(name)?;
    let search = |kind, definition| Search {
        kind,
        definition,
        workspace: deps.workspace.given_root.clone(),
        launcher: Arc::clone(&deps.launcher),
    };
    match name {
        "shell" => Some(Box::new(Shell {
            definition,
            workspace: Arc::clone(&deps.workspace),
            environment: deps.shell.clone(),
            launcher: Arc::clone(&deps.launcher),
            journal: deps.journal.clone(),
            stream_budget: Arc::new(StreamBudget::default()),
            output_sinks: TaskTracker::new(),
        })),
        "glob" => Some(Box::new(search(SearchKind::Glob, definition))),
        "grep" => Some(Box::new(search(SearchKind::Grep, definition))),
        _ => {
            let kind = FILE_TOOLS.into_iter().find(|kind| kind.name == name)?;
            Some(Box::new(FileTool { kind, definition, workspace: Arc::clone(&deps.workspace) }))
        }
    }
}
