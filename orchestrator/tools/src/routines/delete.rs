//! `routine_delete`: deletes a routine.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::json;

use super::access::{RoutineAccess, name_schema, refused};
use crate::builtin::{object, spec};

pub(super) struct DeleteRoutine(pub(super) RoutineAccess);

impl Tool for DeleteRoutine {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&["name"], json!({"name": name_schema()}));
        ToolSpec {
            approval: ApprovalRequirement::Always,
            ..spec("routine_delete", "Deletes a routine of the user. A run in progress goes on.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let routine = self.0.find(&invocation).await?;
            let caller = self.0.caller(&invocation, "routine.delete");
            self.0.0.delete(&caller, routine.id).await.map_err(refused)?;
            Ok(ToolOutput::success(json!({"name": routine.name, "deleted": true})))
        })
    }
}
