//! The definition of a routine as a model writes it: its schema, and what a model may not decide.

use agent::ToolError;
use protocol::ToolErrorKind;
use serde_json::{Map, Value, json};

/// Fields of a definition that widen what a routine may do, or send its results elsewhere: they are the user's to set.
const RESERVED: [[&str; 2]; 4] =
    [["action", "approve"], ["trigger", "secret"], ["notify", "webhook_url"], ["notify", "webhook_secret"]];

/// The fields of a definition whose values are objects.
const PARTS: [&str; 4] = ["trigger", "action", "guardrails", "notify"];

/// The properties of a definition: the body of `POST /api/routines`.
pub(super) fn properties() -> Map<String, Value> {
    let object = |description: &str| json!({"type": "object", "description": description});
    let properties = json!({
        "name": {"type": "string", "minLength": 1, "maxLength": 128, "description": "Unique among the user's routines."},
        "description": {"type": "string", "description": "What it is for."},
        "enabled": {"type": "boolean", "description": "Whether it fires; true when left out."},
        "trigger": object(
            "What fires it, one of {\"type\": \"cron\", \"schedule\": \"0 9 * * MON-FRI\", \"timezone\": \"Europe/Berlin\"}, \
             {\"type\": \"every\", \"every_seconds\": 600}, {\"type\": \"at\", \"at\": \"2026-12-01T07:00:00Z\"}, \
             {\"type\": \"event\", \"channel\": \"support\", \"pattern\": \"(?i)refund\"}, \
             {\"type\": \"system_event\", \"source\": \"github\", \"event_type\": \"push\"}, \
             {\"type\": \"webhook\", \"path\": \"deploys\", \"where\": \"payload.action == 'labeled'\"}, {\"type\": \"manual\"}."
        ),
        "action": object(
            "What a run does, one of {\"type\": \"lightweight\", \"prompt\": \"…\", \"context_paths\": [\"notes.md\"], \
             \"use_tools\": true, \"max_tool_rounds\": 3}, {\"type\": \"full_job\", \"description\": \"…\"}, \
             {\"type\": \"system_event_text\", \"text\": \"…\"}. A lightweight run reads documents of the memory in context_paths."
        ),
        "guardrails": object("Limits of its firings, such as {\"max_runs\": 3, \"overlap\": \"skip\"}."),
        "notify": object("{\"on_attention\": true, \"on_failure\": true, \"on_success\": false}."),
        "session": {"type": "string", "enum": ["isolated", "main"]},
        "wake_mode": {"type": "string", "enum": ["next_heartbeat", "now"]},
        "deliver": {"type": "boolean", "description": "Whether every run that has something to report notifies the user."},
        "post_to_main": {"type": "boolean", "description": "Whether a run puts a summary into the main session."},
        "post_to_main_prefix": {"type": "string"},
        "persist_payload": {"type": "boolean", "description": "Whether what fired a run is kept with it."}
    });
    match properties {
        Value::Object(properties) => properties,
        _ => Map::new(),
    }
}

/// The properties of a patch whose values must be objects. `reset` is the schema of those that have a default.
pub(super) fn patch_properties(reset: &Value) -> Value {
    json!({"trigger": {"type": "object"}, "action": {"type": "object"}, "guardrails": reset, "notify": reset})
}

/// Refuses fields that a model may not set.
pub(super) fn check_reserved(definition: &Value) -> Result<(), ToolError> {
    check_parts(definition)?;
    for [part, field] in RESERVED {
        let value = definition.get(part).and_then(|part| part.get(field));
        let is_set =
            value.is_some_and(|value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
        if is_set {
            let message = format!("{part}.{field} is set by the user only; leave it out");
            return Err(ToolError::new(ToolErrorKind::NotAuthorized, message));
        }
    }
    Ok(())
}

/// Refuses parts that are not objects: serde reads an array as the fields of a struct in their order, in which no field
/// can be found by its name.
fn check_parts(definition: &Value) -> Result<(), ToolError> {
    for part in PARTS {
        if definition.get(part).is_some_and(|value| !value.is_object() && !value.is_null()) {
            return Err(ToolError::new(ToolErrorKind::InvalidParameters, format!("{part}: must be an object")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(json!({"action": {"type": "full_job", "approve": ["secret_list"]}}), false)]
    #[case(json!({"action": {"type": "full_job", "approve": []}}), true)]
    #[case(json!({"action": {"type": "lightweight", "approve": ["memory_write"]}}), false)]
    #[case(json!({"trigger": {"type": "webhook", "secret": "x"}}), false)]
    #[case(json!({"notify": {"webhook_url": "https://a.example"}}), false)]
    #[case(json!({"notify": {"webhook_secret": "x"}}), false)]
    #[case(json!({"notify": {"webhook_url": null, "on_success": true}}), true)]
    #[case(json!({"notify": null, "trigger": {"type": "manual"}}), true)]
    #[case::fields_in_order(json!({"notify": [null, true, true, false, "https://a.example"]}), false)]
    #[case::variant_in_order(json!({"trigger": ["webhook", "path", "x"]}), false)]
    #[case::variant_with_an_object(json!({"action": ["full_job", {"approve": ["secret_list"]}]}), false)]
    #[case::text(json!({"action": "{\"type\": \"full_job\", \"approve\": [\"secret_list\"]}"}), false)]
    #[case::guardrails(json!({"guardrails": [0]}), false)]
    fn a_model_cannot_widen_a_routine(#[case] definition: Value, #[case] allowed: bool) {
        assert_eq!(check_reserved(&definition).is_ok(), allowed);
    }

    #[test]
    fn every_field_of_a_definition_has_a_property() {
        let whole = json!({"name": "n", "description": "d", "trigger": {"type": "manual"}, "session": "isolated",
            "action": {"type": "lightweight", "prompt": "p"}, "post_to_main_prefix": "P", "persist_payload": false});
        let parsed: protocol::CreateRoutine = serde_json::from_value(whole).unwrap();
        let Value::Object(fields) = serde_json::to_value(parsed).unwrap() else { panic!("an object") };
        let mut fields: Vec<_> = fields.keys().cloned().collect();
        let mut named: Vec<_> = properties().keys().cloned().collect();
        fields.sort();
        named.sort();
        assert_eq!(fields, named);
    }
}
