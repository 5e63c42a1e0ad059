//! `routine_update`: changes a routine.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::{
    access::{RoutineAccess, invalid, name_schema, refused, saved},
    definition::{check_reserved, patch_properties},
};
use crate::builtin::{object, spec};

pub(super) struct UpdateRoutine(pub(super) RoutineAccess);

impl Tool for UpdateRoutine {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec("routine_update", "Changes a routine of the user.", parameters(&json!({"type": "object"})))
        }
    }

    /// Null resets a field.
    fn accepted_parameters(&self) -> Option<Value> {
        Some(parameters(&json!({"type": ["object", "null"]})))
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Some(Value::Object(patch)) = invocation.arguments.get("patch").cloned() else {
                return Err(invalid("patch: must be an object"));
            };
            if let Some(patch) = invocation.arguments.get("patch") {
                check_reserved(patch)?;
            }
            let routine = self.0.find(&invocation).await?;
            let caller = self.0.caller(&invocation, "routine.update");
            let changed = self.0.0.patch(&caller, routine.id, patch, None).await.map_err(refused)?;
            Ok(ToolOutput::success(saved(&changed)))
        })
    }
}

fn parameters(reset: &Value) -> Value {
    let properties = json!({
        "name": name_schema(),
        "patch": {
            "type": "object",
            "properties": patch_properties(reset),
            "description": "The fields to change, as in routine_create. trigger and action are replaced as a whole; null resets \
                            guardrails and notify."
        }
    });
    object(&["name", "patch"], properties)
}
