//! What a job's model is offered: the worker's own tools that the job may use, and the orchestrator's.

use std::sync::Arc;

use agent::Tool;
use protocol::{JobAssignment, ToolDomain};
use tokio_util::task::TaskTracker;

use super::{
    file_tool::{FileTool, FileToolKind},
    files::{LIST_DIR, READ_FILE, WRITE_FILE},
    patch::APPLY_PATCH,
    remote::RemoteTool,
    search::{GLOB, GREP},
    shell::{PressureGauge, Shell},
    workspace::Workspace,
};
use crate::{
    cgroup::Cgroup, client::OrchestratorClient, environment::ShellEnvironment, journal::EventQueue,
    processes::Processes, stop::StopSwitch,
};

const FILE_TOOLS: [FileToolKind; 6] = [READ_FILE, WRITE_FILE, LIST_DIR, APPLY_PATCH, GLOB, GREP];

/// All that tools work with.
pub(crate) struct Workbench {
    /// The files.
    pub(crate) workspace: Arc<Workspace>,
    /// What a command sees.
    pub(crate) shell: ShellEnvironment,
    /// What commands leave behind.
    pub(crate) processes: Arc<Processes>,
    /// The container's limits.
    pub(crate) cgroup: Cgroup,
    /// Where limit events go.
    pub(crate) journal: EventQueue,
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
                if let Some(tool) = container_tool(&definition.name, assignment, bench) {
                    tools.push(tool);
                } else {
                    tracing::warn!(tool.name = definition.name, "this worker has no such tool");
                }
            }
        }
    }
    tools
}

fn container_tool(name: &str, assignment: &JobAssignment, bench: &Workbench) -> Option<Box<dyn Tool>> {
    if name == "shell" {
        let pressure =
            PressureGauge { cgroup: bench.cgroup.clone(), limits: assignment.limits, journal: bench.journal.clone() };
        return Some(Box::new(Shell {
            workspace: Arc::clone(&bench.workspace),
            environment: bench.shell.clone(),
            processes: Arc::clone(&bench.processes),
            pressure,
            stop: bench.stop.clone(),
            drains: TaskTracker::new(),
        }));
    }
    let kind = FILE_TOOLS.into_iter().find(|kind| kind.name == name)?;
    Some(Box::new(FileTool { kind, workspace: Arc::clone(&bench.workspace) }))
}
