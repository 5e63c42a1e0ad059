//! `gantry runs`: the outcomes of the firings of routines.

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use protocol::{Page, RoutineRun, RunId, RunStatus};
use serde_json::Value;

use super::{
    client::Client,
    exit::{CliError, Exit},
    output::{Output, Paint},
    pages,
    routine::{describe, id_of, time},
    text::{escape_control_chars, one_line, truncate},
};
use crate::{clock::Clock, config::Environment};

const PATH: &str = "/api/runs";
const RUNS_PER_PAGE: &str = "200";
/// Longest result in a list, in characters.
const MAX_RESULT_CHARS: usize = 60;

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum RunsCommand {
    /// List runs, newest first
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        filter: Filter,
        /// Maximum number of items
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
        /// Cursor of the next page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a run
    Show {
        /// Run id
        id: RunId,
    },
    /// Cancel a run that has not ended
    Cancel {
        /// Run id
        id: RunId,
    },
    /// Print all runs, newest first, one JSON object per line
    Export {
        #[command(flatten)]
        filter: Filter,
    },
}

/// Which runs.
#[derive(Debug, Args)]
pub(super) struct Filter {
    /// Only runs of this routine: its name or id
    #[arg(long, value_name = "ROUTINE")]
    routine: Option<String>,
    /// Only runs with these statuses, separated by commas: queued, running, ok, attention, failed, skipped, missed
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only runs with these triggers, separated by commas
    #[arg(long, value_name = "TRIGGER")]
    trigger: Option<String>,
    /// Only runs since this time: RFC 3339, a time in UTC, or a duration ago such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only runs whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Only runs of this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl Filter {
    async fn query(self, client: &Client, now: DateTime<Utc>) -> Result<Vec<(&'static str, String)>, CliError> {
        let routine = match self.routine {
            Some(routine) => Some(id_of(client, &routine).await?.to_string()),
            None => None,
        };
        let at = |text: Option<String>| text.map(|text| past(&text, now).map(|at| at.to_rfc3339())).transpose();
        let optional = [
            ("routine_id", routine),
            ("status", self.status),
            ("trigger", self.trigger),
            ("since", at(self.since)?),
            ("until", at(self.until)?),
            ("id", self.id),
            ("user", self.user),
        ];
        Ok(optional.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// A time; a duration is counted back from `now`.
fn past(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, CliError> {
    let at = time(text, None, now)?;
    Ok(if text.parse::<humantime::Duration>().is_ok() { now - (at - now) } else { at })
}

pub(super) async fn run(
    command: RunsCommand,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let client = Client::from_environment(environment)?;
    let now = Clock::system().now();
    match command {
        RunsCommand::List { filter, limit, cursor } => {
            let mut query = filter.query(&client, now).await?;
            query.push(("limit", limit.to_string()));
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            print_page(&client, PATH, &query, output).await?;
        }
        RunsCommand::Show { id } => {
            let run: RoutineRun = client.get(&format!("{PATH}/{id}"), &[]).await?;
            output.either(&run, |paint| describe(paint, &run))?;
        }
        RunsCommand::Cancel { id } => {
            let body = serde_json::Map::<String, Value>::new();
            let run: RoutineRun = client.post(&format!("{PATH}/{id}/cancel"), &body, None).await?;
            output.either(&run, |_| format!("{id} {}", with_reason(&run)))?;
        }
        RunsCommand::Export { filter } => export(&client, filter.query(&client, now).await?, output).await?,
    }
    Ok(Exit::Success)
}

async fn export(client: &Client, filter: Vec<(&'static str, String)>, output: &mut Output) -> Result<(), CliError> {
    let mut cursor: Option<String> = None;
    loop {
        let mut query = filter.clone();
        query.push(("limit", RUNS_PER_PAGE.to_owned()));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        // As the server sends them: fields that this program does not know are kept.
        let page: Page<Value> = client.get(PATH, &query).await?;
        for run in &page.items {
            output.json(run)?;
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

/// Prints a page of runs as a table.
pub(super) async fn print_page(
    client: &Client,
    path: &str,
    query: &[(&str, String)],
    output: &mut Output,
) -> Result<(), CliError> {
    let page: Page<RoutineRun> = client.get(path, query).await?;
    output.either(&page, |paint| format!("{}{}", table(&page.items), pages::next_page(&page, paint)))
}

fn table(runs: &[RoutineRun]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["id", "routine", "recorded", "trigger", "status", "took", "tokens", "result"]);
    for run in runs {
        let result = run.result_summary.as_ref().or(run.message.as_ref()).map(|text| one_line(text.trim()));
        table.add_row([
            run.id.to_string(),
            one_line(&run.routine_name),
            run.created_at.format("%F %T").to_string(),
            run.trigger_type.to_string(),
            with_reason(run),
            took(run).unwrap_or_default(),
            run.tokens_used.to_string(),
            truncate(&result.unwrap_or_default(), MAX_RESULT_CHARS),
        ]);
    }
    for column in [5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn with_reason(run: &RoutineRun) -> String {
    let reason = run.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let missed = run.missed_count.filter(|count| *count > 1).map(|count| format!(" ×{count}")).unwrap_or_default();
    format!("{}{reason}{missed}", run.status)
}

fn took(run: &RoutineRun) -> Option<String> {
    let duration = run.completed_at? - run.started_at?;
    let is_short = duration.num_seconds() < 10;
    Some(if is_short { format!("{} ms", duration.num_milliseconds()) } else { describe::age(duration) })
}

/// All that is known of a run.
pub(super) fn describe(paint: Paint, run: &RoutineRun) -> String {
    let status = match run.status {
        RunStatus::Ok => paint.green("ok"),
        RunStatus::Failed => paint.red("failed"),
        RunStatus::Attention => paint.yellow("attention"),
        RunStatus::Queued | RunStatus::Running => paint.cyan(run.status.as_str()),
        RunStatus::Skipped | RunStatus::Missed => paint.dim(run.status.as_str()),
    };
    let time = |at: DateTime<Utc>| at.format("%F %T%.3f").to_string();
    let missed = run.missed_count.map(|count| {
        let range = run.missed_from.zip(run.missed_to).map(|(from, to)| format!(", {} to {}", time(from), time(to)));
        format!("{count} times{}", range.unwrap_or_default())
    });
    let rows = [
        ("id", Some(run.id.to_string())),
        ("routine", Some(format!("{} ({})", one_line(&run.routine_name), run.routine_id))),
        ("user", Some(one_line(&run.user_id))),
        ("status", Some(status)),
        ("reason", run.reason.map(|reason| reason.to_string())),
        ("message", run.message.as_deref().map(one_line)),
        ("trigger", Some(format!("{} {}", run.trigger_type, one_line(&run.trigger_detail.to_string())))),
        ("due", run.due_at.map(time)),
        ("recorded", Some(time(run.created_at))),
        ("not before", run.not_before.filter(|_| !run.status.is_finished()).map(time)),
        ("started", run.started_at.map(time)),
        ("completed", run.completed_at.map(time)),
        ("took", took(run)),
        ("missed", missed),
        ("attempt", (run.attempt > 1).then(|| run.attempt.to_string())),
        ("tokens", Some(run.tokens_used.to_string())),
        ("cost", Some(run.cost_usd.map_or_else(|| "unknown".to_owned(), |cost| format!("${cost:.4}")))),
        ("job", run.job_id.map(|id| id.to_string())),
    ];
    let mut lines: Vec<String> =
        rows.into_iter().filter_map(|(name, value)| Some(format!("{name:<15} {}", value?))).collect();
    if let Some(result) = run.result_summary.as_ref().filter(|result| !result.is_empty()) {
        lines.push(format!("\n{}", escape_control_chars(result.trim_end())));
    }
    lines.join("\n")
}
