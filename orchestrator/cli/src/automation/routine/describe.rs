//! Triggers and times in words.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{RoutineAction, RoutineTrigger};

use crate::output::{duration, one_line};

use base::Zone;

/// A trigger in words. A schedule has the zone that it is stored with; one time is in `zone`.
pub(crate) fn trigger(trigger: &RoutineTrigger, zone: Zone) -> String {
    let text = match trigger {
        RoutineTrigger::Cron { schedule, timezone } => {
            format!("{} ({})", cron(schedule), timezone.as_deref().unwrap_or("UTC"))
        }
        RoutineTrigger::Every { every_seconds, .. } => format!("every {}", seconds(*every_seconds)),
        RoutineTrigger::At { at } => format!("once at {}", at.with_timezone(&zone).format("%F %R %Z")),
        RoutineTrigger::Event { channel, pattern } => {
            let channel = channel.as_ref().map(|channel| format!(" in {channel}")).unwrap_or_default();
            format!("message{channel} like /{pattern}/")
        }
        RoutineTrigger::SystemEvent { source, event_type, .. } => format!("event {source}:{event_type}"),
        RoutineTrigger::Webhook(webhook) => format!("webhook {}", webhook.path.as_deref().unwrap_or_default()),
        RoutineTrigger::Manual {} => "manual".to_owned(),
    };
    one_line(text.trim_end())
}

/// An action in words.
pub(crate) const fn action(action: &RoutineAction) -> &'static str {
    match action {
        RoutineAction::Lightweight(action) if action.use_tools => "lightweight, with tools",
        RoutineAction::Lightweight(_) => "lightweight",
        RoutineAction::FullJob(_) => "job",
        RoutineAction::SystemEventText { .. } => "line in the main session",
    }
}

/// The usual cron expressions in words, others as they are.
fn cron(schedule: &str) -> String {
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let fields = match fields[..] {
        ["0", minute, hour, day, month, weekday] | [minute, hour, day, month, weekday] => {
            (minute, hour, day, month, weekday)
        }
        _ => return schedule.to_owned(),
    };
    let time = |minute: &str, hour: &str| {
        let (minute, hour) = (minute.parse::<u8>().ok()?, hour.parse::<u8>().ok()?);
        Some(format!("{hour:02}:{minute:02}"))
    };
    let step = |field: &str| field.strip_prefix("*/").and_then(|step| step.parse::<u8>().ok());
    let words = match fields {
        ("*", "*", "*", "*", "*") => Some("every minute".to_owned()),
        (minutes, "*", "*", "*", "*") if step(minutes).is_some() => {
            step(minutes).map(|minutes| format!("every {minutes} min"))
        }
        (minute, "*", "*", "*", "*") => minute.parse::<u8>().ok().map(|minute| format!("hourly at :{minute:02}")),
        (minute, hours, "*", "*", "*") if step(hours).is_some() => {
            minute.parse::<u8>().ok().zip(step(hours)).map(|(minute, hours)| format!("every {hours} h at :{minute:02}"))
        }
        (minute, hour, "*", "*", "*") => time(minute, hour).map(|time| format!("daily at {time}")),
        (minute, hour, "*", "*", weekdays) => {
            time(minute, hour).zip(days(weekdays)).map(|(time, days)| format!("{days} at {time}"))
        }
        (minute, hour, day, "*", "*") => {
            time(minute, hour).zip(day.parse::<u8>().ok()).map(|(time, day)| format!("monthly on day {day} at {time}"))
        }
        _ => None,
    };
    words.unwrap_or_else(|| schedule.to_owned())
}

fn days(field: &str) -> Option<String> {
    const NAMES: [&str; 8] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let name = |day: &str| match day.parse::<usize>() {
        Ok(number) => NAMES.get(number).copied(),
        Err(_) => NAMES.into_iter().find(|name| name.eq_ignore_ascii_case(day)),
    };
    if let Some((first, last)) = field.split_once('-') {
        return match (name(first)?, name(last)?) {
            ("Mon", "Fri") => Some("weekdays".to_owned()),
            (first, last) => Some(format!("{first}-{last}")),
        };
    }
    field.split(',').map(name).collect::<Option<Vec<_>>>().map(|days| days.join(", "))
}

/// A duration in its largest units, such as `1h 30m`.
pub(crate) fn seconds(seconds: u64) -> String {
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}

/// How far a time is from `now`, in its largest unit: `in 5m`, `3d ago`.
pub(crate) fn relative(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let distance = at - now;
    let amount = duration(distance.abs());
    if distance < TimeDelta::zero() { format!("{amount} ago") } else { format!("in {amount}") }
}

/// A time in a zone: with the weekday if it is less than six days away, else with the date.
pub(crate) fn local(at: DateTime<Utc>, zone: Zone, now: DateTime<Utc>) -> String {
    let form = if (at - now).abs() < TimeDelta::days(6) { "%a %R %Z" } else { "%F %R %Z" };
    at.with_timezone(&zone).format(form).to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case("*/5 * * * *", "every 5 min")]
    #[case("0 */5 * * * *", "every 5 min")]
    #[case("* * * * *", "every minute")]
    #[case("7 * * * *", "hourly at :07")]
    #[case("0 */2 * * *", "every 2 h at :00")]
    #[case("30 7 * * *", "daily at 07:30")]
    #[case("0 9 * * MON-FRI", "weekdays at 09:00")]
    #[case("0 9 * * 1-5", "weekdays at 09:00")]
    #[case("0 9 * * mon,4,7", "Mon, Thu, Sun at 09:00")]
    #[case("0 9 * * SAT-SUN", "Sat-Sun at 09:00")]
    #[case("0 6 1 * *", "monthly on day 1 at 06:00")]
    #[case("0 0 1 1 *", "0 0 1 1 *")]
    #[case("0 9 * * MON#2", "0 9 * * MON#2")]
    #[case("15 0 9 * * *", "15 0 9 * * *")]
    #[case("@daily", "@daily")]
    fn the_usual_schedules_are_put_into_words(#[case] schedule: &str, #[case] words: &str) {
        assert_eq!(cron(schedule), words);
    }

    #[rstest]
    #[case(json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Europe/Berlin"}), "daily at 09:00 (Europe/Berlin)")]
    #[case(json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "UTC"}), "daily at 09:00 (UTC)")]
    #[case(json!({"type": "every", "every_seconds": 5400}), "every 1h 30m")]
    #[case(json!({"type": "at", "at": "2026-12-01T15:00:00Z"}), "once at 2026-12-01 16:00 CET")]
    #[case(json!({"type": "event", "pattern": "a\u{1b}b"}), "message like /a␛b/")]
    #[case(json!({"type": "event", "pattern": "x", "channel": "support"}), "message in support like /x/")]
    #[case(json!({"type": "system_event", "source": "github", "event_type": "push"}), "event github:push")]
    #[case(json!({"type": "webhook", "path": "deploys"}), "webhook deploys")]
    #[case(json!({"type": "manual"}), "manual")]
    fn every_trigger_has_words(#[case] written: Value, #[case] words: &str) {
        let parsed: RoutineTrigger = serde_json::from_value(written).unwrap();
        assert_eq!(trigger(&parsed, "Europe/Berlin".parse().unwrap()), words);
    }

    #[rstest]
    #[case(0, "in 0s", "Mon 10:00 CET")]
    #[case(119, "in 119s", "Mon 10:01 CET")]
    #[case(-300, "5m ago", "Mon 09:55 CET")]
    #[case(7_200, "in 2h", "Mon 12:00 CET")]
    #[case(4 * 86_400, "in 4d", "Fri 10:00 CET")]
    #[case(8 * 86_400, "in 8d", "2026-12-01 10:00 CET")]
    fn times_are_relative_and_local(#[case] seconds: i64, #[case] near: &str, #[case] at: &str) {
        let now: DateTime<Utc> = "2026-11-23T09:00:00Z".parse().unwrap();
        let time = now + TimeDelta::seconds(seconds);
        let berlin = "Europe/Berlin".parse().unwrap();
        assert_eq!((relative(time, now), local(time, berlin, now)), (near.to_owned(), at.to_owned()));
    }
}
