//! Which definitions are valid, and what patches do.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::request::Ceiling;

const LIMITS: DefinitionLimits = DefinitionLimits {
    min_interval_seconds: 60,
    max_tool_rounds: 20,
    max_name_chars: 128,
    max_prompt_bytes: 256 * 1024,
    max_condition_bytes: 4 * 1024,
    max_context_paths: 20,
};

fn ceiling() -> Ceiling {
    Ceiling {
        limits: protocol::Limits::default(),
        default_limits: protocol::Limits::default(),
        default_plan: false,
        default_image: "image".to_owned(),
        images: vec![],
        default_model: "model".to_owned(),
        models: vec!["other".to_owned()],
        tools: vec!["shell".to_owned()],
        mcp_servers: vec![],
    }
}

fn checked(request: Value) -> Result<CheckedDefinition, Vec<FieldError>> {
    let now = "2026-11-22T12:00:00Z".parse().unwrap();
    let ceiling = ceiling();
    let bounds = DefinitionBounds {
        ceiling: &ceiling,
        limits: &LIMITS,
        zone: Zone::UTC,
        now,
        created_at: now,
        keeps_trigger: false,
    };
    check(serde_json::from_value(request).unwrap(), &bounds)
}

fn valid() -> Value {
    json!({"name": "n", "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"}})
}

#[test]
fn defaults_depend_on_the_action() {
    let lightweight = checked(valid()).unwrap();
    assert_eq!((lightweight.session, lightweight.persist_payload), (RoutineSession::Isolated, false));
    let mut request = valid();
    request["action"] = json!({"type": "system_event_text", "text": "look"});
    assert_eq!(checked(request.clone()).unwrap().session, RoutineSession::Main);
    request["action"] = json!({"type": "full_job", "description": "d"});
    let full = checked(request).unwrap();
    assert_eq!((full.session, full.persist_payload), (RoutineSession::Isolated, true));
}

#[rstest]
#[case::name("/name", json!(" "), "name")]
#[case::long_name("/name", json!("x".repeat(129)), "name")]
#[case::two_lines("/name", json!("a\nb"), "name")]
#[case::prompt("/action/prompt", json!(""), "action.prompt")]
#[case::rounds("/action/max_tool_rounds", json!(21), "action.max_tool_rounds")]
#[case::no_rounds("/action/max_tool_rounds", json!(0), "action.max_tool_rounds")]
#[case::tokens("/action/max_tokens", json!(0), "action.max_tokens")]
#[case::model("/action/model", json!("unknown"), "action.model")]
#[case::path("/action/context_paths", json!(["../x"]), "action.context_paths[0]")]
#[case::paths("/action/context_paths", json!(vec!["a.md"; 21]), "action.context_paths")]
#[case::cron("/trigger", json!({"type": "cron", "schedule": "61 * * * *"}), "trigger.schedule")]
#[case::zone("/trigger", json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Nowhere"}), "trigger.timezone")]
#[case::too_often("/trigger", json!({"type": "every", "every_seconds": 59}), "trigger.every_seconds")]
#[case::past("/trigger", json!({"type": "at", "at": "2026-11-22T11:00:00Z"}), "trigger.at")]
#[case::pattern("/trigger", json!({"type": "event", "pattern": "("}), "trigger.pattern")]
#[case::condition("/trigger", json!({"type": "webhook", "where": "payload.action =="}), "trigger.where")]
#[case::webhook_path("/trigger", json!({"type": "webhook", "path": "A"}), "trigger.path")]
#[case::secret("/trigger", json!({"type": "webhook", "secret": "short"}), "trigger.secret")]
#[case::main("/session", json!("main"), "session")]
#[case::concurrent("/guardrails", json!({"max_concurrent": 0}), "guardrails.max_concurrent")]
#[case::attempts("/guardrails", json!({"retry": {"max_attempts": 0}}), "guardrails.retry.max_attempts")]
#[case::empty_budget("/guardrails", json!({"budget": {"per": "day"}}), "guardrails.budget")]
#[case::full_job("/action", json!({"type": "full_job", "description": " "}), "action.description")]
#[case::limits("/action", json!({"type": "full_job", "description": "d", "limits": {"memory_mb": 1_000_000}}), "action.limits.memory_mb")]
#[case::line("/action", json!({"type": "system_event_text", "text": ""}), "action.text")]
fn an_invalid_field_is_named(#[case] pointer: &str, #[case] value: Value, #[case] field: &str) {
    let mut request = valid();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    request.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
    let errors = checked(request).unwrap_err();
    assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field], "{errors:?}");
}

#[test]
fn a_full_job_holds_its_payload() {
    let mut request = valid();
    request["action"] = json!({"type": "full_job", "description": "d"});
    request["persist_payload"] = json!(false);
    assert_eq!(checked(request).unwrap_err()[0].field, "persist_payload");
}

fn patched(current: Value, patch: Value) -> Result<Value, FieldError> {
    let current: CreateRoutine = serde_json::from_value(current).unwrap();
    let patch = serde_json::from_value(patch).unwrap();
    apply_patch(&current, patch).map(|patched| serde_json::to_value(patched).unwrap())
}

#[test]
fn a_patch_merges_and_replaces_trigger_and_action() {
    let mut current = valid();
    current["description"] = json!("d");
    current["guardrails"] = json!({"cooldown_seconds": 5, "retry": {"max_attempts": 4}});
    let patch = json!({
        "description": null, "trigger": {"type": "every", "every_seconds": 60},
        "guardrails": {"retry": {"backoff_seconds": 7}, "cooldown_seconds": null},
    });
    let changed = patched(current, patch).unwrap();
    assert_eq!(changed.get("description"), None);
    assert_eq!(changed["trigger"], json!({"type": "every", "every_seconds": 60}));
    assert_eq!(
        changed["guardrails"]["retry"],
        json!({"max_attempts": 4, "backoff_seconds": 7, "backoff_max_seconds": 3600})
    );
    assert_eq!(changed["guardrails"]["cooldown_seconds"], 300);
}

#[test]
fn a_patch_names_what_it_may_not_change() {
    let error = patched(valid(), json!({"guardrails": {"overlap": "sometimes"}})).unwrap_err();
    assert_eq!(error.field, "guardrails.overlap");
    assert!(patched(valid(), json!({"rev": 3})).is_err());
    assert!(patched(valid(), json!({"name": null})).is_err());
}

#[test]
fn another_kind_of_action_takes_its_own_defaults() {
    let mut current = valid();
    current["session"] = json!("isolated");
    current["persist_payload"] = json!(false);
    let changed = patched(current, json!({"action": {"type": "system_event_text", "text": "t"}})).unwrap();
    assert_eq!((changed.get("session"), changed.get("persist_payload")), (None, None));
}
