//! `routine_fire`: runs a routine now.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::TriggerRoutine;
use serde_json::json;

use super::access::{RoutineAccess, name_schema, refused, run_brief};
use crate::builtin::{object, spec};

pub(super) struct FireRoutine(pub(super) RoutineAccess);

impl Tool for FireRoutine {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&["name"], json!({"name": name_schema()}));
        let description =
            "Runs a routine of the user now. Returns the run, which has not ended yet; routine_history shows its end.";
        ToolSpec { approval: ApprovalRequirement::UnlessAutoApproved, ..spec("routine_fire", description, parameters) }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let routine = self.0.find(&invocation).await?;
            let caller = self.0.caller(&invocation, "routine.trigger");
            let fired =
                self.0.0.trigger(&caller, routine.id, TriggerRoutine::default(), None).await.map_err(refused)?;
            Ok(ToolOutput::success(run_brief(&fired.run)))
        })
    }
}
