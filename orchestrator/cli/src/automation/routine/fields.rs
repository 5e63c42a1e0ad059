//! The fields of a routine from the command line, as a body or a patch of the API.

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::RoutineTrigger;
use schedule::needs_zone;
use serde_json::{Map, Value, json};

use super::{
    action_fields::ActionFields,
    trigger_fields::{TriggerFields, time, whole_seconds},
};
use crate::exit::CliError;

use base::Zone;

/// The fields that `create` and `edit` share.
#[derive(Debug, Default, Args)]
pub(super) struct Fields {
    #[command(flatten)]
    trigger: TriggerFields,
    #[command(flatten)]
    action: ActionFields,
    #[command(flatten)]
    guardrails: GuardrailFields,
    #[command(flatten)]
    notify: NotifyFields,
    #[command(flatten)]
    general: GeneralFields,
}

/// Limits of firings.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Guardrails")]
struct GuardrailFields {
    /// Time after the start of a run in which events and webhooks start no other
    #[arg(long, value_name = "DURATION")]
    cooldown: Option<humantime::Duration>,
    /// Runs at the same time
    #[arg(long, value_name = "N")]
    max_concurrent: Option<u32>,
    /// Time in which the same payload starts one run only
    #[arg(long, value_name = "DURATION")]
    dedup_window: Option<humantime::Duration>,
    /// What happens to a firing while --max-concurrent runs are in progress
    #[arg(long, value_parser = ["skip", "queue_one", "cancel_previous"])]
    overlap: Option<String>,
    /// Which missed times run afterwards
    #[arg(long, value_parser = ["none", "once", "all"])]
    catch_up: Option<String>,
    /// How late a missed time may run
    #[arg(long, value_name = "DURATION")]
    catch_up_window: Option<humantime::Duration>,
    /// Attempts of a run in all
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Wait before the second attempt; it doubles with each
    #[arg(long, value_name = "DURATION")]
    backoff: Option<humantime::Duration>,
    /// Failures in a row that disable the routine; 0 for never
    #[arg(long, value_name = "N")]
    disable_after_failures: Option<u32>,
    /// The longest run
    #[arg(long, value_name = "DURATION")]
    timeout: Option<humantime::Duration>,
    /// Range of a fixed delay that is drawn from the routine's id
    #[arg(long, value_name = "DURATION")]
    stagger: Option<humantime::Duration>,
    /// No firing after this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// No firing after this number of runs
    #[arg(long, value_name = "N")]
    max_runs: Option<u64>,
    /// Tokens that the runs of a period may use
    #[arg(long, value_name = "N")]
    budget_tokens: Option<u64>,
    /// Cost in US dollars of the runs of a period
    #[arg(long, value_name = "USD")]
    budget_cost: Option<f64>,
    /// The period of the budget (default: day)
    #[arg(long, value_parser = ["day", "week", "month"])]
    budget_per: Option<String>,
}

/// Notifications of runs.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Notifications")]
struct NotifyFields {
    /// A name for sorting, passed on with each notification
    #[arg(long, value_name = "NAME")]
    notify_channel: Option<String>,
    /// Notify when a run has something to report (default: true)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    notify_attention: Option<bool>,
    /// Notify when a run failed (default: true)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    notify_failure: Option<bool>,
    /// Notify when a run succeeded with nothing to report (default: false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    notify_success: Option<bool>,
    /// Also post notifications here; the operator must allow it
    #[arg(long, value_name = "URL")]
    notify_url: Option<String>,
    /// Notify of every run that has something to report
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    deliver: Option<bool>,
}

/// Everything else.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options")]
struct GeneralFields {
    /// What it is for
    #[arg(long)]
    description: Option<String>,
    /// Where its agent works
    #[arg(long, value_parser = ["isolated", "main"])]
    session: Option<String>,
    /// When the main session looks at its line
    #[arg(long, value_parser = ["next_heartbeat", "now"])]
    wake: Option<String>,
    /// Put a summary line of each run into the main session
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    post_to_main: Option<bool>,
    /// The first word of that line (default: Cron)
    #[arg(long, value_name = "WORD")]
    post_to_main_prefix: Option<String>,
    /// Keep what fired a run with it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    persist_payload: Option<bool>,
}

impl Fields {
    /// The fields that the flags give, as a merge patch. `current` is the definition that they change; local times are in `zone`.
    pub(super) fn patch(
        self,
        current: &Map<String, Value>,
        zone: Zone,
        now: DateTime<Utc>,
    ) -> Result<Map<String, Value>, CliError> {
        let trigger = self.trigger.apply(current.get("trigger"), zone, now)?;
        let action = self.action.apply(current.get("action"))?;
        let has_budget = current.get("guardrails").and_then(|rails| rails.get("budget")).is_some_and(Value::is_object);
        let (notify, general) = (self.notify, self.general);
        let mut patch = given(json!({
            "guardrails": self.guardrails.fields(has_budget, zone, now)?,
            "notify": {
                "channel": notify.notify_channel,
                "on_attention": notify.notify_attention,
                "on_failure": notify.notify_failure,
                "on_success": notify.notify_success,
                "webhook_url": notify.notify_url,
            },
            "description": general.description,
            "session": general.session,
            "wake_mode": general.wake,
            "deliver": notify.deliver,
            "post_to_main": general.post_to_main,
            "post_to_main_prefix": general.post_to_main_prefix,
            "persist_payload": general.persist_payload,
        }));
        patch.extend(trigger.map(|trigger| ("trigger".to_owned(), trigger)));
        patch.extend(action.map(|action| ("action".to_owned(), action)));
        Ok(patch)
    }
}

impl GuardrailFields {
    fn fields(self, has_budget: bool, zone: Zone, now: DateTime<Utc>) -> Result<Value, CliError> {
        let seconds = |flag, duration: Option<humantime::Duration>| {
            duration.map(|duration| whole_seconds(flag, duration)).transpose()
        };
        let needs_period = !has_budget && (self.budget_tokens.is_some() || self.budget_cost.is_some());
        let period = self.budget_per.or_else(|| needs_period.then(|| "day".to_owned()));
        Ok(json!({
            "cooldown_seconds": seconds("--cooldown", self.cooldown)?,
            "max_concurrent": self.max_concurrent,
            "dedup_window_seconds": seconds("--dedup-window", self.dedup_window)?,
            "overlap": self.overlap,
            "catch_up": self.catch_up,
            "catch_up_window_seconds": seconds("--catch-up-window", self.catch_up_window)?,
            "retry": {"max_attempts": self.max_attempts, "backoff_seconds": seconds("--backoff", self.backoff)?},
            "disable_after_failures": self.disable_after_failures,
            "timeout_seconds": seconds("--timeout", self.timeout)?,
            "stagger_seconds": seconds("--stagger", self.stagger)?,
            "until": self.until.map(|until| time(&until, zone, now)).transpose()?,
            "max_runs": self.max_runs,
            "budget": {"max_tokens": self.budget_tokens, "max_cost_usd": self.budget_cost, "per": period},
        }))
    }
}

/// The fields of an object that have values.
pub(super) fn given(object: Value) -> Map<String, Value> {
    let Value::Object(fields) = object else { return Map::new() };
    let value_of = |value| if matches!(value, Value::Object(_)) { Value::Object(given(value)) } else { value };
    let is_given = |value: &Value| !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty());
    let fields = fields.into_iter().map(|(name, value)| (name, value_of(value)));
    fields.filter(|(_, value)| is_given(value)).collect()
}

/// Names the zone of the schedule in a body that needs one.
pub(super) fn name_zone(body: &mut Map<String, Value>, zone: Option<Zone>, now: DateTime<Utc>) {
    let Some((trigger, zone)) = body.get_mut("trigger").zip(zone) else { return };
    let written: Result<RoutineTrigger, _> = serde_json::from_value(trigger.clone());
    if written.is_ok_and(|written| needs_zone(&written, now)) {
        trigger["timezone"] = json!(zone.name());
    }
}

/// Merges a patch into a body (RFC 7396) with the trigger and the action as a whole.
pub(super) fn merge(body: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match (body.get_mut(&name), value) {
            (Some(Value::Object(before)), Value::Object(after)) if name != "trigger" && name != "action" => {
                merge(before, after);
            }
            (_, value) => drop(body.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        fields: Fields,
    }

    fn now() -> DateTime<Utc> {
        "2026-11-23T09:00:00Z".parse().unwrap()
    }

    fn tokyo() -> Zone {
        "Asia/Tokyo".parse().unwrap()
    }

    fn patched(arguments: &[&str], current: &Value) -> Value {
        let line = Line::try_parse_from(["gantry"].iter().chain(arguments)).unwrap();
        Value::Object(line.fields.patch(current.as_object().unwrap(), tokyo(), now()).unwrap())
    }

    #[rstest]
    #[case(&["--cron", "30 8 * * *"], json!({"type": "cron", "schedule": "30 8 * * *", "timezone": "Europe/Oslo"}))]
    #[case(&["--cron", "every day at 9:00 Asia/Tokyo"], json!({"type": "cron", "schedule": "every day at 9:00 Asia/Tokyo"}))]
    #[case(&["--every", "10m"], json!({"type": "every", "every_seconds": 600}))]
    fn another_time_keeps_the_other_fields_of_the_trigger(#[case] arguments: &[&str], #[case] expected: Value) {
        let current = json!({"trigger": {"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Oslo"}});
        assert_eq!(patched(arguments, &current)["trigger"], expected);
    }

    #[rstest]
    #[case(&["--cron", "0 9 * * *", "--timezone", "Europe/Oslo"],
        json!({"trigger": {"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Oslo"}}))]
    #[case(&["--every", "10m"], json!({"trigger": {"type": "every", "every_seconds": 600}}))]
    #[case(&["--at", "20m"], json!({"trigger": {"type": "at", "at": "2026-11-23T09:20:00Z"}}))]
    #[case(&["--at", "2026-12-01T07:00", "--timezone", "Europe/Oslo"],
        json!({"trigger": {"type": "at", "at": "2026-12-01T06:00:00Z"}}))]
    #[case(&["--at", "2026-12-01T07:00", "--until", "2026-12-24 08:00"],
        json!({"trigger": {"type": "at", "at": "2026-11-30T22:00:00Z"}, "guardrails": {"until": "2026-12-23T23:00:00Z"}}))]
    #[case(&["--every", "10m", "--timezone", "Europe/Oslo"], json!({"trigger": {"type": "every", "every_seconds": 600}}))]
    #[case(&["--timezone", "Europe/Oslo"], json!({}))]
    #[case(&["--webhook"], json!({"trigger": {"type": "webhook"}}))]
    #[case(&["--webhook", "in", "--where", "true"], json!({"trigger": {"type": "webhook", "path": "in", "where": "true"}}))]
    #[case(&["--on-message", "x", "--channel", "c"], json!({"trigger": {"type": "event", "pattern": "x", "channel": "c"}}))]
    #[case(&["--on-event", "a:b:c", "--filter", "n=1", "--filter", "s=x"],
        json!({"trigger": {"type": "system_event", "source": "a", "event_type": "b:c", "filters": {"n": 1, "s": "x"}}}))]
    #[case(&["--manual", "--prompt", "p", "--tools", "--context-path", "a.md"],
        json!({"trigger": {"type": "manual"},
            "action": {"type": "lightweight", "prompt": "p", "use_tools": true, "context_paths": ["a.md"]}}))]
    #[case(&["--prompt", "p", "--tool", "echo", "--approve", "memory_write"],
        json!({"action": {"type": "lightweight", "prompt": "p", "use_tools": true, "tools": ["echo"], "approve": ["memory_write"]}}))]
    #[case(&["--job", "d", "--tool", "shell", "--limit", "max_iterations=3"],
        json!({"action": {"type": "full_job", "description": "d", "tools": ["shell"], "limits": {"max_iterations": 3}}}))]
    #[case(&["--budget-tokens", "5", "--max-attempts", "2", "--overlap", "queue_one", "--notify-success", "--wake", "now"],
        json!({"guardrails": {"overlap": "queue_one", "retry": {"max_attempts": 2}, "budget": {"max_tokens": 5, "per": "day"}},
            "notify": {"on_success": true}, "wake_mode": "now"}))]
    #[case(&["--deliver=false"], json!({"deliver": false}))]
    fn flags_become_fields(#[case] arguments: &[&str], #[case] expected: Value) {
        assert_eq!(patched(arguments, &json!({})), expected);
    }

    #[test]
    fn details_change_the_trigger_and_action_that_are_there() {
        let current = json!({"trigger": {"type": "cron", "schedule": "0 9 * * *"},
            "action": {"type": "lightweight", "prompt": "p"}, "guardrails": {"budget": {"max_tokens": 5, "per": "week"}}});
        let expected = json!({"trigger": {"type": "cron", "schedule": "0 9 * * *", "timezone": "UTC"},
            "action": {"type": "lightweight", "prompt": "p", "use_tools": false}, "guardrails": {"budget": {"max_tokens": 6}}});
        assert_eq!(patched(&["--timezone", "UTC", "--tools=false", "--budget-tokens", "6"], &current), expected);
    }

    #[rstest]
    #[case(&["--cron", "x", "--every", "1m"])]
    #[case(&["--prompt", "x", "--job", "y"])]
    #[case(&["--overlap", "never"])]
    fn one_trigger_and_one_action(#[case] arguments: &[&str]) {
        assert!(Line::try_parse_from(["gantry"].iter().chain(arguments)).is_err());
    }

    #[rstest]
    #[case(&["--at", "soon"])]
    #[case(&["--at", "2026-03-29T02:30", "--timezone", "Europe/Oslo"])]
    #[case(&["--every", "1500ms"])]
    #[case(&["--on-event", "github"])]
    fn invalid_values_are_usage_errors(#[case] arguments: &[&str]) {
        let line = Line::try_parse_from(["gantry"].iter().chain(arguments)).unwrap();
        let error = line.fields.patch(&Map::new(), tokyo(), now()).unwrap_err();
        assert_eq!(error.exit(), crate::exit::Exit::Usage);
    }

    #[rstest]
    #[case(json!({"type": "cron", "schedule": "0 9 * * *"}), Some("Asia/Tokyo"))]
    #[case(json!({"type": "cron", "schedule": "at 2026-12-01 07:00"}), Some("Asia/Tokyo"))]
    #[case(json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Oslo"}), Some("Europe/Oslo"))]
    #[case(json!({"type": "cron", "schedule": "every day at 9:00 Europe/Oslo"}), None)]
    #[case(json!({"type": "cron", "schedule": "every 2h"}), None)]
    #[case(json!({"type": "manual"}), None)]
    fn a_schedule_that_needs_a_zone_gets_one(#[case] trigger: Value, #[case] expected: Option<&str>) {
        let mut body = json!({"trigger": trigger}).as_object().unwrap().clone();
        name_zone(&mut body, Some(tokyo()), now());
        assert_eq!(body["trigger"].get("timezone").and_then(Value::as_str), expected);
    }

    #[test]
    fn a_patch_is_merged_except_for_trigger_and_action() {
        let mut body = json!({"trigger": {"type": "webhook", "where": "x"}, "guardrails": {"overlap": "skip"}});
        let patch = json!({"trigger": {"type": "manual"}, "guardrails": {"max_runs": 3}});
        merge(body.as_object_mut().unwrap(), patch.as_object().unwrap().clone());
        assert_eq!(body, json!({"trigger": {"type": "manual"}, "guardrails": {"overlap": "skip", "max_runs": 3}}));
    }
}
