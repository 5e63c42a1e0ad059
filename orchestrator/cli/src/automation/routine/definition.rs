//! What the owner of a routine writes, and the patch that turns one definition into another. Pure.

use chrono::{DateTime, Utc};
use protocol::{
    CreateRoutine, Routine, RoutineAction, RoutineActionKind, RoutinePatch, RoutineSession, RoutineTrigger,
};
use schedule::{canonicalize, needs_zone};
use serde_json::{Map, Value};

use crate::exit::CliError;

use base::Zone;

/// Fields that a patch replaces as a whole.
const WHOLE: [&str; 2] = ["trigger", "action"];

/// The definition of a stored routine, without secrets: they are never shown.
pub(super) fn of_routine(routine: &Routine) -> CreateRoutine {
    let mut definition = CreateRoutine::of(routine);
    take_secrets(&mut definition);
    definition
}

pub(super) fn json(definition: &CreateRoutine) -> Result<Map<String, Value>, CliError> {
    match serde_json::to_value(definition) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(CliError::Failed("a routine is not an object".to_owned())),
        Err(error) => Err(CliError::failed("cannot write the routine", error)),
    }
}

/// The patch that makes a stored routine what `wanted` says. Secrets that are given are always part of it, because a
/// stored one cannot be compared. What the server fills in when it is left out is taken from the stored routine; local times of a
/// new schedule are in `zone`.
pub(super) fn patch_to(
    routine: &Routine,
    mut wanted: CreateRoutine,
    zone: Zone,
    now: DateTime<Utc>,
) -> Result<RoutinePatch, CliError> {
    wanted.name = String::from(wanted.name.trim());
    if let Ok(trigger) = canonicalize(wanted.trigger.clone(), zone_of(&routine.trigger).unwrap_or(zone), now) {
        // One that means nothing is sent, so that the server says why.
        wanted.trigger = trigger;
    }
    let stored = of_routine(routine);
    let mut wanted = completed(wanted, &stored);
    let (trigger_secret, notify_secret) = take_secrets(&mut wanted);
    let mut patch = between(&json(&stored)?, &json(&wanted)?);
    if let Some(secret) = trigger_secret {
        let mut trigger = serde_json::to_value(&wanted.trigger)
            .map_err(|error| CliError::failed("cannot write the trigger", error))?;
        trigger["secret"] = Value::String(secret);
        patch.insert("trigger".to_owned(), trigger);
    }
    if let Some(secret) = notify_secret {
        let notify = patch.entry("notify").or_insert_with(|| Value::Object(Map::new()));
        notify["webhook_secret"] = Value::String(secret);
    }
    Ok(patch)
}

/// The zone that a schedule without one keeps.
fn zone_of(stored: &RoutineTrigger) -> Option<Zone> {
    let RoutineTrigger::Cron { timezone, .. } = stored else { return None };
    Some(timezone.as_deref().and_then(|name| name.parse().ok()).unwrap_or(Zone::UTC))
}

/// Names the zone of a new schedule that needs one.
pub(super) fn name_zone(trigger: &mut RoutineTrigger, zone: Option<Zone>, now: DateTime<Utc>) {
    let is_needed = needs_zone(trigger, now);
    if let (RoutineTrigger::Cron { timezone, .. }, Some(zone), true) = (trigger, zone, is_needed) {
        *timezone = Some(zone.name().to_owned());
    }
}

fn take_secrets(definition: &mut CreateRoutine) -> (Option<String>, Option<String>) {
    definition.notify.has_webhook_secret = None;
    let notify = definition.notify.webhook_secret.take();
    let RoutineTrigger::Webhook(webhook) = &mut definition.trigger else { return (None, notify) };
    webhook.has_secret = None;
    (webhook.secret.take(), notify)
}

/// Fills in what the server would: the same values as are stored, where it chooses them.
fn completed(mut wanted: CreateRoutine, stored: &CreateRoutine) -> CreateRoutine {
    match (&mut wanted.trigger, &stored.trigger) {
        (RoutineTrigger::Every { anchor, .. }, RoutineTrigger::Every { anchor: kept, .. }) => {
            *anchor = anchor.or(*kept);
        }
        (RoutineTrigger::Webhook(webhook), RoutineTrigger::Webhook(kept)) => {
            webhook.path = webhook.path.take().or_else(|| kept.path.clone());
        }
        _ => {}
    }
    let default = match wanted.action {
        RoutineAction::SystemEventText { .. } => RoutineSession::Main,
        _ => RoutineSession::Isolated,
    };
    wanted.session = wanted.session.or(Some(default));
    if wanted.persist_payload.is_none() && wanted.action.kind() == stored.action.kind() {
        let is_job = wanted.action.kind() == RoutineActionKind::FullJob;
        wanted.persist_payload = if is_job { stored.persist_payload } else { Some(false) };
    }
    wanted
}

/// The merge patch (RFC 7396) between two definitions, with the trigger and the action as a whole.
pub(super) fn between(old: &Map<String, Value>, new: &Map<String, Value>) -> RoutinePatch {
    let mut patch = Map::new();
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        let change = match (old.get(name), value) {
            (Some(Value::Object(before)), Value::Object(after)) if !WHOLE.contains(&name.as_str()) => {
                Value::Object(between(before, after))
            }
            _ => value.clone(),
        };
        patch.insert(name.clone(), change);
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    patch
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn written(value: Value) -> CreateRoutine {
        serde_json::from_value(value).unwrap()
    }

    /// A routine as the server stores what was written.
    fn stored(value: &Value) -> Routine {
        let definition = written(value.clone());
        let mut routine = json!({"id": protocol::RoutineId::nil(), "user_id": "ada", "disabled_reason": null,
            "disabled_at": null, "rev": 3, "persist_payload": false, "session": "isolated", "post_to_main_prefix": null,
            "state": null, "last_run_at": null, "next_fire_at": null, "run_count": 0, "consecutive_failures": 0,
            "verified": true, "status": "active", "created_at": "2026-01-01T00:00:00Z", "description": null,
            "updated_at": "2026-01-01T00:00:00Z"});
        let fields = super::json(&definition).unwrap();
        routine.as_object_mut().unwrap().extend(fields);
        if routine["trigger"]["type"] == "every" {
            routine["trigger"]["anchor"] = json!("2026-01-01T00:00:00Z");
        }
        if routine["trigger"]["type"] == "cron" && routine["trigger"].get("timezone").is_none() {
            routine["trigger"]["timezone"] = json!("Europe/Oslo");
        }
        if routine["trigger"]["type"] == "webhook" {
            routine["trigger"].as_object_mut().unwrap().remove("secret");
            routine["trigger"]["has_secret"] = json!(true);
            if routine["trigger"].get("path").is_none() {
                routine["trigger"]["path"] = json!("00000000");
            }
        }
        serde_json::from_value(routine).unwrap()
    }

    fn tokyo() -> Zone {
        "Asia/Tokyo".parse().unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn light(trigger: Value) -> Value {
        json!({"name": "a", "trigger": trigger, "action": {"type": "lightweight", "prompt": "p"}})
    }

    #[rstest]
    #[case(light(json!({"type": "every", "every_seconds": 60})))]
    #[case(light(json!({"type": "webhook"})))]
    #[case(light(json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "UTC"})))]
    #[case(light(json!({"type": "cron", "schedule": "0 9 * * *"})))]
    #[case(json!({"name": "a", "trigger": {"type": "manual"}, "notify": {"on_success": true},
        "guardrails": {"budget": {"max_tokens": 5, "per": "day"}}, "action": {"type": "full_job", "description": "d"}}))]
    fn a_definition_that_was_applied_changes_nothing(#[case] definition: Value) {
        assert_eq!(
            patch_to(&stored(&definition), written(definition), tokyo(), DateTime::UNIX_EPOCH).unwrap(),
            Map::new()
        );
    }

    #[rstest]
    #[case("every weekday at 9:00", "0 9 * * MON-FRI")]
    #[case("0  9 * *   *", "0 9 * * *")]
    fn a_phrase_is_compared_by_its_meaning(#[case] phrase: &str, #[case] expression: &str) {
        let routine = stored(&light(json!({"type": "cron", "schedule": expression})));
        let wanted = written(light(json!({"type": "cron", "schedule": phrase})));
        assert_eq!(patch_to(&routine, wanted, tokyo(), DateTime::UNIX_EPOCH).unwrap(), Map::new());
    }

    #[test]
    fn only_what_differs_is_sent_and_what_was_removed_is_null() {
        let mut before = light(json!({"type": "every", "every_seconds": 60}));
        before["description"] = json!("old");
        before["guardrails"] = json!({"cooldown_seconds": 5, "budget": {"max_tokens": 5, "per": "day"}});
        let mut after = light(json!({"type": "every", "every_seconds": 120}));
        after["guardrails"] = json!({"budget": {"max_cost_usd": 1.0, "per": "day"}});
        let expected = json!({"trigger": {"type": "every", "every_seconds": 120, "anchor": "2026-01-01T00:00:00Z"},
            "guardrails": {"cooldown_seconds": 300, "budget": {"max_cost_usd": 1.0, "max_tokens": null}},
            "description": null});
        assert_eq!(
            Value::Object(patch_to(&stored(&before), written(after), tokyo(), DateTime::UNIX_EPOCH).unwrap()),
            expected
        );
    }

    #[test]
    fn a_schedule_in_place_of_another_trigger_has_the_zone_of_the_command() {
        let wanted = written(light(json!({"type": "cron", "schedule": "0 9 * * *"})));
        let stored = stored(&light(json!({"type": "manual"})));
        let patch = patch_to(&stored, wanted, tokyo(), DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(patch["trigger"], json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Asia/Tokyo"}));
    }

    #[test]
    fn secrets_are_always_sent() {
        let mut definition = light(json!({"type": "webhook", "path": "in", "secret": "sixteen bytes long"}));
        definition["notify"] = json!({"webhook_secret": "another of sixteen"});
        let patch = patch_to(&stored(&definition), written(definition), tokyo(), DateTime::UNIX_EPOCH).unwrap();
        let expected = json!({"trigger": {"type": "webhook", "path": "in", "secret": "sixteen bytes long"},
            "notify": {"webhook_secret": "another of sixteen"}});
        assert_eq!(Value::Object(patch), expected);
    }
}
