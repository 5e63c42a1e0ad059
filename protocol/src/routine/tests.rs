//! The shapes of routines on the wire.

use serde_json::json;

use super::*;

#[test]
fn a_small_request_takes_its_defaults() {
    let request: CreateRoutine = serde_json::from_value(json!({
        "name": "n", "trigger": {"type": "webhook", "path": "deploys"}, "action": {"type": "lightweight", "prompt": "p"},
        "guardrails": {"retry": {"max_attempts": 3}, "budget": {"max_tokens": 5, "per": "week"}}, "notify": {"on_success": true},
    }))
    .unwrap();
    assert!(request.enabled && request.notify.on_failure && request.notify.on_success);
    assert_eq!(request.guardrails.cooldown_seconds, 300);
    assert_eq!(request.guardrails.retry, Retry { max_attempts: 3, backoff_seconds: 30, backoff_max_seconds: 3600 });
    let RoutineAction::Lightweight(action) = &request.action else { panic!("{:?}", request.action) };
    assert_eq!((action.max_tokens, action.use_tools, action.max_tool_rounds), (4096, false, 3));
    let again: CreateRoutine = serde_json::from_value(serde_json::to_value(&request).unwrap()).unwrap();
    assert_eq!(again, request);
}

#[test]
fn unknown_fields_are_refused_everywhere() {
    let valid = json!({"name": "n", "trigger": {"type": "every", "every_seconds": 60}, "action": {"type": "lightweight", "prompt": "p"}});
    serde_json::from_value::<CreateRoutine>(valid.clone()).unwrap();
    for (pointer, value) in [
        ("", json!({"name": "n", "x": 1})),
        ("/trigger", json!({"type": "every", "every_seconds": 60, "x": 1})),
        ("/trigger", json!({"type": "manual", "x": 1})),
        ("/trigger", json!({"type": "webhook", "x": 1})),
        ("/action", json!({"type": "lightweight", "prompt": "p", "x": 1})),
        ("/action", json!({"type": "full_job", "description": "p", "prompt": "x"})),
        ("/action", json!({"type": "system_event_text", "text": "p", "x": 1})),
    ] {
        let mut changed = valid.clone();
        *changed.pointer_mut(pointer).unwrap() = value.clone();
        assert!(serde_json::from_value::<CreateRoutine>(changed).is_err(), "{pointer} {value}");
    }
}

#[test]
fn the_iterations_of_the_limits_take_precedence() {
    let action: FullJobAction =
        serde_json::from_value(json!({"description": "d", "max_iterations": 5, "limits": {"max_iterations": 7}}))
            .unwrap();
    let request = action.clone().into_request("nightly", "p".to_owned());
    assert_eq!(request.limits.unwrap().max_iterations, Some(7));
    assert_eq!((request.title.as_deref(), request.prompt.as_str()), (Some("nightly"), "p"));
    let request = FullJobAction { limits: None, ..action }.into_request("nightly", "p".to_owned());
    assert_eq!(request.limits.unwrap().max_iterations, Some(5));
}
