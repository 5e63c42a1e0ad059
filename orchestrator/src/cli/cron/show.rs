//! Cron jobs, their runs and the scheduler's status as text.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use comfy_table::{Table, presets};
use protocol::{CronJob, CronPayload, CronRunEntry, CronSchedule, CronStatus, RoutineTrigger};

use crate::cli::{
    output::{Format, Output, Paint},
    routine::describe,
    text::{one_line, truncate},
};

/// Longest text of a job or a result in a list, in characters.
const MAX_TEXT_CHARS: usize = 50;

pub(super) fn table(jobs: &[CronJob], zone: Tz, now: DateTime<Utc>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["id", "name", "enabled", "schedule", "next", "last", "session", "does"]);
    for job in jobs {
        let last = job.state.last_status.map_or("-", |status| status.as_str()).to_owned();
        let ago = job.state.last_run_at_ms.and_then(time).map(|at| format!(" ({})", describe::relative(at, now)));
        let text = match &job.payload {
            CronPayload::SystemEvent { text } => text,
            CronPayload::AgentTurn { message, .. } => message,
        };
        let (schedule, zone) = schedule(&job.schedule, zone);
        table.add_row([
            job.id.to_string(),
            one_line(&job.name),
            if job.enabled { "yes" } else { "no" }.to_owned(),
            schedule,
            next(job.state.next_run_at_ms.filter(|_| job.enabled), zone, now),
            format!("{last}{}", ago.unwrap_or_default()),
            job.session_target.to_string(),
            truncate(&one_line(text), MAX_TEXT_CHARS),
        ]);
    }
    table.trim_fmt()
}

/// A schedule in words, and the zone of its times.
fn schedule(schedule: &CronSchedule, zone: Tz) -> (String, Tz) {
    let trigger = match schedule {
        CronSchedule::At { at_ms } => match time(*at_ms) {
            Some(at) => RoutineTrigger::At { at },
            None => return (format!("at {at_ms} ms"), zone),
        },
        CronSchedule::Every { every_ms, .. } => RoutineTrigger::Every { every_seconds: every_ms / 1_000, anchor: None },
        CronSchedule::Cron { expr, tz } => RoutineTrigger::Cron { schedule: expr.clone(), timezone: tz.clone() },
    };
    (describe::trigger(&trigger, zone), describe::zone_of(&trigger, zone))
}

fn time(milliseconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(milliseconds)
}

fn next(milliseconds: Option<i64>, zone: Tz, now: DateTime<Utc>) -> String {
    let at = milliseconds.and_then(time);
    at.map_or_else(
        || "-".to_owned(),
        |at| format!("{} ({})", describe::local(at, zone, now), describe::relative(at, now)),
    )
}

pub(super) fn runs(entries: &[CronRunEntry]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["run", "at", "status", "took", "result"]);
    for entry in entries {
        let text = entry.summary.as_ref().or(entry.error.as_ref()).map(|text| one_line(text.trim()));
        table.add_row([
            entry.run_id.to_string(),
            time(entry.at_ms).map(|at| at.format("%F %T").to_string()).unwrap_or_default(),
            entry.status.as_str().to_owned(),
            entry.duration_ms.map(|duration| format!("{duration} ms")).unwrap_or_default(),
            truncate(&text.unwrap_or_default(), MAX_TEXT_CHARS),
        ]);
    }
    table.trim_fmt()
}

pub(super) fn status(paint: Paint, status: &CronStatus, zone: Tz, now: DateTime<Utc>) -> String {
    let enabled = if status.enabled { paint.green("yes") } else { paint.red("no") };
    let next = next(status.next_wake_at_ms.filter(|_| status.enabled), zone, now);
    format!("{:<15} {enabled}\n{:<15} {}\n{:<15} {next}", "enabled", "jobs", status.jobs, "next")
}

/// Prints what will not work as it is written on standard error. With `--json` the answer has it.
pub(super) fn print_warnings(job: &CronJob, output: &Output) {
    if output.format == Format::Json {
        return;
    }
    for warning in &job.warnings {
        output.note(&format!("warning: {}: {}", one_line(&warning.field), one_line(&warning.detail)));
    }
}
