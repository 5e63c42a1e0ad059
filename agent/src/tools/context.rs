//! Who calls tools and under which policy: the value that decides which calls are admitted. Pure.

use protocol::{EgressView, ToolErrorKind, UserId, WorkId};
use serde_json::Value;

use super::{
    approval::{ApprovalContext, ApprovalDecision, approval_required},
    policy::ToolPolicy,
    registry::{RegisteredTool, ToolRegistry},
};
use crate::{ApprovalRequirement, ToolError};

/// Tools that are refused in every autonomous context, whatever its allow-list says.
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
    /// What the calls belong to.
    pub work: WorkId,
    /// Whether a person can approve a call.
    pub approval: ApprovalContext,
    /// What the operator and the owner have decided about tools.
    pub policy: ToolPolicy,
    /// Narrows the tools to these names; it never grants. `None`: every tool that the approval context allows.
    pub only: Option<Vec<String>>,
    /// The hosts that a tool may connect to on behalf of the owner.
    pub egress: EgressView,
    /// The job's `limits.max_children`; above 0, `create_job` is not denied.
    pub max_children: u32,
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
        let may_have = self.lists(name) && !self.policy.is_disabled(name);
        let tool = registry.get(name).filter(|_| may_have);
        let tool = tool.ok_or_else(|| {
            let withheld = registry.withheld(name).filter(|_| may_have);
            ToolError::new(ToolErrorKind::NotFound, withheld.unwrap_or("no such tool; use one that is listed"))
        })?;
        self.policy.check_permission(name)?;
        Ok(tool)
    }

    /// Decides whether a call with these arguments runs. An error means that it is refused.
    pub(super) fn approval(&self, tool: &RegisteredTool, arguments: &Value) -> Result<ApprovalDecision, ToolError> {
        self.decide(tool.name(), tool.approval(arguments))
    }

    fn decide(&self, name: &str, requirement: ApprovalRequirement) -> Result<ApprovalDecision, ToolError> {
        self.policy.check_validity(name, requirement)?;
        self.approval.decide(name, requirement, self.policy.permission(name))
    }

    /// Whether the model is offered this tool: some call of it could run.
    pub(super) fn offers(&self, tool: &RegisteredTool) -> bool {
        self.offers_name(tool.name(), tool.default_requirement())
    }

    /// Whether a model is offered the tool of this name, whose calls have this requirement. For tools that another
    /// process runs.
    pub fn offers_name(&self, name: &str, requirement: ApprovalRequirement) -> bool {
        let is_available = self.lists(name) && !self.policy.is_disabled(name) && !self.denies(name);
        is_available && self.policy.check_permission(name).is_ok() && self.decide(name, requirement).is_ok()
    }

    fn lists(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    fn denies(&self, name: &str) -> bool {
        // A name in another case or with other separators is refused as the one that it resembles.
        let name = folded(name);
        self.approval.is_unattended()
            && AUTONOMOUS_DENY_LIST.contains(&name.as_str())
            && !(name == "create_job" && self.max_children > 0)
    }
}

/// Whether jobs, routines and workers are refused a tool of this name, whatever was approved.
pub fn is_denied_to_jobs(name: &str) -> bool {
    AUTONOMOUS_DENY_LIST.contains(&name)
}

/// A name without its case, surrounding spaces and kind of separator. Registered names differ in more than that.
pub(super) fn folded(name: &str) -> String {
    name.trim()
        .chars()
        .map(|character| if matches!(character, '-' | ' ') { '_' } else { character.to_ascii_lowercase() })
        .collect()
}
