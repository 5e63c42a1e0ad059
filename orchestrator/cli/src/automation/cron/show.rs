//! Cron jobs, their runs and the scheduler's status as text.

use chrono::{DateTime, Utc};
use protocol::{CronJob, CronPayload, CronRunEntry, CronSchedule, CronStatus, RoutineTrigger};

use crate::{
    automation::routine::describe,
    output::{Column, Paint, one_line},
};

use base::Zone;

pub(super) const JOBS: &[Column<CronJob>] = &[
    Column::text("id", |job, view| view.id(&job.id)),
    Column::text("name", |job, _| one_line(&job.name)),
    Column::<CronJob>::text("enabled", |job, _| if job.enabled { "yes" } else { "no" }.to_owned()).optional(),
    Column::flexible("schedule", |job, view| schedule(&job.schedule, view.zone)),
    Column::text("next", |job, view| next(job.state.next_run_at_ms.filter(|_| job.enabled), view.zone, view.now)),
    Column::<CronJob>::text("last", |job, view| {
        let last = job.state.last_status.map_or("-", |status| status.as_str());
        let at = job.state.last_run_at_ms.and_then(time);
        let ago = at.map(|at| format!(" ({})", describe::relative(at, view.now))).unwrap_or_default();
        format!("{last}{ago}")
    })
    .optional(),
    Column::<CronJob>::text("session", |job, _| job.session_target.to_string()).optional(),
    Column::flexible("does", |job, _| {
        one_line(match &job.payload {
            CronPayload::SystemEvent { text } => text,
            CronPayload::AgentTurn { message, .. } => message,
        })
    }),
];

/// A schedule in words.
fn schedule(schedule: &CronSchedule, zone: Zone) -> String {
    let trigger = match schedule {
        CronSchedule::At { at_ms } => match time(*at_ms) {
            Some(at) => RoutineTrigger::At { at },
            None => return format!("at {at_ms} ms"),
        },
        CronSchedule::Every { every_ms, .. } => RoutineTrigger::Every { every_seconds: every_ms / 1_000, anchor: None },
        CronSchedule::Cron { expr, tz } => RoutineTrigger::Cron { schedule: expr.clone(), timezone: tz.clone() },
    };
    describe::trigger(&trigger, zone)
}

fn time(milliseconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(milliseconds)
}

fn next(milliseconds: Option<i64>, zone: Zone, now: DateTime<Utc>) -> String {
    let at = milliseconds.and_then(time);
    at.map_or_else(
        || "-".to_owned(),
        |at| format!("{} ({})", describe::local(at, zone, now), describe::relative(at, now)),
    )
}

/// Runs of a cron job.
pub(super) const RUNS: &[Column<CronRunEntry>] = &[
    Column::text("run", |entry, view| view.id(&entry.run_id)),
    Column::text("at", |entry, view| time(entry.at_ms).map(|at| view.time(at)).unwrap_or_default()),
    Column::text("status", |entry, _| entry.status.as_str().to_owned()),
    Column::number("took", |entry, _| entry.duration_ms.map(|duration| format!("{duration} ms")).unwrap_or_default()),
    Column::flexible("result", |entry, _| {
        entry.summary.as_ref().or(entry.error.as_ref()).map(|text| one_line(text.trim())).unwrap_or_default()
    }),
];

pub(super) fn status(paint: Paint, status: &CronStatus, zone: Zone, now: DateTime<Utc>) -> String {
    let enabled = if status.enabled { paint.green("yes") } else { paint.red("no") };
    let next = next(status.next_wake_at_ms.filter(|_| status.enabled), zone, now);
    format!("{:<15} {enabled}\n{:<15} {}\n{:<15} {next}", "enabled", "jobs", status.jobs, "next")
}
