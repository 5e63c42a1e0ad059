//! The errors of a definition in the terms of the tools that take it, so that a model can correct its call.
//!
//! Owns the differences between the fields of the tools and those of the API. Never decides what is valid.

use agent::ToolError;
use protocol::FieldError;
use serde_json::Value;

use super::access::refused;
use dispatch::RoutineError;

/// The fields of a definition that have different fields for each type.
const TYPED: [&str; 2] = ["trigger", "action"];
/// What `at` of a trigger may be.
const TIMES: &str = "write a time with its offset such as 2030-12-01T07:00:00-08:00, a time in the time zone such as 2030-12-01 07:00, or \
                     a phrase such as in 20m";

/// The error of a definition, or of a patch, that a model wrote.
pub(super) fn refused_definition(written: &Value, error: RoutineError) -> ToolError {
    refused(match error {
        RoutineError::Invalid(errors) => {
            RoutineError::Invalid(errors.into_iter().map(|error| of_tool(written, error)).collect())
        }
        other => other,
    })
}

/// The error with the field that the model wrote.
fn of_tool(written: &Value, mut error: FieldError) -> FieldError {
    let kind = |part: &str| written[part]["type"].as_str();
    if error.field == "trigger.schedule" && kind("trigger") == Some("at") {
        error.field = String::from("trigger.at");
        if let Some((rule, _)) = error.message.split_once("; use one of ") {
            error.message = format!("{rule}; {TIMES}");
        }
    }
    if error.field == "action.limits.max_iterations" && written["action"].get("max_iterations").is_some() {
        error.field = String::from("action.max_iterations");
    }
    let of_part = error.field.split_once('.').filter(|(part, _)| TYPED.contains(part));
    if let Some(kind) = of_part.and_then(|(part, _)| kind(part)) {
        if let Some(fields) = error.message.strip_prefix("unknown field; the fields are ") {
            error.message = format!("the type {kind} has no such field; its fields are {fields}");
        } else if error.message == "is required" {
            error.message = format!("is required with the type {kind}");
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"trigger": {"type": "at", "at": "tomorrow"}}), "trigger.schedule", "no time; use one of \"every 10m\"",
        format!("trigger.at: no time; {TIMES}"))]
    #[case(json!({"trigger": {"type": "cron", "schedule": "tomorrow"}}), "trigger.schedule", "no expression; use one of \"every 10m\"",
        "trigger.schedule: no expression; use one of \"every 10m\"".to_owned())]
    #[case(json!({"action": {"type": "full_job", "max_iterations": 0}}), "action.limits.max_iterations", "must be at least 1",
        "action.max_iterations: must be at least 1".to_owned())]
    #[case(json!({"trigger": {"type": "cron"}}), "trigger.schedule", "is required",
        "trigger.schedule: is required with the type cron".to_owned())]
    #[case(json!({"trigger": {}}), "trigger.type", "is required", "trigger.type: is required".to_owned())]
    #[case(json!({"action": {"type": "full_job"}}), "action.prompt", "unknown field; the fields are a, b",
        "action.prompt: the type full_job has no such field; its fields are a, b".to_owned())]
    #[case(json!({}), "guardrails.x", "unknown field; the fields are a", "guardrails.x: unknown field; the fields are a".to_owned())]
    fn an_error_names_the_field_that_the_model_wrote(
        #[case] written: Value,
        #[case] field: &str,
        #[case] message: &str,
        #[case] expected: String,
    ) {
        let error = FieldError { field: field.to_owned(), message: message.to_owned() };
        let FieldError { field, message } = of_tool(&written, error);
        assert_eq!(format!("{field}: {message}"), expected);
    }
}
