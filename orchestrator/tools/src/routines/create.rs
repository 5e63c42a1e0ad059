//! `routine_create`: a routine of the person that a thread belongs to.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::CreateRoutine;
use serde_json::Value;

use super::{
    access::{RoutineAccess, saved},
    definition::{accepted_properties, check_reserved, properties, with_phrases, without_nulls},
    refusal::refused_definition,
};
use crate::builtin::{object, spec};
use dispatch::RoutineError;
use domain::field_errors;

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
        self.0.0.validate(request(arguments)?).map_err(|error| refused_definition(arguments, error))
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let request = request(&invocation.arguments)?;
            let caller = self.0.caller(&invocation, "routine.create");
            let created = self.0.0.create(&caller, request).await;
            let created = created.map_err(|error| refused_definition(&invocation.arguments, error))?;
            Ok(ToolOutput::success(saved(&created)))
        })
    }
}

fn request(arguments: &Value) -> Result<CreateRoutine, ToolError> {
    check_reserved(arguments)?;
    let definition = with_phrases(without_nulls(arguments.clone()));
    field_errors::read(&definition, "arguments")
        .map_err(|error| refused_definition(arguments, RoutineError::Invalid(vec![error])))
}
