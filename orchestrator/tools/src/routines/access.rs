//! Shared by the tools for routines: which routine a name means, who calls, and errors that tell the model what to do.

use std::sync::Arc;

use agent::{Invocation, Tool, ToolError};
use protocol::{FieldError, Routine, RoutineRun, RoutineSaved, RoutineTrigger, ToolErrorKind};
use serde_json::{Value, json};

use super::{
    create::CreateRoutineTool, delete::DeleteRoutine, fire::FireRoutine, history::RoutineHistory, list::ListRoutines,
    update::UpdateRoutine,
};
use dispatch::{RoutineCaller, RoutineEditor, RoutineError};
use store::{AuditEntry, Store, StoreError};

/// The tools for routines that jobs can be allowed to use. The others are denied to all of them.
pub(crate) const NAMES_FOR_JOBS: [&str; 2] = ["routine_history", "routine_list"];

/// What the tools work with.
#[derive(Clone)]
pub(super) struct RoutineAccess(pub(super) Arc<RoutineEditor>);

pub(crate) fn routine_tools(editor: &Arc<RoutineEditor>) -> [Box<dyn Tool>; 6] {
    let access = || RoutineAccess(Arc::clone(editor));
    [
        Box::new(CreateRoutineTool(access())),
        Box::new(ListRoutines(access())),
        Box::new(UpdateRoutine(access())),
        Box::new(DeleteRoutine(access())),
        Box::new(FireRoutine(access())),
        Box::new(RoutineHistory(access())),
    ]
}

impl RoutineAccess {
    pub(super) fn store(&self) -> &Store {
        &self.0.submitter.store
    }

    /// The owner of the conversation as a caller, with the audit entry of a change by its model.
    pub(super) fn caller(&self, invocation: &Invocation, action: &str) -> RoutineCaller {
        let user = invocation.context.owner.as_str();
        let entry = AuditEntry::by_agent(action, user, None, self.0.submitter.clock.now());
        RoutineCaller { user: user.to_owned(), sees_all: false, entry }
    }

    /// The owner's routine that the argument `name` names.
    pub(super) async fn find(&self, invocation: &Invocation) -> Result<Routine, ToolError> {
        let name = invocation.arguments.get("name").and_then(Value::as_str).unwrap_or_default().trim();
        let found = self.store().routine_by_name(invocation.context.owner.as_str(), name).await;
        found.map_err(|error| failed(&error))?.ok_or_else(not_found)
    }
}

/// The schema of the parameter `name`.
pub(super) fn name_schema() -> Value {
    json!({"type": "string", "minLength": 1, "description": "The routine's name."})
}

/// What the model reads of a routine.
pub(super) fn brief(routine: &Routine) -> Value {
    let mut brief = json!({
        "name": routine.name, "status": routine.status, "enabled": routine.enabled, "trigger": shown(&routine.trigger),
        "action": routine.action.kind(), "next_fire_at": routine.next_fire_at, "last_run_at": routine.last_run_at,
        "consecutive_failures": routine.consecutive_failures
    });
    if let Some(reason) = routine.disabled_reason {
        brief["disabled_reason"] = json!(reason);
    }
    brief
}

/// A trigger without its secret: it is shown to the user only, by the API and the command line.
fn shown(trigger: &RoutineTrigger) -> Value {
    let mut trigger = json!(trigger);
    if let Some(fields) = trigger.as_object_mut() {
        fields.remove("secret");
    }
    trigger
}

/// What the model reads of a routine that it has created or changed.
pub(super) fn saved(saved: &RoutineSaved) -> Value {
    let mut content = brief(&saved.routine);
    content["warnings"] = json!(saved.warnings);
    if matches!(&saved.routine.trigger, RoutineTrigger::Webhook(webhook) if webhook.secret.is_some()) {
        content["note"] = json!(
            "the webhook has a generated secret that is not shown here; the user sets one with \
             `gantry routine edit NAME --secret-file FILE`"
        );
    }
    content
}

/// What the model reads of a run.
pub(super) fn run_brief(run: &RoutineRun) -> Value {
    json!({
        "run_id": run.id, "status": run.status, "reason": run.reason, "message": run.message, "trigger": run.trigger_type,
        "created_at": run.created_at, "started_at": run.started_at, "completed_at": run.completed_at,
        "result": run.result_summary, "job_id": run.job_id, "skipped_count": run.skipped_count, "missed_count": run.missed_count
    })
}

pub(super) fn not_found() -> ToolError {
    ToolError::new(ToolErrorKind::NotFound, "there is no routine with this name; routine_list lists the routines")
}

pub(super) fn invalid(message: impl Into<String>) -> ToolError {
    ToolError::new(ToolErrorKind::InvalidParameters, message)
}

/// The error of a change that was not made.
pub(super) fn refused(error: RoutineError) -> ToolError {
    let message = error.to_string();
    match error {
        RoutineError::Invalid(errors) => {
            let line = |FieldError { field, message }: &FieldError| format!("{field}: {message}");
            invalid(errors.iter().map(line).collect::<Vec<_>>().join("; "))
        }
        RoutineError::NameTaken | RoutineError::PathTaken => invalid(message),
        RoutineError::NotFound | RoutineError::NotOwner => not_found(),
        RoutineError::TooMany { .. } | RoutineError::AutomationDisabled => {
            ToolError::new(ToolErrorKind::NotAuthorized, message)
        }
        RoutineError::Changed { .. }
        | RoutineError::Contended
        | RoutineError::Disabled
        | RoutineError::KeyReused
        | RoutineError::Skipped { .. } => ToolError::new(ToolErrorKind::Failed, message),
        RoutineError::Store(error) => failed(&error),
        RoutineError::Secret(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a tool could not seal a routine's secret");
            ToolError::new(ToolErrorKind::Failed, "the routine could not be stored; try again")
        }
    }
}

/// The store failed: logged here, because the model reads no cause.
pub(super) fn failed(error: &StoreError) -> ToolError {
    if let StoreError::UserStorageFull(storage) = error {
        return ToolError::new(ToolErrorKind::Failed, storage.to_string());
    }
    tracing::error!(error = error as &dyn std::error::Error, "a tool could not read or write routines");
    ToolError::new(ToolErrorKind::Failed, "routines are not available now; try again")
}
