//! The definition of a routine as a model writes it: its schema, and what a model may not decide.

use agent::ToolError;
use chrono::DateTime;
use protocol::ToolErrorKind;
use serde_json::{Map, Value, json};

use crate::builtin::object;

/// Fields of a definition that widen what a routine may do, or send its results elsewhere: they are the user's to set.
const RESERVED: [[&str; 2]; 4] =
    [["action", "approve"], ["trigger", "secret"], ["notify", "webhook_url"], ["notify", "webhook_secret"]];

/// The fields of a definition whose values are objects.
const PARTS: [&str; 4] = ["trigger", "action", "guardrails", "notify"];

/// The properties of a definition: the body of `POST /api/routines`, without what a model may not set. Of trigger and
/// action each kind has some of the fields, since providers refuse schemas with alternatives.
pub(super) fn properties() -> Map<String, Value> {
    let properties = json!({
        "name": text("Unique among the user's routines."),
        "description": text("What it is for."),
        "enabled": flag("Whether it fires; true when left out."),
        "trigger": trigger(),
        "action": action(),
        "guardrails": guardrails(),
        "notify": notify(),
        "session": choice(&["isolated", "main"], "main takes an action of the type system_event_text only."),
        "wake_mode": choice(&["next_heartbeat", "now"], "When the main session reads its line."),
        "deliver": flag("Whether every run that has something to report notifies the user."),
        "post_to_main": flag("Whether a run puts a summary into the main session."),
        "post_to_main_prefix": text("The first word of that summary."),
        "persist_payload": flag("Whether what fired a run is kept with it.")
    });
    match properties {
        Value::Object(properties) => properties,
        _ => Map::new(),
    }
}

fn trigger() -> Value {
    let kinds = ["cron", "every", "at", "event", "system_event", "webhook", "manual"];
    let properties = json!({
        "type": choice(&kinds, "cron: at times of a calendar. every: at an interval. at: once. event: when a message of the user's matches. \
            system_event: when an event matches. webhook: on a signed request. manual: by hand only."),
        "schedule": text("With cron: an expression such as 0 9 * * MON-FRI, or a phrase: every day at 7:00, every weekday at 9:00 and 13:00, \
            every monday and thursday at 18:30, every month on the 15th at 9:00, every 2h, in 20m."),
        "timezone": text("With cron and at: an IANA name such as Europe/Berlin; the user's time zone when left out."),
        "every_seconds": number("With every: the interval."),
        "anchor": text("With every: the time from which it is counted, such as 2030-12-01T07:00:00Z; now when left out."),
        "at": text("With at: a time with its offset such as 2030-12-01T07:00:00-08:00, a time in the time zone such as 2030-12-01 07:00, \
            or a phrase: in 20m, in 1 hour 30 minutes."),
        "channel": text("With event: the channel of the messages; every channel when left out."),
        "pattern": text("With event: a regular expression that the message matches, such as (?i)refund."),
        "source": text("With system_event: where it comes from, such as github, or gantry for job.completed, job.failed, routine.run \
            and memory.write."),
        "event_type": text("With system_event: its type, such as issue.opened."),
        "filters": {"type": "object", "properties": {}, "required": [],
            "description": "With system_event: values that fields of its payload have, such as {\"repo\": \"a/b\"}."},
        "where": text("With system_event and webhook: a CEL condition, such as payload.action == 'labeled'."),
        "path": text("With webhook: the end of its URL, small letters, digits and -; the routine's id when left out.")
    });
    part(&["type"], properties, "What fires it.")
}

fn action() -> Value {
    let kinds = ["lightweight", "full_job", "system_event_text"];
    let properties = json!({
        "type": choice(&kinds, "lightweight: a short task for the model, without files and commands. full_job: a job in a container. \
            system_event_text: a line in the user's main session, without a model."),
        "prompt": text("With lightweight: the task."),
        "context_paths": list("With lightweight: documents of the user's memory that the model reads with it, such as context/priorities.md."),
        "use_tools": flag("With lightweight: whether the model may call tools; false when left out."),
        "max_tool_rounds": number("With lightweight and use_tools: rounds of tool calls, 1 to 20; 3 when left out."),
        "max_tokens": number("With lightweight: output tokens of each model call."),
        "tools": list(
            "With lightweight and full_job: the only tools that it may call; with + before every name, the built-in ones and these. \
             server__* is all tools of an MCP server."
        ),
        "model": text("With lightweight and full_job: one of the operator's models."),
        "effort": choice(&["low", "medium", "high"], "With lightweight and full_job: how much the model thinks."),
        "title": text("With full_job: its title."),
        "description": text("With full_job: the task."),
        "max_iterations": number("With full_job: model calls that it may make."),
        "image": text("With full_job: one of the operator's images."),
        "plan": flag("With full_job: whether it starts with a plan."),
        "review": flag("With full_job: whether a person accepts its result."),
        "text": text("With system_event_text: the line.")
    });
    part(&["type"], properties, "What a run does.")
}

fn guardrails() -> Value {
    let retry = json!({
        "max_attempts": number("1: no other attempt, which is the default."),
        "backoff_seconds": number("Wait before the second attempt; it doubles."),
        "backoff_max_seconds": number("Longest wait.")
    });
    let budget = json!({
        "max_tokens": number("Tokens of all its runs in the period."),
        "max_cost_usd": {"type": "number", "description": "Cost of all its runs in the period."},
        "per": choice(&["day", "week", "month"], "The period.")
    });
    let properties = json!({
        "cooldown_seconds": number("Shortest time between firings by messages, events and webhooks; 300 when left out."),
        "max_concurrent": number("Runs at the same time; 1 when left out."),
        "dedup_window_seconds": number("Time in which the same content fires it once."),
        "overlap": choice(&["skip", "queue_one", "cancel_previous"], "What a firing does while that many run; skip when left out."),
        "catch_up": choice(&["none", "once", "all"], "What happens to times that passed while the server was down; once when left out."),
        "catch_up_window_seconds": number("How late such a time may be."),
        "catch_up_max": number("How many of them are run with all."),
        "retry": part(&[], retry, "Further attempts of a failed run."),
        "disable_after_failures": number("Failures in a row after which it is disabled; 0: never."),
        "timeout_seconds": number("Longest time of a run."),
        "stagger_seconds": number("A fixed delay of its times, drawn from 0 to this."),
        "until": text("Time after which it does not fire, such as 2030-12-31T00:00:00Z."),
        "max_runs": number("Runs after which it does not fire."),
        "budget": part(&[], budget, "A limit of what its runs use.")
    });
    part(&[], properties, "Limits of its firings.")
}

fn notify() -> Value {
    let properties = json!({
        "channel": text("A name for the user's own sorting."),
        "on_attention": flag("When a run has something to report; true when left out."),
        "on_failure": flag("When a run fails; true when left out."),
        "on_success": flag("When a run has nothing to report; false when left out.")
    });
    part(&[], properties, "When the user is notified.")
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn number(description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": description})
}

fn list(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

fn choice(values: &[&str], description: &str) -> Value {
    json!({"type": "string", "enum": values, "description": description})
}

fn part(required: &[&str], properties: Value, description: &str) -> Value {
    let mut schema = object(required, properties);
    schema["description"] = json!(description);
    schema
}

/// The definition with the phrase of a trigger `at` where triggers have phrases: in `schedule`. A time with its offset needs
/// no time zone.
pub(super) fn with_phrases(mut definition: Value) -> Value {
    let Some(trigger) = definition.get_mut("trigger").and_then(Value::as_object_mut) else { return definition };
    if trigger.get("type") == Some(&json!("at")) && trigger.get("at").and_then(Value::as_str).is_some_and(is_absolute) {
        trigger.remove("timezone");
    }
    let is_phrase = |at: &&str| !is_absolute(at);
    let at = trigger.get("at").and_then(Value::as_str).filter(is_phrase).map(|at| at.trim().to_owned());
    if let Some(at) = at.filter(|_| trigger.get("type") == Some(&json!("at"))) {
        let has_word = ["in ", "at "].iter().any(|word| at.to_lowercase().starts_with(word));
        trigger.remove("at");
        trigger.insert("type".to_owned(), json!("cron"));
        trigger.insert("schedule".to_owned(), json!(if has_word { at } else { format!("at {at}") }));
    }
    definition
}

fn is_absolute(at: &str) -> bool {
    DateTime::parse_from_rfc3339(at.trim()).is_ok()
}

/// The definition without the fields that are null: models write null for what they leave out.
pub(super) fn without_nulls(mut definition: Value) -> Value {
    fn remove(value: &mut Value) {
        let Some(fields) = value.as_object_mut() else { return };
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(remove);
    }
    remove(&mut definition);
    definition
}

/// The properties of a patch, without the descriptions, which are those of a definition.
pub(super) fn patch_properties() -> Value {
    let mut properties = Value::Object(properties());
    remove_descriptions(&mut properties);
    properties
}

/// A property may be named `description`: its schema is an object.
fn remove_descriptions(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.retain(|name, value| name != "description" || value.is_object());
    fields.values_mut().for_each(remove_descriptions);
}

/// What a definition is checked against before it is read: the error of a wrong field comes from reading it, which names
/// it.
pub(super) fn accepted_properties() -> Map<String, Value> {
    let mut accepted = properties();
    for value in accepted.values_mut() {
        *value = json!({});
    }
    accepted
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

    #[rstest]
    #[case(json!({"type": "at", "at": "in 20m"}), json!({"type": "cron", "schedule": "in 20m"}))]
    #[case(json!({"type": "at", "at": "2030-12-01 07:00", "timezone": "Europe/Oslo"}),
        json!({"type": "cron", "schedule": "at 2030-12-01 07:00", "timezone": "Europe/Oslo"}))]
    #[case(json!({"type": "at", "at": "2030-12-01T07:00:00Z"}), json!({"type": "at", "at": "2030-12-01T07:00:00Z"}))]
    #[case(json!({"type": "at", "at": "2030-12-01T07:00:00Z", "timezone": "Europe/Oslo"}), json!({"type": "at", "at": "2030-12-01T07:00:00Z"}))]
    #[case(json!({"type": "cron", "schedule": "every 2h"}), json!({"type": "cron", "schedule": "every 2h"}))]
    fn one_time_may_be_a_phrase(#[case] trigger: Value, #[case] expected: Value) {
        assert_eq!(with_phrases(json!({"trigger": trigger}))["trigger"], expected);
    }

    /// The kinds of triggers and actions, with each of their fields that a model may set.
    #[test]
    fn every_field_of_a_trigger_and_an_action_has_a_property() {
        let properties = properties();
        for (part, whole) in [
            ("trigger", json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "UTC"})),
            ("trigger", json!({"type": "every", "every_seconds": 60, "anchor": "2030-12-01T07:00:00Z"})),
            ("trigger", json!({"type": "event", "channel": "c", "pattern": "p"})),
            (
                "trigger",
                json!({"type": "system_event", "source": "s", "event_type": "e", "filters": {}, "where": "true"}),
            ),
            ("trigger", json!({"type": "webhook", "path": "p", "where": "true"})),
            (
                "action",
                json!({"type": "lightweight", "prompt": "p", "context_paths": [], "max_tokens": 1, "use_tools": true,
                "max_tool_rounds": 1, "tools": [], "model": "m", "effort": "low"}),
            ),
            (
                "action",
                json!({"type": "full_job", "title": "t", "description": "d", "max_iterations": 1, "image": "i", "plan": true,
                "review": true, "tools": []}),
            ),
            ("action", json!({"type": "system_event_text", "text": "t"})),
        ] {
            let named = properties[part]["properties"].as_object().unwrap();
            for field in whole.as_object().unwrap().keys() {
                assert!(named.contains_key(field), "{part}.{field}");
            }
            let routine = json!({"name": "n", "trigger": {"type": "manual"}, "action": {"type": "system_event_text", "text": "t"}});
            let mut routine = routine;
            routine[part] = whole;
            serde_json::from_value::<protocol::CreateRoutine>(routine).unwrap();
        }
        let default = serde_json::to_value(protocol::Guardrails::default()).unwrap();
        let named = properties["guardrails"]["properties"].as_object().unwrap();
        let mut fields: Vec<&String> = default.as_object().unwrap().keys().collect();
        let optional = ["dedup_window_seconds", "timeout_seconds", "until", "max_runs", "budget"].map(str::to_owned);
        fields.extend(&optional);
        assert!(fields.iter().all(|field| named.contains_key(*field)), "{fields:?}");
    }
}
