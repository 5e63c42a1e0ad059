//! Who calls tools and under which policy: the value that decides which calls are admitted. Pure.

use protocol::{EgressView, JobId, RunId, ThreadId, ToolErrorKind, UserId};
use serde_json::{Map, Value};

use super::registry::{RegisteredTool, ToolRegistry};
use crate::{ApprovalRequirement, ToolError};

/// Tools that are refused in every autonomous context, whatever its allow-list says (contract: agent, Approvals). Names are
/// compared exactly: a look-alike is not a registered tool.
const AUTONOMOUS_DENY_LIST: [&str; 16] = [
    "create_job",
    "event_emit",
    "job_prompt",
    "restart",
    "routine_create",
    "routine_delete",
    "routine_fire",
    "routine_update",
    "secret_delete",
    "secret_list",
    "skill_install",
    "skill_remove",
    "tool_auth",
    "tool_install",
    "tool_remove",
    "tool_upgrade",
];

/// Who calls tools, and under which policy. One value per turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolContext {
    /// The user whose rights and quotas apply.
    pub owner: UserId,
    /// The owner of the calls.
    pub origin: ToolOrigin,
    /// Whether a person can approve a call.
    pub approval: ApprovalContext,
    /// Narrows the tools to these names; it never grants. `None`: every tool that the approval context allows.
    pub only: Option<Vec<String>>,
    /// The hosts that a tool may connect to on behalf of the owner.
    pub egress: EgressView,
    /// The job's `limits.max_children`; above 0, `create_job` is not denied.
    pub max_children: u32,
}

/// The job, run or thread that a tool call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOrigin {
    /// A job, called by its worker or by the orchestrator on the worker's behalf.
    Job(JobId),
    /// A lightweight run of a routine.
    Run(RunId),
    /// A chat thread.
    Thread(ThreadId),
}

/// Whether a person can approve a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalContext {
    /// No person is there: a job, a routine or a worker.
    Autonomous {
        /// Names of tools with requirement `always` that may run nevertheless.
        allow: Vec<String>,
    },
    /// The strict default where no context was given: only tools with requirement `never` run.
    Strict,
}

impl ToolContext {
    /// Finds the tool of this name, unless this context may not use it.
    pub(super) fn resolve<'r>(
        &self,
        registry: &'r ToolRegistry,
        name: &str,
    ) -> Result<&'r std::sync::Arc<RegisteredTool>, ToolError> {
        // Checked before the look-up, so that the answer does not tell whether a denied tool exists.
        if self.denies(name) {
            return Err(approval_required(name));
        }
        let tool = registry.get(name).filter(|_| self.lists(name));
        tool.ok_or_else(|| ToolError::new(ToolErrorKind::NotFound, "no such tool; use one that is listed"))
    }

    /// Checks that a call with these arguments may run without an approval.
    pub(super) fn check_approval(&self, tool: &RegisteredTool, arguments: &Value) -> Result<(), ToolError> {
        let allowed = match (&self.approval, tool.approval(arguments)) {
            (_, ApprovalRequirement::Never)
            | (ApprovalContext::Autonomous { .. }, ApprovalRequirement::UnlessAutoApproved) => true,
            (ApprovalContext::Autonomous { allow }, ApprovalRequirement::Always) => {
                allow.iter().any(|name| name == tool.name())
            }
            (ApprovalContext::Strict, _) => false,
        };
        if allowed { Ok(()) } else { Err(approval_required(tool.name())) }
    }

    /// Whether the model is offered this tool: some call of it could run.
    pub(super) fn offers(&self, tool: &RegisteredTool) -> bool {
        let name = tool.name();
        !self.denies(name) && self.lists(name) && self.check_approval(tool, &Value::Object(Map::new())).is_ok()
    }

    fn lists(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    fn denies(&self, name: &str) -> bool {
        match &self.approval {
            ApprovalContext::Autonomous { .. } | ApprovalContext::Strict => {
                AUTONOMOUS_DENY_LIST.contains(&name) && !(name == "create_job" && self.max_children > 0)
            }
        }
    }
}

fn approval_required(name: &str) -> ToolError {
    ToolError::new(
        ToolErrorKind::AutonomousUnavailable,
        format!("{name} requires approval by a person, and none is available; continue without it"),
    )
}
