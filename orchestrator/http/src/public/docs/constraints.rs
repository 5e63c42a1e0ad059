//! The limits of fields that requests have. The server checks them where a request is validated; the document repeats them, so that
//! clients can.
//!
//! Limits in bytes are given as numbers of characters: a text within the limit never has more of these.

use protocol::limits::{
    MAX_MEMORY_DOCUMENT_BYTES, MAX_PROMPT_BYTES, MAX_REASON_BYTES, MAX_SECRET_BYTES, MAX_SECRET_HOSTS,
    MAX_SECRET_NAME_BYTES, MIN_SECRET_BYTES,
};
use serde_json::{Map, Value, json};

use super::schemas;
use domain::{
    gate,
    request::{MAX_FILES, MAX_LABELS, MAX_PATH_BYTES, MAX_PRIORITY, MAX_TITLE_CHARS, MAX_TOOLS},
};

/// One line without control characters.
const LINE: &str = "^[^\\x00-\\x1f\\x7f]*$";
/// At least one character that is not white space.
const NOT_BLANK: &str = "\\S";

/// The constraints of properties, by schema and property.
fn constraints() -> Map<String, Value> {
    let all = [of_jobs(), of_routines(), of_others()];
    all.iter().filter_map(Value::as_object).flatten().map(|(schema, fields)| (schema.clone(), fields.clone())).collect()
}

fn prompt() -> Value {
    json!({"minLength": 1, "maxLength": MAX_PROMPT_BYTES, "pattern": NOT_BLANK})
}

fn at_least(minimum: u64) -> Value {
    json!({"minimum": minimum})
}

fn between(minimum: u64, maximum: u64) -> Value {
    json!({"minimum": minimum, "maximum": maximum})
}

fn of_jobs() -> Value {
    let tools = json!({"maxItems": MAX_TOOLS});
    let priority = json!({"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY});
    json!({
        "CreateJob": {
            "prompt": prompt(),
            "title": {"maxLength": MAX_TITLE_CHARS, "pattern": LINE},
            "tools": tools,
            "approve": tools,
            "files": {"maxItems": MAX_FILES},
            "priority": priority,
            "labels": {"maxProperties": MAX_LABELS},
        },
        "LimitsRequest": {
            "timeout_seconds": at_least(1),
            "max_iterations": at_least(1),
            "max_tool_calls": at_least(1),
            "memory_mb": at_least(16),
            "cpus": {"minimum": 0.01},
            "pids": at_least(16),
            "disk_mb": at_least(1),
            "max_cost_usd": at_least(0),
        },
        "InputFile": {"path": {"minLength": 1, "maxLength": MAX_PATH_BYTES}},
        "PromptRequest": {"content": prompt()},
        "RestartRequest": {"prompt": prompt()},
        "CancelRequest": {"reason": {"maxLength": MAX_REASON_BYTES}},
        "RejectRequest": {"reason": {"minLength": 1, "maxLength": MAX_REASON_BYTES, "pattern": NOT_BLANK}},
        "FullJobRoutineAction": {"description": prompt(), "priority": priority},
    })
}

fn of_routines() -> Value {
    const YEAR_SECONDS: u64 = 366 * 86_400;
    // The name of a channel, a sender, a source or a type of events.
    let name = json!({"minLength": 1, "maxLength": 128});
    json!({
        "CreateRoutine": {"name": {"minLength": 1, "pattern": LINE}, "description": {"maxLength": 4_000}},
        "LightweightRoutineAction": {"prompt": prompt(), "max_tool_rounds": at_least(1)},
        "EveryRoutineTrigger": {"every_seconds": at_least(1)},
        "Guardrails": {
            "cooldown_seconds": between(0, YEAR_SECONDS),
            "max_concurrent": between(1, 100),
            "dedup_window_seconds": between(1, YEAR_SECONDS),
            "catch_up_window_seconds": between(0, YEAR_SECONDS),
            "catch_up_max": between(1, 100),
            "timeout_seconds": between(1, YEAR_SECONDS),
            "stagger_seconds": between(0, YEAR_SECONDS),
            "max_runs": at_least(1),
        },
        "Retry": {
            "max_attempts": between(1, 20),
            "backoff_seconds": between(0, YEAR_SECONDS),
            "backoff_max_seconds": between(0, YEAR_SECONDS),
        },
        "Budget": {"max_tokens": at_least(1), "max_cost_usd": {"exclusiveMinimum": 0}},
        "TriggerRoutine": {"wait_seconds": between(0, 300)},
        "RpcRequest": {"jsonrpc": {"const": protocol::JSON_RPC_VERSION}},
        "PostMessage": {"channel": name, "sender": name},
        "EmitSystemEvent": {"source": name, "event_type": name},
    })
}

fn of_others() -> Value {
    let reason = json!({"maxLength": gate::MAX_REASON_BYTES});
    let time_of_day = |example| json!({"pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$", "examples": [example]});
    json!({
        "SetSecret": {
            "name": {"minLength": 1, "maxLength": MAX_SECRET_NAME_BYTES, "pattern": "^[A-Za-z0-9_.-]+$"},
            // A character has at most four bytes.
            "value": {"minLength": MIN_SECRET_BYTES / 4, "maxLength": MAX_SECRET_BYTES},
            "hosts": {"maxItems": MAX_SECRET_HOSTS},
        },
        "MemoryContent": {"content": {"maxLength": MAX_MEMORY_DOCUMENT_BYTES}},
        "ResolveGate": {"reason": reason},
        "ResolveThreadGate": {"reason": reason},
        "SendMessage": {"content": prompt()},
        "UserSettings": {"temperature": between(0, 2)},
        "QuietHours": {"from": time_of_day("22:00"), "to": time_of_day("07:00")},
    })
}

/// Adds the constraints to the schemas.
pub(super) fn add(document: &mut Value) {
    let Some(schemas) = schemas::of(document) else { return };
    for (schema, properties) in constraints() {
        for (property, constraint) in properties.as_object().into_iter().flatten() {
            let property = schemas.get_mut(&schema).and_then(|schema| schema.get_mut("properties")?.get_mut(property));
            if let (Some(Value::Object(property)), Value::Object(constraint)) = (property, constraint) {
                property.extend(constraint.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constraint_is_about_a_property_of_the_document() {
        let document = super::super::document();
        for (schema, properties) in constraints() {
            for (property, constraint) in properties.as_object().unwrap() {
                let found = &document["components"]["schemas"][&schema]["properties"][property];
                for (keyword, value) in constraint.as_object().unwrap() {
                    assert_eq!(&found[keyword], value, "{schema}.{property}");
                }
            }
        }
    }
}
