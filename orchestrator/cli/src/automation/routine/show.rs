//! `gantry routine show`: one routine.

use chrono::{DateTime, Utc};
use protocol::{Routine, RoutineAction, RoutineStatus};
use serde_json::Value;

use super::{describe, find};
use crate::{
    client::{Client, zones},
    exit::CliError,
    output::{Format, Output, Paint, escape_control_chars, one_line, wrapped},
};

use base::Zone;

const NAME_COLUMNS: usize = 16;

pub(super) async fn show(client: &Client, name: &str, now: DateTime<Utc>, output: &mut Output) -> Result<(), CliError> {
    let routine = find(client, name).await?;
    if output.format == Format::Json {
        return output.json(&routine);
    }
    let zone = zones::shown(client, output).await;
    let text = describe(output.paint, &routine, zone, now, output.width);
    output.line(&text)
}

pub(super) fn status(paint: Paint, status: RoutineStatus) -> String {
    match status {
        RoutineStatus::Active => paint.green(status.as_str()),
        RoutineStatus::Failing => paint.red(status.as_str()),
        RoutineStatus::Attention => paint.yellow(status.as_str()),
        RoutineStatus::Running => paint.cyan(status.as_str()),
        RoutineStatus::Disabled | RoutineStatus::Unverified => paint.dim(status.as_str()),
    }
}

/// The fields of an object that are set, such as `overlap=skip`.
fn fields(object: &Value) -> String {
    let set = object.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let field = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    };
    set.map(field).collect::<Vec<_>>().join(" ")
}

fn describe(paint: Paint, routine: &Routine, zone: Zone, now: DateTime<Utc>, width: Option<usize>) -> String {
    let time =
        |at: DateTime<Utc>| format!("{} ({})", at.with_timezone(&zone).format("%F %T %Z"), describe::relative(at, now));
    let disabled = routine.disabled_reason.map(|reason| {
        let since = routine.disabled_at.map(|at| format!(", {}", describe::relative(at, now))).unwrap_or_default();
        format!("{reason}{since}")
    });
    let rows = [
        ("id", Some(routine.id.to_string())),
        ("name", Some(paint.bold(&one_line(&routine.name)))),
        ("description", routine.description.as_deref().map(one_line)),
        ("user", Some(one_line(&routine.user_id))),
        ("status", Some(status(paint, routine.status))),
        ("disabled", disabled),
        ("trigger", Some(describe::trigger(&routine.trigger, zone))),
        ("next", routine.next_fire_at.filter(|_| routine.enabled).map(time)),
        ("action", Some(describe::action(&routine.action).to_owned())),
        ("session", Some(routine.session.to_string())),
        ("last run", routine.last_run_at.map(time)),
        ("runs", Some(routine.run_count.to_string())),
        ("failures", (routine.consecutive_failures > 0).then(|| format!("{} in a row", routine.consecutive_failures))),
        ("created", Some(time(routine.created_at))),
        ("updated", Some(time(routine.updated_at))),
        ("revision", Some(routine.rev.to_string())),
    ];
    let rows = rows.into_iter().filter_map(|(name, value)| Some(format!("{name:<15} {}", value?)));
    let mut lines: Vec<String> = rows.collect();
    for (name, value) in [
        ("trigger fields", serde_json::to_value(&routine.trigger)),
        ("guardrails", serde_json::to_value(&routine.guardrails)),
        ("notify", serde_json::to_value(&routine.notify)),
    ] {
        let fields = wrapped(&one_line(&fields(&value.unwrap_or_default())), NAME_COLUMNS, width);
        lines.push(format!("{name:<15} {}", paint.dim(&fields)));
    }
    let text = match &routine.action {
        RoutineAction::Lightweight(action) => &action.prompt,
        RoutineAction::FullJob(action) => &action.description,
        RoutineAction::SystemEventText { text } => text,
    };
    lines.push(format!("\n{}", escape_control_chars(text.trim_end())));
    if let Some(state) = routine.state.as_ref().filter(|state| !state.is_empty()) {
        lines.push(format!("\n{}\n{}", paint.dim("last result"), escape_control_chars(state.trim_end())));
    }
    lines.join("\n")
}
