//! `routine_create`: a routine of the person that a thread belongs to.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::CreateRoutine;
use serde_json::Value;

use super::{
    access::{RoutineAccess, invalid, refused, saved},
    definition::{accepted_properties, check_reserved, properties, with_phrases, without_nulls},
};
use crate::builtin::{object, spec};

pub(super) struct CreateRoutineTool(pub(super) RoutineAccess);

impl Tool for CreateRoutineTool {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&["name", "trigger", "action"], properties().into());
        let description = "Creates a routine: work that starts by itself, at times or when something happens. Its runs are autonomous: \
                           no person approves their tool calls.";
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec("routine_create", description, parameters)
        }
    }

    fn accepted_parameters(&self) -> Option<Value> {
        Some(object(&["name", "trigger", "action"], accepted_properties().into()))
    }

    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        self.0.0.validate(request(arguments)?).map_err(refused)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let request = request(&invocation.arguments)?;
            let caller = self.0.caller(&invocation, "routine.create");
            let created = self.0.0.create(&caller, request).await.map_err(refused)?;
            Ok(ToolOutput::success(saved(&created)))
        })
    }
}

fn request(arguments: &Value) -> Result<CreateRoutine, ToolError> {
    check_reserved(arguments)?;
    serde_path_to_error::deserialize(with_phrases(without_nulls(arguments.clone())))
        .map_err(|error| invalid(format!("{}: {}", error.path(), error.inner())))
}
