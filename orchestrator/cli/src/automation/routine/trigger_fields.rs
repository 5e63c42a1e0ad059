//! The trigger of a routine from the command line.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use clap::Args;
use serde_json::{Map, Value, json};

use super::fields::given;
use crate::{exit::CliError, input};

use base::Zone;

/// What fires a routine. Without one of the first seven, a new routine is triggered manually.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Trigger")]
pub(super) struct TriggerFields {
    /// A cron expression, or a phrase such as "every weekday at 9:00"
    #[arg(long, value_name = "EXPR", group = "trigger")]
    cron: Option<String>,
    /// A fixed interval, such as 10m
    #[arg(long, value_name = "DURATION", group = "trigger")]
    every: Option<humantime::Duration>,
    /// One time: RFC 3339, a local time such as 2030-12-01T07:00, or a duration from now such as 20m
    #[arg(long, value_name = "TIME", group = "trigger")]
    at: Option<String>,
    /// Signed requests to /api/webhooks/PATH (default: the routine's id)
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "", group = "trigger")]
    webhook: Option<String>,
    /// Your messages that match a regular expression
    #[arg(long, value_name = "REGEX", group = "trigger")]
    on_message: Option<String>,
    /// Events of a system, such as github:issue.opened
    #[arg(long, value_name = "SOURCE:TYPE", group = "trigger")]
    on_event: Option<String>,
    /// Only when triggered manually
    #[arg(long, group = "trigger")]
    manual: bool,
    /// IANA time zone of the schedule, and of the times that are read and shown (default: that of your settings, else the
    /// machine's)
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// With --every: a time that all others are counted from (default: the routine's creation)
    #[arg(long, value_name = "TIME")]
    anchor: Option<DateTime<Utc>>,
    /// With --on-message: only messages of this channel
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// With --on-event: value that a top-level field of the payload must have; can be repeated
    #[arg(long = "filter", value_name = "FIELD=VALUE")]
    filters: Vec<String>,
    /// With --webhook or --on-event: CEL expression that must be true
    #[arg(long = "where", value_name = "CEL")]
    condition: Option<String>,
    /// With --webhook: file with the key of the signatures; - reads standard input (default: generated)
    #[arg(long, value_name = "FILE")]
    secret_file: Option<String>,
}

impl TriggerFields {
    /// The trigger that the flags ask for; `None` if they leave `current` as it is.
    /// Local times are in `zone`.
    pub(super) fn apply(
        self,
        current: Option<&Value>,
        zone: Zone,
        now: DateTime<Utc>,
    ) -> Result<Option<Value>, CliError> {
        let base = self.base(zone, now)?;
        let secret = self.secret_file.as_deref().map(input::read).transpose()?;
        let is_cron = |kind: Option<&Value>| kind.and_then(Value::as_str) == Some("cron");
        let changes_zone = self.timezone.is_some() && is_cron(current.and_then(|current| current.get("type")));
        let details = given(json!({
            "anchor": self.anchor,
            "channel": self.channel,
            "where": self.condition,
            "secret": secret.as_deref().map(str::trim_end),
            "filters": filters(&self.filters)?,
        }));
        let mut fields = match (base, current) {
            // Another time or path for the same type of trigger leaves its other fields as they are.
            (Some(Value::Object(base)), Some(Value::Object(current))) if is_same_kind(&base, current) => {
                let mut fields = current.clone();
                if base.get("schedule").and_then(Value::as_str).is_some_and(names_zone) {
                    fields.remove("timezone");
                }
                fields.extend(base);
                fields
            }
            (Some(Value::Object(fields)), _) => fields,
            _ if details.is_empty() && !changes_zone => return Ok(None),
            (_, Some(Value::Object(fields))) => fields.clone(),
            _ => {
                return Err(CliError::Usage(
                    "no trigger: add --cron, --every, --at, --webhook, --on-message, --on-event or --manual".to_owned(),
                ));
            }
        };
        fields.extend(details);
        // Of other triggers it is the zone in which their times are read.
        if let Some(zone) = self.timezone.filter(|_| is_cron(fields.get("type"))) {
            fields.insert("timezone".to_owned(), Value::String(zone));
        }
        Ok(Some(Value::Object(fields)))
    }

    fn base(&self, zone: Zone, now: DateTime<Utc>) -> Result<Option<Value>, CliError> {
        if let Some(schedule) = &self.cron {
            return Ok(Some(json!({"type": "cron", "schedule": schedule})));
        }
        if let Some(every) = self.every {
            return Ok(Some(json!({"type": "every", "every_seconds": whole_seconds("--every", every)?})));
        }
        if let Some(at) = &self.at {
            let named = self.timezone.as_ref().map(|name| name.parse::<Zone>()).transpose();
            let named = named.map_err(|error| CliError::Usage(format!("--timezone: {error}")))?;
            return Ok(Some(json!({"type": "at", "at": time(at, named.unwrap_or(zone), now)?})));
        }
        if let Some(path) = &self.webhook {
            let mut trigger = json!({"type": "webhook"});
            if !path.is_empty() {
                trigger["path"] = json!(path);
            }
            return Ok(Some(trigger));
        }
        if let Some(pattern) = &self.on_message {
            return Ok(Some(json!({"type": "event", "pattern": pattern})));
        }
        if let Some(event) = &self.on_event {
            let (source, event_type) = event
                .split_once(':')
                .ok_or_else(|| CliError::Usage(format!("--on-event {event}: must be SOURCE:TYPE")))?;
            return Ok(Some(json!({"type": "system_event", "source": source, "event_type": event_type})));
        }
        Ok(self.manual.then(|| json!({"type": "manual"})))
    }
}

/// Whether the other fields of a trigger still mean the same: those of an event go with its name.
fn is_same_kind(base: &Map<String, Value>, current: &Map<String, Value>) -> bool {
    let kind = base.get("type").and_then(Value::as_str).unwrap_or_default();
    ["cron", "every", "webhook"].contains(&kind) && current.get("type").and_then(Value::as_str) == Some(kind)
}

/// Whether a phrase ends with a time zone.
fn names_zone(schedule: &str) -> bool {
    schedule.split_whitespace().last().is_some_and(|word| word.parse::<Zone>().is_ok())
}

/// Numbers and booleans are values of their type, everything else is a string.
fn filters(pairs: &[String]) -> Result<Value, CliError> {
    let parse = |pair: &String| {
        let (field, text) =
            pair.split_once('=').ok_or_else(|| CliError::Usage(format!("--filter {pair}: must be FIELD=VALUE")))?;
        let value = serde_json::from_str(text).ok().filter(|value: &Value| value.is_number() || value.is_boolean());
        Ok((field.to_owned(), value.unwrap_or_else(|| Value::String(text.to_owned()))))
    };
    pairs.iter().map(parse).collect::<Result<Map<_, _>, CliError>>().map(Value::Object)
}

pub(super) fn whole_seconds(flag: &str, duration: humantime::Duration) -> Result<u64, CliError> {
    if duration.subsec_nanos() == 0 {
        Ok(duration.as_secs())
    } else {
        Err(CliError::Usage(format!("{flag} {duration}: must be whole seconds")))
    }
}

/// A time: RFC 3339, a local time in `zone`, or a duration from `now`.
pub(crate) fn time(text: &str, zone: Zone, now: DateTime<Utc>) -> Result<DateTime<Utc>, CliError> {
    let invalid = |why: &str| CliError::Usage(format!("{text}: {why}"));
    if let Ok(at) = text.parse::<DateTime<Utc>>() {
        return Ok(at);
    }
    let local = ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]
        .into_iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok());
    if let Some(local) = local {
        let at = local.and_local_timezone(zone).earliest();
        return at.map(|at| at.to_utc()).ok_or_else(|| invalid("this local time does not exist in the time zone"));
    }
    let duration = text.parse::<humantime::Duration>().ok().and_then(|wait| TimeDelta::from_std(*wait).ok());
    duration
        .and_then(|wait| now.checked_add_signed(wait))
        .ok_or_else(|| invalid("must be RFC 3339, a local time such as 2030-12-01T07:00, or a duration such as 20m"))
}
