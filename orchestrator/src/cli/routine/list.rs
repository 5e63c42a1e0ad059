//! `gantry routine list` and `upcoming`.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use clap::Args;
use comfy_table::{Table, presets};
use protocol::{Page, Routine, RoutineActionKind, RoutineStatus, TriggerType, UpcomingFirings};

use super::{PATH, describe, find, users_zone};
use crate::cli::{
    client::Client,
    exit::CliError,
    output::{Format, Output, Paint},
    pages,
    table::{TableArgs, View},
    text::{one_line, truncate},
};

/// Longest trigger in a list, in characters.
const MAX_TRIGGER_CHARS: usize = 48;

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
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
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
}

/// Arguments of `upcoming`.
#[derive(Debug, Args)]
pub(in crate::cli) struct UpcomingArgs {
    /// Name or id
    routine: String,
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
    let mut query = vec![("limit", args.limit.to_string())];
    let optional = [
        ("status", joined(&args.status)),
        ("trigger", joined(&args.trigger)),
        ("action", joined(&args.action)),
        ("enabled", enabled),
        ("q", args.q),
        ("id", args.id),
        ("user", args.user),
        ("cursor", args.cursor),
    ];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let page: Page<Routine> = client.get(PATH, &query).await?;
    if output.format == Format::Json {
        return output.json(&page);
    }
    if page.items.is_empty() {
        output.note("gantry: no routines; `gantry routine create --help` shows how to make one");
        return Ok(());
    }
    let zone = users_zone(client).await;
    let view = View { zone, ..View::new(output, &TableArgs::default(), now, client.user()) };
    let text = table(&page.items, &view, output.paint);
    output.line(&text)?;
    pages::note_next(page.next_cursor.as_deref(), output);
    Ok(())
}

pub(super) fn table(routines: &[Routine], view: &View, paint: Paint) -> String {
    let is_own = |routine: &Routine| view.user.as_ref().is_none_or(|user| *user == routine.user_id);
    // Names are unique for each user: an admin needs to see whose they are, and the ids.
    let of_others = !routines.iter().all(is_own);
    let mut table = Table::new();
    let mut head = vec!["name", "status", "trigger", "next", "last", "runs"];
    if of_others {
        head.extend(["user", "id"]);
    }
    table.load_style(presets::NOTHING).set_header(head);
    for routine in routines {
        let mut row = vec![
            one_line(&routine.name),
            routine.status.to_string(),
            truncate(&describe::trigger(&routine.trigger, view.zone), MAX_TRIGGER_CHARS),
            next(routine, view),
            routine.last_run_at.map_or_else(|| "-".to_owned(), |at| describe::relative(at, view.now)),
            routine.run_count.to_string(),
        ];
        if of_others {
            row.extend([one_line(&routine.user_id), routine.id.to_string()]);
        }
        table.add_row(row);
    }
    coloured(&table.trim_fmt(), routines, paint)
}

fn next(routine: &Routine, view: &View) -> String {
    match routine.next_fire_at.filter(|_| routine.enabled) {
        Some(at) => {
            let zone = describe::zone_of(&routine.trigger, view.zone);
            format!("{} ({})", describe::local(at, zone, view.now), describe::relative(at, view.now))
        }
        None => "-".to_owned(),
    }
}

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
    let routine = find(client, &args.routine).await?;
    let path = format!("{PATH}/{}/upcoming", routine.id);
    let upcoming: UpcomingFirings = client.get(&path, &[("count", args.count.to_string())]).await?;
    if upcoming.items.is_empty() && output.format == Format::Text {
        output.note(&format!("gantry: {} has no further time", one_line(&routine.name)));
        return Ok(());
    }
    output.either(&upcoming, |_| {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["local", "utc", "in"]);
        for time in &upcoming.items {
            let utc = time.utc.format("%F %T").to_string();
            table.add_row([one_line(&time.local), utc, describe::relative(time.utc, now)]);
        }
        table.trim_fmt()
    })
}
