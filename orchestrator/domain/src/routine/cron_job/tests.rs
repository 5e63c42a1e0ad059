//! Tables of cron jobs: older shapes, routines, patches, and what is refused.

use protocol::{CronJobState, RunStatus};
use rstest::rstest;

use super::*;

fn id() -> RoutineId {
    RoutineId::nil()
}

fn routine(changes: &Value) -> Routine {
    let mut routine = json!({"id": id(), "user_id": "ada", "name": "news", "description": null, "enabled": true,
        "disabled_reason": null, "disabled_at": null, "rev": 3, "trigger": {"type": "every", "every_seconds": 60},
        "action": {"type": "lightweight", "prompt": format!("[cron:{}] news: look", id()), "use_tools": true,
        "max_tool_rounds": 20}, "guardrails": {}, "notify": {}, "session": "isolated", "wake_mode": "next_heartbeat",
        "deliver": false, "post_to_main": true, "post_to_main_prefix": null, "persist_payload": false, "state": null,
        "last_run_at": null, "next_fire_at": "1970-01-01T00:00:05Z", "run_count": 0, "consecutive_failures": 0,
        "verified": true, "status": "active", "created_at": "1970-01-01T00:00:01Z", "updated_at": "1970-01-01T00:00:02Z"});
    routine.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    serde_json::from_value(routine).unwrap()
}

#[rstest]
#[case::at(json!({"atMs": 5}), json!({"message": "m"}), json!({"type": "at", "at": "1970-01-01T00:00:00.005Z"}))]
#[case::every(json!({"everyMs": 60_000}), json!({"message": "m"}), json!({"type": "every", "every_seconds": 60}))]
#[case::anchor(json!({"kind": "every", "everyMs": 60_000, "anchorMs": 0}), json!({"message": "m"}),
    json!({"type": "every", "every_seconds": 60, "anchor": "1970-01-01T00:00:00Z"}))]
#[case::cron(json!({"expr": "0 9 * * *", "tz": "Europe/Oslo"}), json!({"kind": "agentTurn", "message": "m"}),
    json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Oslo"}))]
fn older_shapes_of_a_turn_become_a_routine(#[case] schedule: Value, #[case] payload: Value, #[case] expected: Value) {
    let job = json!({"name": "news", "schedule": schedule, "payload": payload});
    for params in [job.clone(), json!({"job": job}), json!({"data": job}), json!({"data": {"job": job}})] {
        let made = to_routine(id(), added(params).unwrap().0, 20).unwrap();
        assert_eq!(serde_json::to_value(&made.trigger).unwrap(), expected);
        let RoutineAction::Lightweight(action) = made.action else { panic!("a turn is a lightweight action") };
        assert_eq!(action.prompt, format!("[cron:{}] news: m", id()));
        assert_eq!((action.use_tools, action.max_tool_rounds), (true, 20));
        assert_eq!((made.session, made.post_to_main, made.enabled), (Some(RoutineSession::Isolated), true, true));
        assert_eq!(made.wake_mode, WakeMode::NextHeartbeat);
    }
}

#[test]
fn a_line_goes_to_the_main_session() {
    let params = json!({"name": "n", "schedule": {"everyMs": 60_000}, "payload": {"text": "tea"}, "wakeMode": "now",
        "enabled": false, "runtime": {"maxAttempts": 3, "retryBackoffMs": 5_000}, "isolation": {"postToMainPrefix": "P"}});
    let made = to_routine(id(), added(params).unwrap().0, 20).unwrap();
    assert_eq!(made.action, RoutineAction::SystemEventText { text: "tea".to_owned() });
    assert_eq!((made.session, made.wake_mode), (Some(RoutineSession::Main), WakeMode::Now));
    assert_eq!((made.enabled, made.post_to_main, made.post_to_main_prefix.as_deref()), (false, false, Some("P")));
    assert_eq!((made.guardrails.retry.max_attempts, made.guardrails.retry.backoff_seconds), (3, 5));
}

#[test]
fn a_turn_is_delivered_where_it_says() {
    let params = json!({"name": "n", "schedule": {"everyMs": 60_000}, "payload": {"message": "m", "deliver": true,
        "provider": "webhook", "to": "https://a.example/x", "timeoutSeconds": 30}});
    let made = to_routine(id(), added(params).unwrap().0, 5).unwrap();
    assert_eq!((made.deliver, made.notify.webhook_url.as_deref()), (true, Some("https://a.example/x")));
    assert!(made.notify.on_attention);
    assert_eq!(made.guardrails.timeout_seconds, Some(30));
    let RoutineAction::Lightweight(action) = made.action else { panic!("a turn is a lightweight action") };
    assert_eq!(action.max_tool_rounds, 5, "the operator's limit");
}

/// Fields that openclaw/openclaw stores and accepts.
#[test]
fn a_job_that_another_scheduler_stored_becomes_a_routine() {
    let params = json!({"id": "9f1c", "agentId": "main", "sessionKey": null, "name": "brief", "enabled": true,
        "deleteAfterRun": false, "createdAtMs": 1, "updatedAtMs": 2, "sessionTarget": "isolated", "wakeMode": "now",
        "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": ""},
        "payload": {"kind": "agentTurn", "message": "m", "model": "opus", "timeoutSeconds": 60},
        "delivery": {"mode": "announce", "channel": "slack", "to": "channel:C12", "bestEffort": true},
        "state": {"nextRunAtMs": 3, "consecutiveErrors": 0}});
    let (job, warnings) = added(params).unwrap();
    let made = to_routine(id(), job, 20).unwrap();
    assert_eq!(made.trigger, RoutineTrigger::Cron { schedule: "0 7 * * *".to_owned(), timezone: None });
    assert_eq!((made.deliver, made.notify.webhook_url, made.wake_mode), (true, None, WakeMode::Now));
    let ignored: Vec<&str> = warnings.iter().map(|warning| warning.field.as_str()).collect();
    assert_eq!(ignored, ["agentId", "payload.model", "delivery.to", "delivery.bestEffort", "delivery.channel"]);
    assert!(warnings.iter().all(|warning| warning.code == "field_ignored"), "{warnings:?}");
}

#[rstest]
#[case(json!({"at": "2026-12-01T07:00:00Z"}), json!({"type": "at", "at": "2026-12-01T07:00:00Z"}))]
#[case(json!({"kind": "at", "at": "2026-12-01T07:00"}), json!({"type": "at", "at": "2026-12-01T07:00:00Z"}))]
#[case(json!({"at": "2026-12-01T07:00:00.250+01:00"}), json!({"type": "at", "at": "2026-12-01T06:00:00.250Z"}))]
#[case(json!({"atMs": "2026-12-01T07:00:00Z"}), json!({"type": "at", "at": "2026-12-01T07:00:00Z"}))]
#[case(json!({"atMs": 5.0}), json!({"type": "at", "at": "1970-01-01T00:00:00.005Z"}))]
#[case(json!({"kind": "at", "atMs": 1.764_572_400_000_7e12}), json!({"type": "at", "at": "2025-12-01T07:00:00Z"}))]
#[case(json!({"everyMs": 60_000.0, "anchorMs": 0.5, "staggerMs": 0}),
    json!({"type": "every", "every_seconds": 60, "anchor": "1970-01-01T00:00:00Z"}))]
fn times_of_another_scheduler_are_read(#[case] schedule: Value, #[case] expected: Value) {
    let job = added(json!({"name": "n", "schedule": schedule, "payload": {"message": "m"}})).unwrap().0;
    let made = to_routine(id(), job, 20).unwrap();
    assert_eq!(serde_json::to_value(&made.trigger).unwrap(), expected);
}

#[rstest]
#[case::none(json!({"message": "m", "deliver": true}), json!({"mode": "none"}), (false, None), &[])]
#[case::last(json!({"message": "m"}), json!({"channel": "last"}), (true, None), &[])]
#[case::webhook(json!({"message": "m"}), json!({"mode": "webhook", "to": "https://a.example"}), (true, Some("https://a.example")), &[])]
#[case::older(json!({"message": "m", "deliver": true, "channel": "telegram", "to": "-100"}), json!(null), (true, None),
    &["payload.to", "payload.channel"])]
#[case::older_last(json!({"message": "m", "deliver": true, "channel": "last"}), json!(null), (true, None), &[])]
#[case::line(json!({"text": "t"}), json!({"mode": "announce"}), (false, None), &["delivery.mode"])]
fn a_delivery_is_one_of_the_routine(
    #[case] payload: Value,
    #[case] delivery: Value,
    #[case] expected: (bool, Option<&str>),
    #[case] ignored: &[&str],
) {
    let job = json!({"name": "n", "schedule": {"everyMs": 60_000}, "payload": payload, "delivery": delivery});
    let (job, warnings) = added(job).unwrap();
    let made = to_routine(id(), job, 20).unwrap();
    assert_eq!((made.deliver, made.notify.webhook_url.as_deref()), expected);
    assert_eq!(warnings.iter().map(|warning| warning.field.as_str()).collect::<Vec<_>>(), ignored);
}

#[rstest]
#[case::time(json!({"name": "n", "schedule": {"at": "noon"}, "payload": {"message": "m"}}), "schedule.at: must be a time")]
#[case::mode(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m"}, "delivery": {"mode": "fax"}}), "delivery.mode")]
#[case::not_an_object(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m"}, "delivery": "slack"}), "delivery: must be")]
#[case::delivery(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m"}, "delivery": {"x": 1}}), "delivery.x")]
#[case::unknown(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m"}, "x": 1}), "x")]
#[case::unknown_inside(json!({"name": "n", "schedule": {"everyMs": 1_000, "x": 1}, "payload": {"message": "m"}}), "x")]
#[case::beside_a_wrapper(json!({"job": {"name": "n"}, "name": "n"}), "job")]
#[case::no_name(json!({"schedule": {"everyMs": 1_000}, "payload": {"message": "m"}}), "name")]
#[case::no_schedule(json!({"name": "n", "payload": {"message": "m"}}), "schedule")]
#[case::two_kinds(json!({"name": "n", "schedule": {"everyMs": 1_000, "atMs": 1}, "payload": {"message": "m"}}), "kind")]
#[case::parts_of_a_second(json!({"name": "n", "schedule": {"everyMs": 1_500}, "payload": {"message": "m"}}), "everyMs")]
#[case::negative(json!({"name": "n", "schedule": {"everyMs": -1}, "payload": {"message": "m"}}), "schedule.everyMs: must be an integer of at least 0")]
#[case::text_for_a_schedule(json!({"name": "n", "schedule": "0 7 * * *", "payload": {"message": "m"}}), "schedule: must be an object")]
#[case::text_for_a_number(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m", "timeoutSeconds": "5"}}),
    "payload.timeoutSeconds: must be an integer of at least 0")]
#[case::empty(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": " "}}), "payload.message: must not be empty")]
#[case::provider(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m", "provider": "sms"}}), "provider")]
#[case::no_target(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m", "provider": "webhook"}}), "to")]
#[case::not_delivered(json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m", "to": "https://a.example"}}),
    "payload.to: nothing is posted to it unless `deliver` is true")]
#[case::far(json!({"name": "n", "schedule": {"atMs": i64::MAX}, "payload": {"message": "m"}}), "atMs")]
#[case::list(json!([1]), "params")]
fn invalid_parameters_are_named(#[case] params: Value, #[case] part: &str) {
    let made = added(params).and_then(|(job, _)| to_routine(id(), job, 20));
    let FieldError { field, message } = made.unwrap_err();
    assert!(format!("{field}: {message}").contains(part), "{field}: {message}");
}

#[rstest]
#[case(json!({}), json!({}))]
#[case(json!({"enabled": false}), json!({"enabled": false}))]
#[case(json!({"schedule": {"everyMs": 120_000}}), json!({"trigger": {"type": "every", "every_seconds": 120}}))]
#[case(json!({"wakeMode": "now", "description": "d"}), json!({"description": "d", "wake_mode": "now"}))]
#[case(json!({"payload": {"message": "read"}}), json!({"action": {"type": "lightweight",
    "prompt": format!("[cron:{}] news: read", id()), "max_tokens": 4096, "use_tools": true, "max_tool_rounds": 20}}))]
#[case(json!({"name": "b: c"}), json!({"action": {"type": "lightweight",
    "prompt": format!("[cron:{}] b: c: look", id()), "max_tokens": 4096, "use_tools": true, "max_tool_rounds": 20},
    "name": "b: c"}))]
#[case(json!({"payload": {"text": "tea"}}), json!({"session": null, "post_to_main": false,
    "action": {"type": "system_event_text", "text": "tea"}}))]
#[case(json!({"payload": {"message": "look", "deliver": true, "to": "https://a.example", "timeoutSeconds": 9},
    "runtime": {"maxAttempts": 2}}), json!({"deliver": true, "notify": {"on_attention": true, "webhook_url": "https://a.example"},
    "guardrails": {"timeout_seconds": 9, "retry": {"max_attempts": 2}}}))]
#[case(json!({"payload": {"message": "look", "deliver": false}}),
    json!({"deliver": false, "notify": {"on_attention": false, "webhook_url": null}}))]
fn a_patch_changes_what_it_names(#[case] given: Value, #[case] expected: Value) {
    let changes = to_patch(&routine(&json!({})), patch(given).unwrap().0, 20).unwrap();
    assert_eq!(Value::Object(changes), expected);
}

#[test]
fn a_patch_keeps_the_kind_of_a_job() {
    let full = routine(&json!({"action": {"type": "full_job", "description": "d", "priority": 3}}));
    let changes = to_patch(&full, patch(json!({"payload": {"message": "e"}})).unwrap().0, 20).unwrap();
    assert_eq!(changes["action"]["description"], "e");
    assert_eq!((&changes["action"]["type"], &changes["action"]["priority"]), (&json!("full_job"), &json!(3)));
    assert!(patch(json!({"prompt": "x"})).is_err());
}

#[test]
fn a_routine_with_a_schedule_is_shown_as_a_cron_job() {
    let last = LastRun {
        status: RunStatus::Failed,
        reason: Some(protocol::RunReason::LlmError),
        message: Some("no answer".to_owned()),
        started_at: DateTime::from_timestamp_millis(3_000),
        completed_at: DateTime::from_timestamp_millis(3_250),
    };
    let job = shown(CronJobFacts::new(routine(&json!({"last_run_at": "1970-01-01T00:00:03Z"})), Some(last))).unwrap();
    let expected = json!({"id": id(), "name": "news", "enabled": true, "createdAtMs": 1_000, "updatedAtMs": 2_000,
        "schedule": {"kind": "every", "everyMs": 60_000}, "sessionTarget": "isolated", "wakeMode": "next-heartbeat",
        "payload": {"kind": "agentTurn", "message": "look"}, "isolation": {}, "runtime": {},
        "state": {"nextRunAtMs": 5_000, "lastRunAtMs": 3_000, "lastStatus": "error",
            "lastError": "llm_error: no answer", "lastDurationMs": 250}});
    assert_eq!(serde_json::to_value(job).unwrap(), expected);
    let full = json!({"action": {"type": "full_job", "description": "d"}, "enabled": false});
    let job = shown(CronJobFacts::new(routine(&full), None)).unwrap();
    assert!(matches!(job.payload, CronPayload::AgentTurn { message, .. } if message == "d"));
    assert_eq!(job.state, CronJobState::default());
    let webhook = json!({"trigger": {"type": "webhook", "path": "in"}});
    assert_eq!(shown(CronJobFacts::new(routine(&webhook), None)), None);
}

#[test]
fn an_added_job_is_shown_as_it_was_given() {
    let params = json!({"name": "a: b", "schedule": {"kind": "cron", "expr": "0 9 * * *", "tz": "UTC"},
        "payload": {"kind": "agentTurn", "message": "x: y", "deliver": true, "provider": "webhook", "to": "https://a.example"},
        "runtime": {"maxAttempts": 4, "retryBackoffMs": 1_000}, "isolation": {"postToMainPrefix": "P"}});
    let made = to_routine(id(), added(params.clone()).unwrap().0, 20).unwrap();
    let stored = routine(
        &serde_json::to_value(made)
            .unwrap()
            .as_object()
            .map(|fields| {
                let mut fields = fields.clone();
                fields.insert("persist_payload".to_owned(), json!(false));
                Value::Object(fields)
            })
            .unwrap(),
    );
    let job = serde_json::to_value(shown(CronJobFacts::new(stored, None)).unwrap()).unwrap();
    for field in ["name", "schedule", "payload", "runtime", "isolation"] {
        assert_eq!(job[field], params[field], "{field}");
    }
}

#[test]
fn a_taken_name_gets_a_number_within_the_limit() {
    assert_eq!(numbered_name("news", 2), "news (2)");
    let long = numbered_name(&"ü".repeat(200), 12);
    assert_eq!((long.chars().count(), long.ends_with("ü (12)")), (MAX_NAME_CHARS, true));
}
