//! `routine_update`: changes a routine.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::{
    access::{RoutineAccess, invalid, name_schema, saved},
    definition::{accepted_properties, check_reserved, patch_properties, with_phrases},
    refusal::refused_definition,
};
use crate::builtin::{object, spec};

pub(super) struct UpdateRoutine(pub(super) RoutineAccess);

impl Tool for UpdateRoutine {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec("routine_update", "Changes a routine of the user.", parameters(&patch_properties()))
        }
    }

    /// Null resets a field.
    fn accepted_parameters(&self) -> Option<Value> {
        Some(parameters(&accepted_properties().into()))
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let patch = invocation.arguments.get("patch").cloned().unwrap_or_default();
            check_reserved(&patch)?;
            let written = patch.clone();
            let Value::Object(patch) = with_phrases(patch) else { return Err(invalid("patch: must be an object")) };
            let routine = self.0.find(&invocation).await?;
            let caller = self.0.caller(&invocation, "routine.update");
            let changed = self.0.0.patch(&caller, routine.id, patch, None).await;
            let changed = changed.map_err(|error| refused_definition(&written, error))?;
            Ok(ToolOutput::success(saved(&changed)))
        })
    }
}

fn parameters(patch: &Value) -> Value {
    let properties = json!({
        "name": name_schema(),
        "patch": {
            "type": "object",
            "properties": patch,
            "required": [],
            "description": "The fields to change, as in routine_create. trigger and action are replaced as a whole; null resets \
                            guardrails and notify."
        }
    });
    object(&["name", "patch"], properties)
}
