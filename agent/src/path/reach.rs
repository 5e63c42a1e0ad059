//! Who may call what: the approval context and the job's own narrowing. Pure.

use protocol::ToolErrorKind;
use serde_json::{Map, Value};

use super::registry::{Entry, ToolRegistry};
use crate::{ApprovalContext, ApprovalRequirement, ToolError};

/// Refused wherever nobody is there to agree, whatever the allow-list says. Names are compared exactly: what only looks
/// like one of them is no tool at all.
const DENIED_ALONE: [&str; 14] = [
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
    "tool_install",
    "tool_remove",
];

/// What one context can reach of the tools there are.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Who is there to agree.
    pub context: ApprovalContext,
    /// Narrows the tools to these names; it never grants. None: all that the context allows.
    pub only: Option<Vec<String>>,
    /// The job's `limits.max_children`: above 0, `create_job` is no longer denied.
    pub max_children: u32,
}

impl Reach {
    /// All that this context allows.
    pub const fn of(context: ApprovalContext) -> Self {
        Self { context, only: None, max_children: 0 }
    }

    /// The tool of this name, when it is there and not denied.
    pub(super) fn resolve<'r>(&self, registry: &'r ToolRegistry, name: &str) -> Result<&'r Entry, ToolError> {
        // Before the look-up: whether a denied tool exists is nothing that such a context needs to know.
        if self.denies(name) {
            return Err(needs_person(name));
        }
        let entry = registry.get(name).filter(|_| self.names(name));
        entry.ok_or_else(|| ToolError::new(ToolErrorKind::NotFound, "no such tool in reach; use one that is listed"))
    }

    /// Whether this very call may run without asking anybody.
    pub(super) fn approve(&self, entry: &Entry, arguments: &Value) -> Result<(), ToolError> {
        let runs = match (&self.context, entry.tool.approval(arguments)) {
            (_, ApprovalRequirement::Never)
            | (ApprovalContext::Autonomous { .. }, ApprovalRequirement::UnlessAutoApproved) => true,
            (ApprovalContext::Autonomous { allow }, ApprovalRequirement::Always) => {
                allow.iter().any(|name| name == entry.name())
            }
            (ApprovalContext::Unattended, _) => false,
        };
        if runs { Ok(()) } else { Err(needs_person(entry.name())) }
    }

    /// Whether the model is shown this tool: some call of it could run.
    pub(super) fn offers(&self, entry: &Entry) -> bool {
        let name = entry.name();
        !self.denies(name) && self.names(name) && self.approve(entry, &Value::Object(Map::new())).is_ok()
    }

    fn names(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    fn denies(&self, name: &str) -> bool {
        match &self.context {
            ApprovalContext::Autonomous { .. } | ApprovalContext::Unattended => {
                DENIED_ALONE.contains(&name) && !(name == "create_job" && self.max_children > 0)
            }
        }
    }
}

fn needs_person(name: &str) -> ToolError {
    ToolError::new(
        ToolErrorKind::AutonomousUnavailable,
        format!("{name} needs a person's approval and nobody is here to give it; go on without it"),
    )
}
