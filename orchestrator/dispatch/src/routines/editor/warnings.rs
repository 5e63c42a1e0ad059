//! What will not work as it is written in an unattended run.

use agent::{ApprovalRequirement, ToolPolicy};
use chrono::Month;
use protocol::{CreateRoutine, PermissionState, RoutineAction, RoutineTrigger, RoutineWarning};
use schedule::Schedule;

use super::{RoutineEditor, RoutineError};
use domain::request::entry_name;
use engine::SandboxReadiness;

/// Tools that only a container has: a lightweight run has none of them.
const CONTAINER_TOOLS: [&str; 7] = ["shell", "read_file", "write_file", "list_dir", "apply_patch", "glob", "grep"];
/// Tools that always need a person's approval.
const ALWAYS_APPROVED_TOOLS: [&str; 8] = [
    "routine_delete",
    "secret_delete",
    "tool_install",
    "tool_auth",
    "tool_upgrade",
    "tool_remove",
    "skill_install",
    "skill_remove",
];

impl RoutineEditor {
    /// The warnings about a definition.
    pub(super) async fn warnings(
        &self,
        user: &str,
        request: &CreateRoutine,
    ) -> Result<Vec<RoutineWarning>, RoutineError> {
        let mut warnings = Vec::new();
        let policy = self.store().tool_policy_of(user).await?;
        for (field, tool) in named_tools(request) {
            if let Some(why) = refusal(&request.action, &policy, tool) {
                let detail = format!("{tool} is not available to an unattended run: {why}");
                warnings.push(warning("tool_not_allowed", field, detail));
            }
        }
        let is_job = matches!(request.action, RoutineAction::FullJob(_));
        if is_job && self.submitter.sandbox.is_disabled() {
            let detail =
                "the operator has disabled the sandbox: the job runs in the server, without files and commands";
            warnings.push(warning("sandbox_disabled", "action", detail.to_owned()));
        }
        if is_job
            && !self.submitter.sandbox.is_disabled()
            && let SandboxReadiness::NotReady { reason, detail } = self.submitter.sandbox.state().await
        {
            let detail = format!("no job can run at present: {}: {detail}", reason.as_str());
            warnings.push(warning("sandbox_unavailable", "action", detail));
        }
        if let Some(model) = self.unpriced_model(user, request).await? {
            let detail = format!("the price of {model} is not known, so the cost budget does not limit its runs");
            warnings.push(warning("unpriced_model", "guardrails.budget.max_cost_usd", detail));
        }
        warnings.extend(skipped_months(&request.trigger));
        if !self.cron_enabled || !self.store().automation().await?.is_on {
            let detail =
                "automation is switched off by the operator: the routine runs only when it is triggered manually";
            warnings.push(warning("automation_disabled", "enabled", detail.to_owned()));
        }
        Ok(warnings)
    }

    /// The model whose cost cannot be counted, if the routine has a cost budget.
    async fn unpriced_model(&self, user: &str, request: &CreateRoutine) -> Result<Option<String>, RoutineError> {
        let has_budget = request.guardrails.budget.is_some_and(|budget| budget.max_cost_usd.is_some());
        let (named, default) = match &request.action {
            RoutineAction::Lightweight(action) => (&action.model, &self.default_model),
            RoutineAction::FullJob(action) => (&action.model, &self.submitter.ceiling.default_model),
            RoutineAction::SystemEventText { .. } => return Ok(None),
        };
        if !has_budget {
            return Ok(None);
        }
        let model = if let Some(model) = named {
            model.clone()
        } else {
            let preferred = self.store().settings(user).await?.model;
            preferred.unwrap_or_else(|| default.clone())
        };
        Ok(Some(model).filter(|model| !self.submitter.gateway.has_price(model)))
    }
}

/// The tools that a definition names: in its list, or as words of its task.
fn named_tools(request: &CreateRoutine) -> Vec<(&'static str, &str)> {
    let (field, text, listed) = match &request.action {
        RoutineAction::Lightweight(action) if action.use_tools => {
            ("action.prompt", action.prompt.as_str(), action.tools.as_deref())
        }
        RoutineAction::FullJob(action) => ("action.description", action.description.as_str(), action.tools.as_deref()),
        RoutineAction::Lightweight(_) | RoutineAction::SystemEventText { .. } => return Vec::new(),
    };
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.contains('_'));
    let mut named: Vec<(&str, &str)> =
        listed.unwrap_or_default().iter().map(|tool| ("action.tools", entry_name(tool))).collect();
    for word in words {
        if !named.iter().any(|(_, known)| *known == word) {
            named.push((field, word));
        }
    }
    named
}

/// Tells of months that are too short for a schedule.
fn skipped_months(trigger: &RoutineTrigger) -> Option<RoutineWarning> {
    let RoutineTrigger::Cron { schedule, timezone } = trigger else { return None };
    let months = Schedule::cron(schedule, timezone.as_deref()).ok()?.skipped_months();
    let names: Vec<&str> = months.iter().map(Month::name).collect();
    let detail = format!(
        "it does not fire in {}, without such a day; the last day of each month is `L` in a cron expression, or \
         `every month on last day`",
        names.join(", ")
    );
    (!names.is_empty()).then(|| warning("months_skipped", "trigger.schedule", detail))
}

/// Why an unattended run may not use a tool.
fn refusal(action: &RoutineAction, policy: &ToolPolicy, tool: &str) -> Option<&'static str> {
    let (is_lightweight, approve) = match action {
        RoutineAction::Lightweight(action) => (true, action.approve.as_slice()),
        RoutineAction::FullJob(action) => (false, action.approve.as_slice()),
        RoutineAction::SystemEventText { .. } => return None,
    };
    let has_children = matches!(action, RoutineAction::FullJob(action)
        if action.limits.as_ref().is_some_and(|limits| limits.max_children.is_some_and(|max| max > 0)));
    if agent::is_denied_to_jobs(tool) && !(has_children && tool == "create_job") {
        return Some("it is denied to all runs and jobs");
    }
    let is_permitted = policy.permits(tool, ApprovalRequirement::Never);
    if !is_permitted || policy.permission(tool) == PermissionState::Disabled {
        return Some("it is disabled");
    }
    if ALWAYS_APPROVED_TOOLS.contains(&tool) && !approve.iter().any(|one| one == tool) {
        return Some("its calls need a person's approval");
    }
    (is_lightweight && CONTAINER_TOOLS.contains(&tool)).then_some("only a full job has it; use the action full_job")
}

pub(super) fn warning(code: &str, field: &str, detail: String) -> RoutineWarning {
    RoutineWarning { code: code.to_owned(), field: field.to_owned(), detail }
}
