//! The form in which the trigger of a routine is stored, checked. Pure.
//!
//! A schedule of local times is stored with its zone, so that no later change of a default moves it.

use chrono::{DateTime, Datelike, SubsecRound, Utc};
use protocol::RoutineTrigger;

use base::Zone;

use super::{
    error::ScheduleError,
    phrase::{self, Zones},
    times::{MAX_SCHEDULE_BYTES, Schedule, zone_named},
};

/// What a trigger of a new or changed routine is stored as: phrases become what they mean, local times without a zone are
/// in `zone`, and its times are checked.
/// An `every` without an anchor keeps none, and so counts from `created_at` whenever it is changed. Triggers without
/// times are returned as they are.
pub fn normalize(
    trigger: RoutineTrigger,
    zone: Zone,
    now: DateTime<Utc>,
    created_at: DateTime<Utc>,
    min_interval_seconds: u64,
) -> Result<RoutineTrigger, ScheduleError> {
    let trigger = canonicalize(trigger, zone, now)?;
    if let RoutineTrigger::Cron { schedule, .. } = &trigger
        && let Some(message) = step_beyond_field(schedule)
    {
        return Err(ScheduleError::Expression { message });
    }
    let Some(schedule) = Schedule::of(&trigger, created_at)? else { return Ok(trigger) };
    match &schedule {
        Schedule::At(at) if *at <= now => return Err(ScheduleError::Past { at: *at, now }),
        Schedule::At(at) | Schedule::Every { anchor: at, .. } if !(0..9999).contains(&at.year()) => {
            return Err(ScheduleError::TooFar);
        }
        _ if schedule.next_after(now).is_none() => return Err(ScheduleError::NeverFires { now }),
        _ => {}
    }
    match schedule.smallest_gap(now) {
        Some(gap) if gap.num_seconds() < i64::try_from(min_interval_seconds).unwrap_or(i64::MAX) => {
            Err(ScheduleError::TooOften { seconds: gap.num_seconds(), minimum: min_interval_seconds })
        }
        _ => Ok(trigger),
    }
}

/// What a trigger means, without a check of its times: a phrase becomes what it says, names and spaces their usual form,
/// and local times without a zone are in `zone`.
pub fn canonicalize(trigger: RoutineTrigger, zone: Zone, now: DateTime<Utc>) -> Result<RoutineTrigger, ScheduleError> {
    Ok(match trigger {
        RoutineTrigger::Cron { schedule, timezone } => {
            if schedule.len() > MAX_SCHEDULE_BYTES {
                let message = format!("it is longer than {MAX_SCHEDULE_BYTES} bytes");
                return Err(ScheduleError::Expression { message });
            }
            let zones = Zones { beside: timezone.as_deref().map(zone_named).transpose()?, default: zone };
            if phrase::is_phrase(&schedule) {
                return phrase::parse(&schedule, zones, now);
            }
            let schedule = schedule.split_whitespace().collect::<Vec<_>>().join(" ");
            RoutineTrigger::Cron { schedule, timezone: Some(zones.unnamed().name().to_owned()) }
        }
        // Times are stored in microseconds.
        RoutineTrigger::Every { every_seconds, anchor } => {
            RoutineTrigger::Every { every_seconds, anchor: anchor.map(|anchor| anchor.trunc_subsecs(6)) }
        }
        RoutineTrigger::At { at } => RoutineTrigger::At { at: at.trunc_subsecs(6) },
        other => other,
    })
}

/// Whether a trigger has local times and names no zone: its meaning depends on the zone that it is read in.
pub fn needs_zone(trigger: &RoutineTrigger, now: DateTime<Utc>) -> bool {
    let meaning = |zone: Zone| canonicalize(trigger.clone(), zone, now).ok();
    // A zone in which each local time is another instant than in UTC.
    let other: Zone = "Asia/Tokyo".parse().unwrap_or(Zone::UTC);
    meaning(Zone::UTC) != meaning(other)
}

/// The fields of an expression with seconds, each with its first value, its number of values and the unit of its steps in a
/// phrase.
const FIELDS: [(&str, u64, u64, &str); 6] = [
    ("seconds", 0, 60, "s"),
    ("minutes", 0, 60, "m"),
    ("hours", 0, 24, "h"),
    ("days of the month", 1, 31, "d"),
    ("months", 1, 12, ""),
    ("days of the week", 0, 7, "d"),
];

/// What is wrong with a step that its field or range cannot take: steps begin again with each hour, day and so on, so that `*/90`
/// in the minutes would mean each hour. Routines that were stored with one keep it.
fn step_beyond_field(expression: &str) -> Option<String> {
    let parts: Vec<&str> = expression.split_whitespace().collect();
    let skipped = usize::from(parts.len() < FIELDS.len());
    parts.iter().zip(FIELDS.iter().skip(skipped)).enumerate().find_map(|(index, (part, field))| {
        let (name, _, values, unit) = field;
        let (item, (step, first)) = part.split(',').find_map(|item| Some((item, step_beyond_range(item, field)?)))?;
        let items: Vec<_> = part.split(',').map(|one| if one == item { &first } else { one }).collect();
        let meaning = items.join(",");
        let meaning = [&parts[..index], &[&meaning], &parts[index + 1..]].concat().join(" ");
        let beyond = if step < *values { "its range".to_owned() } else { format!("the {values} {name}") };
        let interval =
            if unit.is_empty() { String::new() } else { format!(", or `every {step}{unit}` for an interval") };
        Some(format!(
            "the step {step} in `{part}` is beyond {beyond}: write `{meaning}`, which it would mean{interval}"
        ))
    })
}

/// A step that leaves only the first value of its range, and this value.
fn step_beyond_range(item: &str, (_, min, values, _): &(&str, u64, u64, &str)) -> Option<(u64, String)> {
    let (range, step) = item.split_once('/')?;
    let step = step.parse::<u64>().ok().filter(|step| *step > 1)?;
    let (first, last) = match range {
        "*" | "?" => (min.to_string(), (min + values - 1).to_string()),
        _ => range.split_once('-').map(|(first, last)| (first.to_owned(), last.to_owned()))?,
    };
    // The length of a range with names is not known here.
    let length =
        first.parse().ok().zip(last.parse().ok()).and_then(|(first, last): (u64, u64)| last.checked_sub(first));
    (step >= *values || length.is_some_and(|length| step > length)).then_some((step, first))
}

#[cfg(test)]
mod tests;
