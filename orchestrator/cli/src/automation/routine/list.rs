//! `gantry routine list` and `upcoming`.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::{
    FiringTime, Routine, RoutineActionKind, RoutineStatus, TriggerType, UpcomingFiring, UpcomingFirings,
    UpcomingOfRoutines,
};

use super::{PATH, describe, find};
use crate::{
    client::{Client, Nothing, PageArgs, pages, zones},
    exit::CliError,
    output::{Column, Format, Output, Paint, TableArgs, View, one_line, table},
};

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only routines with these statuses, separated by commas: disabled, running, unverified, failing, attention, active
    #[arg(long, value_delimiter = ',', value_parser = status)]
    status: Vec<RoutineStatus>,
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = trigger_type,
        help = "Only routines with these triggers, separated by commas: cron, every, at, event, system_event, webhook, manual"
    )]
    trigger: Vec<TriggerType>,
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = action,
        help = "Only routines with these actions, separated by commas: lightweight, full_job, system_event_text"
    )]
    action: Vec<RoutineActionKind>,
    /// Only enabled routines
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,
    /// Only disabled routines
    #[arg(long)]
    disabled: bool,
    /// Only routines with this text in the name or the description
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
    /// Only routines whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Only routines of this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub struct UpcomingArgs {
    /// Name or id; the next firings of all routines if none is given
    routine: Option<String>,
    /// Number of times
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    count: u32,
}

fn status(text: &str) -> Result<RoutineStatus, String> {
    RoutineStatus::parse(text).ok_or_else(|| format!("must be one of {}", names(RoutineStatus::ALL)))
}

fn trigger_type(text: &str) -> Result<TriggerType, String> {
    TriggerType::parse(text).ok_or_else(|| format!("must be one of {}", names(TriggerType::ALL)))
}

fn action(text: &str) -> Result<RoutineActionKind, String> {
    RoutineActionKind::parse(text).ok_or_else(|| format!("must be one of {}", names(RoutineActionKind::ALL)))
}

fn names<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn joined<T: ToString>(values: &[T]) -> Option<String> {
    (!values.is_empty()).then(|| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

pub(super) async fn list(
    client: &Client,
    args: ListArgs,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<(), CliError> {
    let enabled = (args.enabled || args.disabled).then(|| args.enabled.to_string());
    let optional = [
        ("status", joined(&args.status)),
        ("trigger", joined(&args.trigger)),
        ("action", joined(&args.action)),
        ("enabled", enabled),
        ("q", args.q),
        ("id", args.id),
        ("user", args.user),
    ];
    let query: Vec<_> = optional.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let Some((routines, cursor)) = pages::read(client, (PATH, &query), &args.page, output).await? else {
        return Ok(());
    };
    if args.page.table.quiet {
        return routines.iter().try_for_each(|routine: &Routine| output.line(&routine.id.to_string()));
    }
    if routines.is_empty() && cursor.is_none() {
        NONE.note(!query.is_empty() || args.page.cursor.is_some(), output);
        return Ok(());
    }
    zones::shown(client, output).await;
    let view = View::new(output, &args.page.table, now, client.user());
    let text = coloured_table(&routines, &view, output.paint);
    output.line(&text)?;
    pages::note_next(cursor.as_deref(), output);
    Ok(())
}

const NONE: Nothing = Nothing {
    yet: "no routines yet; `gantry routine create --help` shows how to make one",
    matches: "no routine matches",
};

const ROUTINES: &[Column<Routine>] = &[
    Column::text("id", |routine, view| view.id(&routine.id)),
    Column::text("name", |routine, _| one_line(&routine.name)),
    Column::text("status", |routine, _| routine.status.to_string()),
    Column::flexible("trigger", |routine, view| one_line(&describe::trigger(&routine.trigger, view.zone))),
    Column::text("next", next),
    Column::<Routine>::text("last", |routine, view| {
        routine.last_run_at.map_or_else(|| "-".to_owned(), |at| describe::relative(at, view.now))
    })
    .optional(),
    Column::<Routine>::number("runs", |routine, _| routine.run_count.to_string()).optional(),
    Column::user(|routine, _| one_line(&routine.user_id)),
    Column::<Routine>::text("created", |routine, view| view.time(routine.created_at)).wide(),
];

pub(super) fn coloured_table(routines: &[Routine], view: &View, paint: Paint) -> String {
    coloured(&table(ROUTINES, routines, view), routines, paint)
}

fn next(routine: &Routine, view: &View) -> String {
    match routine.next_fire_at.filter(|_| routine.enabled) {
        Some(at) => format!("{} ({})", describe::local(at, view.zone, view.now), describe::relative(at, view.now)),
        None => "-".to_owned(),
    }
}

/// The next times of a routine.
const TIMES: &[Column<FiringTime>] = &[
    Column::text("time", |time, view| view.time(time.utc)),
    Column::text("in the schedule's zone", |time, _| one_line(&time.local)),
    Column::text("in", |time, view| describe::relative(time.utc, view.now)),
];

/// The next times of all routines.
const FIRINGS: &[Column<UpcomingFiring>] = &[
    Column::text("time", |firing, view| view.time(firing.utc)),
    Column::text("routine", |firing, _| one_line(&firing.routine_name)),
    Column::text("in the schedule's zone", |firing, _| one_line(&firing.local)),
    Column::text("in", |firing, view| describe::relative(firing.utc, view.now)),
    Column::user(|firing, _| one_line(&firing.user_id)),
];

/// Colors whole lines: escape sequences inside cells would count as width.
fn coloured(table: &str, routines: &[Routine], paint: Paint) -> String {
    let mut text = String::new();
    let statuses = std::iter::once(None).chain(routines.iter().map(|routine| Some(routine.status)));
    for (line, status) in table.lines().zip(statuses) {
        let line = match status {
            Some(RoutineStatus::Disabled) => paint.dim(line),
            Some(RoutineStatus::Failing) => paint.red(line),
            Some(RoutineStatus::Attention) => paint.yellow(line),
            Some(RoutineStatus::Running) => paint.cyan(line),
            _ => line.to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text.truncate(text.trim_end().len());
    text
}

pub(super) async fn upcoming(
    client: &Client,
    args: UpcomingArgs,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<(), CliError> {
    let count = args.count.to_string();
    let Some(routine) = args.routine else { return upcoming_of_all(client, count, now, output).await };
    let routine = find(client, &routine).await?;
    let path = format!("{PATH}/{}/upcoming", routine.id);
    let upcoming: UpcomingFirings = client.get(&path, &[("count", count)]).await?;
    if upcoming.items.is_empty() && output.format == Format::Text {
        output.note(&format!("gantry: {} has no further time", one_line(&routine.name)));
        return Ok(());
    }
    zones::shown(client, output).await;
    let view = View::new(output, &TableArgs::default(), now, None);
    output.either(&upcoming, |_| table(TIMES, &upcoming.items, &view))
}

async fn upcoming_of_all(
    client: &Client,
    limit: String,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<(), CliError> {
    let upcoming: UpcomingOfRoutines = client.get(&format!("{PATH}/upcoming"), &[("limit", limit)]).await?;
    if upcoming.items.is_empty() && output.format == Format::Text {
        output.note("gantry: no routine fires in the next 8 days");
        return Ok(());
    }
    zones::shown(client, output).await;
    let view = View::new(output, &TableArgs::default(), now, client.user());
    output.either(&upcoming, |_| table(FIRINGS, &upcoming.items, &view))
}
